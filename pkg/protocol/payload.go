package protocol

import (
	"encoding/json"
)

// Kind names a payload and the typed value that answers it; both use one name.
type Kind string

// Payload is what a worker executes: one of the payload types of this package, as a value, or an
// [UnknownPayload]. Paths in payloads are slash-separated and relative to the workspace; "" is the
// workspace itself.
type Payload any

// WorkspaceImport fills a sandbox's empty workspace with an upload. Done twice it does nothing.
type WorkspaceImport struct {
	// Upload is the name of the upload: lower case letters and digits, at most 64.
	Upload string `json:"upload"`
	// Blob is the name, in the fleet's object store, of what changed since the last one of that
	// name.
	Blob string `json:"blob"`
}

// WorkspaceExport keeps what a sandbox's workspace has as the last state of an upload.
type WorkspaceExport struct {
	// Upload is the name of the upload, as of [WorkspaceImport].
	Upload string `json:"upload"`
}

// WorkspaceRemove removes a sandbox's workspace, with all that workers keep beside it. A
// directory that is a workspace in place stays. Done twice it does nothing.
type WorkspaceRemove struct{}

// WorkspaceRestore makes a sandbox's workspace, and what its shell remembers, what they were after
// an earlier call. Processes that live in the sandbox are killed.
type WorkspaceRestore struct {
	// At is the call, which changed something.
	At CallID `json:"at"`
}

// TurnRun runs one turn of a session on a coordinator.
type TurnRun struct {
	Prompt    string   `json:"prompt"`
	Model     string   `json:"model,omitempty"`
	Toolsets  []string `json:"toolsets,omitempty"`
	MaxSteps  int      `json:"max_steps,omitempty"`
	MaxTokens int64    `json:"max_tokens,omitempty"`
	// Policies bind the turn's tool calls, beside those of the coordinator: objects as
	// docs/policy.md describes them.
	Policies []json.RawMessage `json:"policies,omitempty"`
	// Guard is what the session must know of a file before it may change it.
	Guard Guard `json:"guard,omitempty"`
	// Temperature, Reasoning (an effort) and MaxOutput (tokens of a reply) tune the model's
	// replies; what is missing is the coordinator's to choose.
	Temperature *float64 `json:"temperature,omitempty"`
	Reasoning   string   `json:"reasoning,omitempty"`
	MaxOutput   int64    `json:"max_output,omitempty"`
	// System is the system prompt, and Project what the workspace says to agents; missing ones are
	// as in the session's turn before, and an empty Project is none.
	System  string            `json:"system,omitempty"`
	Project []InstructionFile `json:"project,omitzero"`
	// Author is who commits in the turn's commands.
	Author Author `json:"author,omitzero"`
}

// InstructionFile is a file with instructions for agents, such as AGENTS.md.
type InstructionFile struct {
	Name string `json:"name"`
	Text string `json:"text"`
}

// Noop does nothing, for as long as it is told: the payload of measurements.
type Noop struct {
	WorkMS Millis `json:"work_ms,omitempty"`
	// Fill is carried and ignored.
	Fill Bytes `json:"fill,omitempty"`
}

// Stored stands for a payload or a value that is too large for a message: its JSON
// is in the fleet's object store. Whoever executes calls or reads results puts
// the real one back; tools never see it.
type Stored struct {
	Blob  string `json:"blob"`
	Bytes int64  `json:"bytes"`
	// Digest is the SHA-256 of the JSON, in hexadecimal digits; "" from earlier versions.
	Digest string `json:"digest,omitempty"`
	// Of is, of a payload, its kind, or that of the handler which it opens; "" when it is not
	// known.
	Of Kind `json:"of,omitempty"`
	// Model is, of a payload that runs a turn, the model that the turn names.
	Model string `json:"model,omitempty"`
}

// UnknownPayload is a payload of a kind that this version does not know. It is
// answered with status "rejected" and keeps the bytes that it came with.
type UnknownPayload struct {
	Name Kind
	Raw  json.RawMessage
}
