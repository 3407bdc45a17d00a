package protocol

import (
	"encoding/json"
	"errors"
)

// Value is the typed answer to a payload of the same [Kind].
type Value interface {
	// ValueKind is the value's type name on the wire.
	ValueKind() Kind
}

// WorkspaceImportResult answers [WorkspaceImport].
type WorkspaceImportResult struct {
	Files int   `json:"files"`
	Bytes int64 `json:"bytes"`
	// Checkpoint is where the journal of the upload has it, 0 when the workspace stayed as it was.
	Checkpoint uint64 `json:"checkpoint,omitempty"`
}

// WorkspaceExportResult answers [WorkspaceExport].
type WorkspaceExportResult struct {
	Files int   `json:"files"`
	Bytes int64 `json:"bytes"`
	// Checkpoint is where the journal of the upload has it.
	Checkpoint uint64 `json:"checkpoint"`
}

// WorkspaceRemoveResult answers [WorkspaceRemove].
type WorkspaceRemoveResult struct{}

// WorkspaceRestoreResult answers [WorkspaceRestore].
type WorkspaceRestoreResult struct {
	// Written and Removed are how many files were made anew, and how many paths were removed.
	Written int `json:"written"`
	Removed int `json:"removed"`
}

// Usage counts what a model was asked and answered.
type Usage struct {
	InputTokens  int64 `json:"input_tokens"`
	OutputTokens int64 `json:"output_tokens"`
}

// Add returns the sum of both.
func (u Usage) Add(other Usage) Usage {
	return Usage{u.InputTokens + other.InputTokens, u.OutputTokens + other.OutputTokens}
}

// Total is input plus output.
func (u Usage) Total() int64 { return u.InputTokens + u.OutputTokens }

// TurnRunResult answers [TurnRun].
type TurnRunResult struct {
	// Outcome is answered, failed, limit_reached or interrupted.
	Outcome string `json:"outcome"`
	Text    string `json:"text"`
	Steps   int    `json:"steps"`
	Usage   Usage  `json:"usage"`
}

// NoopResult answers [Noop].
type NoopResult struct{}

// UnknownValue is a value of a kind that this version does not know.
type UnknownValue struct {
	Name Kind
	Raw  json.RawMessage
}

// ValueKind implements [Value].
func (WorkspaceImportResult) ValueKind() Kind { return KindWorkspaceImport }

// ValueKind implements [Value].
func (WorkspaceExportResult) ValueKind() Kind { return KindWorkspaceExport }

// ValueKind implements [Value].
func (WorkspaceRemoveResult) ValueKind() Kind { return KindWorkspaceRemove }

// ValueKind implements [Value].
func (WorkspaceRestoreResult) ValueKind() Kind { return KindWorkspaceRestore }

// ValueKind implements [Value].
func (TurnRunResult) ValueKind() Kind { return KindTurnRun }

// ValueKind implements [Value].
func (NoopResult) ValueKind() Kind { return KindNoop }

// ValueKind implements [Value].
func (Stored) ValueKind() Kind { return KindStored }

// ValueKind implements [Value].
func (u UnknownValue) ValueKind() Kind { return u.Name }

// EncodeValue returns the JSON of v, with its type and version.
func EncodeValue(v Value) (json.RawMessage, error) {
	if v == nil {
		return nil, errors.New("value is nil")
	}
	if unknown, ok := v.(UnknownValue); ok {
		return compact(unknown.Raw)
	}
	return encodeTyped(v.ValueKind(), v)
}

// DecodeValue reads what [EncodeValue] wrote. A kind that it does not know
// yields an [UnknownValue], which keeps raw; a malformed body is an error.
func DecodeValue(raw json.RawMessage) (Value, error) {
	value, err := decodeValue(raw)
	if _, unknown := value.(UnknownValue); unknown && !json.Valid(raw) {
		return nil, errNoJSON
	}
	return value, err
}
