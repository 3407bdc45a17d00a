package toolset

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
)

// The tools of this file are answered by the session itself, not by a worker.

// askWait is how long ask_user waits for an answer if the call names no time.
const askWait = 10 * time.Minute

// askTools returns the tool by which a model asks a person.
func askTools() []tools.Tool {
	return []tools.Tool{{
		Metadata: tools.Metadata{
			Effect: tools.Effect{Loop: true},
			Hint:   "Ask the user with ask_user only for what you cannot find out, and when a wrong guess would cost more than the wait.",
			Help: `The question appears at the user's terminal, in coordinator session attach, and in coordinator approve ls. The call fails when the user declines, or when
there is no answer in time. A session that is resumed by another process asks again.`,
		},
		Definition: definition(wire.AskUserTool, "Ask the user a question and wait for the answer.", `{
			"type": "object",
			"properties": {
				"question": {"type": "string", "minLength": 1, "maxLength": 4000, "description": "The question, with what the user has to know to answer it."},
				"choices": {"type": "array", "items": {"type": "string", "minLength": 1, "maxLength": 200}, "minItems": 2, "maxItems": 20, "uniqueItems": true, "description": "The possible answers. Default: any text."},
				"timeout": {"type": "number", "minimum": 1, "maximum": 86400, "description": "Seconds to wait at most. Default: 600."}
			},
			"required": ["question"],
			"additionalProperties": false
		}`),
		Plan: tools.PlanOf(func(_ tools.Scope, args askArguments) (tools.Plan, *protocol.Error) {
			answer := map[string]any{"type": "string", "minLength": 1, "maxLength": wire.MaxUserAnswer}
			if len(args.Choices) > 0 {
				answer = map[string]any{"type": "string", "enum": args.Choices}
			}
			schema, err := json.Marshal(map[string]any{"type": "object", "properties": map[string]any{"answer": answer}, "required": []string{"answer"}})
			if err != nil {
				panic(fmt.Sprintf("encode schema: %v", err)) // strings always encode
			}
			return tools.Plan{Session: wire.PersonRequest{
				Question: protocol.Question{ID: "1", Message: args.Question, Schema: schema}, Choices: args.Choices, Timeout: seconds(args.Timeout, askWait),
			}}, nil
		}),
	}}
}

type askArguments struct {
	Question string   `json:"question"`
	Choices  []string `json:"choices"`
	Timeout  float64  `json:"timeout"`
}

// scratchTools returns the tool by which a model keeps notes outside of its conversation.
func scratchTools() []tools.Tool {
	return []tools.Tool{{
		Metadata: tools.Metadata{
			Effect: tools.Effect{Loop: true},
			Hint:   "Note in the scratchpad what you need for long, such as plans and findings: it stays when older messages are replaced by a summary.",
		},
		Definition: definition("scratchpad", "Store, read, list or delete notes of this session, by a key.", `{
			"type": "object",
			"properties": {
				"action": {"type": "string", "enum": ["get", "set", "list", "delete"], "description": "list returns the keys."},
				"key": {"type": "string", "minLength": 1, "maxLength": 100, "description": "Of get, set and delete."},
				"value": {"type": "string", "maxLength": 16000, "description": "Text to store; of set."}
			},
			"required": ["action"],
			"additionalProperties": false
		}`),
		Rules: func(arguments map[string]any) (wrong []string) {
			action := arguments["action"]
			if _, has := arguments["key"]; !has && action != "list" {
				wrong = append(wrong, "key: required, except for list")
			}
			if _, has := arguments["value"]; !has && action == "set" {
				wrong = append(wrong, "value: required for set")
			}
			return wrong
		},
		Plan: tools.PlanOf(func(_ tools.Scope, args scratchArguments) (tools.Plan, *protocol.Error) {
			return tools.Plan{Session: wire.ScratchRequest{Verb: args.Action, Key: args.Key, Value: args.Value}}, nil
		}),
	}}
}

type scratchArguments struct {
	Action wire.ScratchVerb `json:"action"`
	Key    string           `json:"key"`
	Value  string           `json:"value"`
}

// agentTools returns the tool by which a model has a sub-agent work for it.
func agentTools() []tools.Tool {
	return []tools.Tool{{
		Metadata: tools.Metadata{
			Effect: tools.Effect{Loop: true},
			Hint:   "Use it for work that needs many steps and whose result is short, such as a search or a review. Sub-agents that are started in one reply work at the same time.",
			Help: `A sub-agent has a conversation of its own, and reads nothing of yours: the prompt must say all that it needs. It has your tools, or some of
them, and nothing that is forbidden to you. Its tool calls and yours on one file run in order. What it uses counts towards your budget.
With workspace "fork" several can change files at the same time: what each has changed is merged into your files when it ends, and the result names conflicts.
In the background it is a job: your turn continues, and does not end before it.`,
		},
		Definition: definition("agent", "Have a sub-agent work on a task. Returns its answer when it is done.", `{
			"type": "object",
			"properties": {
				"prompt": {"type": "string", "minLength": 1, "description": "The task, with all that the agent has to know: it sees nothing of this conversation."},
				"agent": {"type": "string", "description": "Name of a kind of agent, if there are any. Default: one like you."},
				"workspace": {"type": "string", "enum": ["parent", "fork", "empty"], "description": "The files that it works on: yours, a copy of yours that is merged back at the end, or none. Default: parent."},
				"background": {"type": "boolean", "description": "Continue while it works. Its answer comes as a message when it is done."}
			},
			"required": ["prompt"],
			"additionalProperties": false
		}`),
		Plan: tools.PlanOf(func(_ tools.Scope, args agentArguments) (tools.Plan, *protocol.Error) {
			return tools.Plan{Session: wire.AgentRequest{Prompt: args.Prompt, Agent: args.Agent, Workspace: args.Workspace, Background: args.Background}}, nil
		}),
	}}
}

