package protocol

import (
	"encoding/json"
	"errors"
	"fmt"
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

// decodeValue is [DecodeValue] for what is part of a body that has been read, and so is JSON.
func decodeValue(raw json.RawMessage) (Value, error) {
	kind, err := kindOf(raw)
	if err != nil {
		return nil, err
	}
	switch kind {
	case KindCommandRun:
		return decodeValueAs[CommandRunResult](kind, raw)
	case KindCodeRun:
		return decodeValueAs[CodeRunResult](kind, raw)
	case KindProcessList:
		return decodeValueAs[ProcessListResult](kind, raw)
	case KindProcessRead:
		return decodeValueAs[ProcessReadResult](kind, raw)
	case KindProcessSend:
		return decodeValueAs[ProcessSendResult](kind, raw)
	case KindProcessKill:
		return decodeValueAs[ProcessKillResult](kind, raw)
	case KindResultRead:
		return decodeValueAs[ResultReadResult](kind, raw)
	case KindToolRun:
		return decodeValueAs[ToolRunResult](kind, raw)
	case KindMCPList:
		return decodeValueAs[MCPListResult](kind, raw)
	case KindMCPCall:
		return decodeValueAs[MCPCallResult](kind, raw)
	case KindDialogOpen:
		return decodeValueAs[DialogOpenResult](kind, raw)
	case KindDialogContinue:
		return decodeValueAs[DialogContinueResult](kind, raw)
	case KindDialogEnd:
		return decodeValueAs[DialogEndResult](kind, raw)
	case KindWorkspaceImport:
		return decodeValueAs[WorkspaceImportResult](kind, raw)
	case KindWorkspaceExport:
		return decodeValueAs[WorkspaceExportResult](kind, raw)
	case KindWorkspaceRemove:
		return decodeValueAs[WorkspaceRemoveResult](kind, raw)
	case KindWorkspaceRestore:
		return decodeValueAs[WorkspaceRestoreResult](kind, raw)
	case KindTurnRun:
		return decodeValueAs[TurnRunResult](kind, raw)
	case KindNoop:
		return decodeValueAs[NoopResult](kind, raw)
	case KindStored:
		return decodeValueAs[Stored](kind, raw)
	default:
		return decodeFilesValue(kind, raw)
	}
}

func decodeValueAs[T Value](kind Kind, raw json.RawMessage) (Value, error) {
	var v T
	if err := unmarshal(raw, &v); err != nil {
		return nil, fmt.Errorf("%s: %w", kind, err)
	}
	return v, nil
}
