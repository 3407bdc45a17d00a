package protocol

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
)

// Every kind that this version knows.
const (
	KindCommandRun       Kind = "command_run"
	KindCodeRun          Kind = "code_run"
	KindProcessList      Kind = "process_list"
	KindProcessRead      Kind = "process_read"
	KindProcessSend      Kind = "process_send"
	KindProcessKill      Kind = "process_kill"
	KindResultRead       Kind = "result_read"
	KindToolRun          Kind = "tool_run"
	KindMCPList          Kind = "mcp_list"
	KindMCPCall          Kind = "mcp_call"
	KindDialogOpen       Kind = "dialog_open"
	KindDialogContinue   Kind = "dialog_continue"
	KindDialogEnd        Kind = "dialog_end"
	KindWorkspaceImport  Kind = "workspace_import"
	KindWorkspaceExport  Kind = "workspace_export"
	KindWorkspaceRemove  Kind = "workspace_remove"
	KindWorkspaceRestore Kind = "workspace_restore"
	KindTurnRun          Kind = "turn_run"
	KindNoop             Kind = "noop"
	KindStored           Kind = "stored"
)

// Payload is what a worker executes. Paths in payloads are slash-separated and
// relative to the workspace; "" is the workspace itself.
type Payload interface {
	// Kind is the payload's type name on the wire.
	Kind() Kind
}

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

// Kind implements [Payload].
func (WorkspaceImport) Kind() Kind { return KindWorkspaceImport }

// Kind implements [Payload].
func (WorkspaceExport) Kind() Kind { return KindWorkspaceExport }

// Kind implements [Payload].
func (WorkspaceRemove) Kind() Kind { return KindWorkspaceRemove }

// Kind implements [Payload].
func (WorkspaceRestore) Kind() Kind { return KindWorkspaceRestore }

// Kind implements [Payload].
func (TurnRun) Kind() Kind { return KindTurnRun }

// Kind implements [Payload].
func (Noop) Kind() Kind { return KindNoop }

// Kind implements [Payload].
func (Stored) Kind() Kind { return KindStored }

// Kind implements [Payload].
func (u UnknownPayload) Kind() Kind { return u.Name }

// EncodePayload returns the JSON of p, with its type and version.
func EncodePayload(p Payload) (json.RawMessage, error) {
	if p == nil {
		return nil, errors.New("payload is nil")
	}
	if unknown, ok := p.(UnknownPayload); ok {
		return compact(unknown.Raw)
	}
	return encodeTyped(p.Kind(), p)
}

// DecodePayload reads what [EncodePayload] wrote. A kind that it does not know
// yields an [UnknownPayload], which keeps raw; a malformed body is an error.
func DecodePayload(raw json.RawMessage) (Payload, error) {
	payload, err := decodePayload(raw)
	if _, unknown := payload.(UnknownPayload); unknown && !json.Valid(raw) {
		return nil, errNoJSON
	}
	return payload, err
}

var errNoJSON = errors.New("not JSON")

// kindOf reads the type name of a typed JSON object. What this package wrote begins
// with it, so that it is read at a glance.
func kindOf(raw json.RawMessage) (Kind, error) {
	if rest, found := bytes.CutPrefix(raw, []byte(typePrefix)); found {
		if name, _, closed := bytes.Cut(rest, []byte{'"'}); closed && plainName(name) {
			return Kind(name), nil
		}
	}
	var head struct {
		Type Kind `json:"type"`
	}
	if err := unmarshal(raw, &head); err != nil {
		return "", err
	}
	if head.Type == "" {
		return "", errors.New(`"type": missing`)
	}
	return head.Type, nil
}

// typePrefix begins every typed JSON object that this package writes.
const typePrefix = `{"type":"`

// plainName reports whether a type name needs no escapes in JSON.
func plainName(name []byte) bool {
	for _, c := range name {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '_' {
			return false
		}
	}
	return len(name) > 0
}

// encodeTyped writes body as a JSON object that starts with its type and version.
func encodeTyped(kind Kind, body any) (json.RawMessage, error) {
	if !plainName([]byte(kind)) {
		return nil, fmt.Errorf("type %q: must be lower-case letters, digits and '_'", kind)
	}
	fields, err := json.Marshal(body)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", kind, err)
	}
	head := typePrefix + string(kind) + `","version":` + strconv.Itoa(Version)
	if len(fields) == len("{}") {
		return json.RawMessage(head + "}"), nil
	}
	return append(append(make([]byte, 0, len(head)+len(fields)), head+","...), fields[1:]...), nil
}