type agentArguments struct {
	Prompt     string `json:"prompt"`
	Agent      string `json:"agent"`
	Workspace  string `json:"workspace"`
	Background bool   `json:"background"`
}

// defaultPassages is how many passages search_memory returns if the call names no number.
const defaultPassages = 8

// memoryTools returns the tool by which a model searches what was said and done.
func memoryTools() []tools.Tool {
	return []tools.Tool{{
		Metadata: tools.Metadata{
			Effect: tools.Effect{Loop: true},
			Hint:   "Search with search_memory for what was said and done earlier in this session, also when you do not see it any more.",
			Help: `It searches the whole journal of this session, and those of the sub-agents that it has started: prompts, answers, tool calls and their results.
A passage counts more when it has more of the words, and rare ones. Parts of words do not count: search for several forms.`,
		},
		Definition: definition(wire.SearchTool, "Search this session and its sub-agents for words, also what is older than your conversation.", `{
			"type": "object",
			"properties": {
				"query": {"type": "string", "minLength": 1, "maxLength": 500, "description": "Words to search for."},
				"limit": {"type": "integer", "minimum": 1, "maximum": 50, "description": "Maximum number of passages. Default: 8."}
			},
			"required": ["query"],
			"additionalProperties": false
		}`),
		Plan: tools.PlanOf(func(_ tools.Scope, args searchArguments) (tools.Plan, *protocol.Error) {
			if args.Limit == 0 {
				args.Limit = defaultPassages
			}
			return tools.Plan{Session: wire.SearchRequest{Query: args.Query, Limit: args.Limit}}, nil
		}),
	}}
}

type searchArguments struct {
	Query string `json:"query"`
	Limit int    `json:"limit"`
}

// Limits of how long job_wait waits.
const (
	jobWaitTimeout    = time.Minute // if the call names none
	maxJobWaitTimeout = 10 * time.Minute
)

// jobsTools returns the tools by which a model follows the calls of tools that run in the
// background ([tools.Plan].Background).
func jobsTools() []tools.Tool {
	const one = `{
		"type": "object",
		"properties": {
			"job": {"type": "string", "minLength": 1, "description": "Handle of the job."}
		},
		"required": ["job"],
		"additionalProperties": false
	}`
	return []tools.Tool{
		{
			Metadata:   tools.Metadata{Effect: tools.Effect{Loop: true}},
			Definition: definition("job_cancel", "Stop a job that runs in the background. Returns how it ended.", one),
			Plan:       planJob(wire.JobCancel),
		},
		{
			Metadata: tools.Metadata{Effect: tools.Effect{Loop: true}},
			Definition: definition("job_status", "Ask how a job stands that runs in the background, or all jobs of this session.", `{
				"type": "object",
				"properties": {
					"job": {"type": "string", "description": "Handle of the job. Default: all jobs."}
				},
				"additionalProperties": false
			}`),
			Plan: planJob(wire.JobStatus),
		},
		{
			Metadata: tools.Metadata{Effect: tools.Effect{Loop: true}},
			Definition: definition("job_wait",
				"Wait until a job that runs in the background has ended, and get its result. You are told of its end in any case: wait only when you can do nothing else.", `{
				"type": "object",
				"properties": {
					"job": {"type": "string", "minLength": 1, "description": "Handle of the job."},
					"timeout": {"type": "number", "exclusiveMinimum": 0, "maximum": 600, "description": "Seconds to wait at most. Default: 60."}
				},
				"required": ["job"],
				"additionalProperties": false
			}`),
			Plan: planJob(wire.JobWait),
		},
	}
}

type jobArguments struct {
	Job     string  `json:"job"`
	Timeout float64 `json:"timeout"`
}

func planJob(verb wire.JobVerb) func(tools.Scope, json.RawMessage) (tools.Plan, *protocol.Error) {
	return tools.PlanOf(func(_ tools.Scope, args jobArguments) (tools.Plan, *protocol.Error) {
		return tools.Plan{Session: wire.JobRequest{Verb: verb, Job: args.Job, Timeout: min(seconds(args.Timeout, jobWaitTimeout), maxJobWaitTimeout)}}, nil
	})
}
