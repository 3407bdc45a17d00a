package wire

import (
	"encoding/json"
	"time"

	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// TurnRun runs one turn of a session on a coordinator.
type TurnRun struct {
	Prompt    string   `json:"prompt"`
	Model     string   `json:"model,omitempty"`
	Toolsets  []string `json:"toolsets,omitempty"`
	MaxSteps  int      `json:"max_steps,omitempty"`
	MaxTokens int64    `json:"max_tokens,omitempty"`
	// Budget bounds the session over all of its turns; a missing one is that of the session's turn
	// before, an empty one is none.
	Budget *protocol.Spending `json:"budget,omitempty"`
	// Policies bind the turn's tool calls, beside those of the coordinator: objects as
	// docs/policy.md describes them.
	Policies []json.RawMessage `json:"policies,omitempty"`
	// Guard is what the session must know of a file before it may change it.
	Guard protocol.Guard `json:"guard,omitempty"`
	// Temperature, Reasoning (an effort) and MaxOutput (tokens of a reply) tune the model's
	// replies; what is missing is the coordinator's to choose.
	Temperature *float64 `json:"temperature,omitempty"`
	Reasoning   string   `json:"reasoning,omitempty"`
	MaxOutput   int64    `json:"max_output,omitempty"`
	// System is the system prompt, and Project what the workspace says to agents; missing ones are
	// as in the session's turn before, and an empty Project is none.
	System  string                     `json:"system,omitempty"`
	Project []protocol.InstructionFile `json:"project,omitzero"`
	// Author is who commits in the turn's commands.
	Author protocol.Author `json:"author,omitzero"`
	// Compact asks for a summary of the session instead of a turn.
	Compact bool `json:"compact,omitempty"`
}

// TurnRunResult answers [TurnRun].
type TurnRunResult struct {
	// Outcome is answered, failed, limit_reached or interrupted.
	Outcome string         `json:"outcome"`
	Text    string         `json:"text"`
	Steps   int            `json:"steps"`
	Usage   protocol.Usage `json:"usage"`
	// Compacted reports that a summary was written.
	Compacted bool `json:"compacted,omitempty"`
}

// AgentRequest is the plan of the tool that starts a sub-agent. The session runs it.
type AgentRequest struct {
	Prompt string
	Agent  string // its kind; "" is as its parent
	// Workspace is [AgentWorkspaceEmpty], [AgentWorkspaceFork], or that of the parent.
	Workspace string
}

// Workspaces of sub-agents.
const (
	AgentWorkspaceEmpty = "empty" // one of its own
	AgentWorkspaceFork  = "fork"  // one that begins as the parent's, and is merged into it at the end
)

// JobVerb is a request about a job: a call of a tool that runs in the background.
type JobVerb string

// The verbs.
const (
	JobStatus JobVerb = "status"
	JobWait   JobVerb = "wait"
	JobCancel JobVerb = "cancel"
)

// JobRequest is the plan of a tool about jobs. The session answers it.
type JobRequest struct {
	Verb JobVerb
	// Job is the handle of the job; "" of status means all jobs of the session.
	Job string
	// Timeout is how long wait waits.
	Timeout time.Duration
}
