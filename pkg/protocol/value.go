package protocol

import (
	"encoding/json"
)

// Value answers a payload: the type with the payload's name and "Result", as a value, or an
// [UnknownValue].
type Value any

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
