package toolset

import (
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
)

// agentTools returns the tool by which a model has a sub-agent work for it.
func agentTools() []tools.Tool {
	return []tools.Tool{{
		Metadata: tools.Metadata{
			Effect: tools.Effect{Loop: true},
			Hint:   "Use it for work that needs many steps and whose result is short, such as a search or a review. Sub-agents that are started in one reply work at the same time.",
			Help: `A sub-agent has a conversation of its own, and reads nothing of yours: the prompt must say all that it needs. It has your tools, or some of
them, and nothing that is forbidden to you. Its tool calls and yours on one file run in order. What it uses counts towards your budget.
With workspace "fork" several can change files at the same time: what each has changed is merged into your files when it ends, and the result names conflicts.`,
		},
		Definition: definition("agent", "Have a sub-agent work on a task. Returns its answer when it is done.", `{
			"type": "object",
			"properties": {
				"prompt": {"type": "string", "minLength": 1, "description": "The task, with all that the agent has to know: it sees nothing of this conversation."},
				"agent": {"type": "string", "description": "Name of a kind of agent, if there are any. Default: one like you."},
				"workspace": {"type": "string", "enum": ["parent", "fork", "empty"], "description": "The files that it works on: yours, a copy of yours that is merged back at the end, or none. Default: parent."}
			},
			"required": ["prompt"],
			"additionalProperties": false
		}`),
		Plan: tools.PlanOf(func(_ tools.Scope, args agentArguments) (tools.Plan, *protocol.Error) {
			return tools.Plan{Session: wire.AgentRequest{Prompt: args.Prompt, Agent: args.Agent, Workspace: args.Workspace}}, nil
		}),
	}}
}

type agentArguments struct {
	Prompt    string `json:"prompt"`
	Agent     string `json:"agent"`
	Workspace string `json:"workspace"`
}
