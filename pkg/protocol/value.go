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

// FilesReadResult answers [FilesRead].
type FilesReadResult struct {
	Path    string `json:"path"`
	Content Bytes  `json:"content"`
	// SHA256 is of the whole file, in hex.
	SHA256 string `json:"sha256"`
	// Bytes is the size of the whole file.
	Bytes int64 `json:"bytes"`
	// FirstLine is the number of the first line in Content, from 1; 0 when there is none.
	FirstLine  int `json:"first_line"`
	Lines      int `json:"lines"`
	TotalLines int `json:"total_lines"`
	// Truncated says that lines after the last one in Content were asked for but did not fit.
	Truncated bool `json:"truncated,omitempty"`
	// Binary says that the file has NUL bytes or is not UTF-8; lines are not counted then.
	Binary bool `json:"binary,omitempty"`
}

// FilesWriteResult answers [FilesWrite].
type FilesWriteResult struct {
	Path    string `json:"path"`
	Bytes   int64  `json:"bytes"`
	SHA256  string `json:"sha256"`
	Created bool   `json:"created"`
	// Diff is a short unified diff of what changed; empty for binary content.
	Diff string `json:"diff,omitempty"`
}

// FilesEditResult answers [FilesEdit].
type FilesEditResult struct {
	Path         string `json:"path"`
	Replacements int    `json:"replacements"`
	Bytes        int64  `json:"bytes"`
	SHA256       string `json:"sha256"`
	Diff         string `json:"diff,omitempty"`
}

// FileType says what is at a path.
type FileType string

// Every file type.
const (
	TypeFile    FileType = "file"
	TypeDir     FileType = "dir"
	TypeSymlink FileType = "symlink"
	TypeOther   FileType = "other"
)

// DirEntry is one name in a directory.
type DirEntry struct {
	Name string   `json:"name"`
	Type FileType `json:"type"`
	Size int64    `json:"size"`
}

// FilesListResult answers [FilesList]; entries are sorted by name.
type FilesListResult struct {
	Path    string     `json:"path"`
	Entries []DirEntry `json:"entries"`
	// Total is how many entries there are; more than len(Entries) when cut.
	Total int `json:"total"`
}

// FilesExistsResult answers [FilesExists].
type FilesExistsResult struct {
	Path   string `json:"path"`
	Exists bool   `json:"exists"`
	// Type is not "type" on the wire: that is the name of the value itself.
	Type FileType `json:"file_type,omitempty"`
	Size int64    `json:"size,omitempty"`
}

// Match is one matching line.
type Match struct {
	Path string `json:"path"`
	Line int    `json:"line"` // from 1
	Text string `json:"text"`
}

// FilesSearchResult answers [FilesSearch]; matches are sorted by path and line.
type FilesSearchResult struct {
	Matches []Match `json:"matches"`
	// Truncated says that there were more matches than are listed.
	Truncated bool `json:"truncated,omitempty"`
	// Files is how many files were searched, Skipped how many were not (binary, too big, unreadable).
	Files   int `json:"files"`
	Skipped int `json:"skipped"`
}

// WorkspaceImportResult answers [WorkspaceImport].
type WorkspaceImportResult struct {
	Files int   `json:"files"`
	Bytes int64 `json:"bytes"`
}

// WorkspaceExportResult answers [WorkspaceExport].
type WorkspaceExportResult struct {
	Blob  string `json:"blob"`
	Files int    `json:"files"`
	Bytes int64  `json:"bytes"`
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
func (FilesReadResult) ValueKind() Kind { return KindFilesRead }

// ValueKind implements [Value].
func (FilesWriteResult) ValueKind() Kind { return KindFilesWrite }

// ValueKind implements [Value].
func (FilesEditResult) ValueKind() Kind { return KindFilesEdit }

// ValueKind implements [Value].
func (FilesListResult) ValueKind() Kind { return KindFilesList }

// ValueKind implements [Value].
func (FilesExistsResult) ValueKind() Kind { return KindFilesExists }

// ValueKind implements [Value].
func (FilesSearchResult) ValueKind() Kind { return KindFilesSearch }

// ValueKind implements [Value].
func (WorkspaceImportResult) ValueKind() Kind { return KindWorkspaceImport }

// ValueKind implements [Value].
func (WorkspaceExportResult) ValueKind() Kind { return KindWorkspaceExport }

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
		return unknown.Raw, nil
	}
	return encodeTyped(v.ValueKind(), v)
}

// DecodeValue reads what [EncodeValue] wrote. A kind that it does not know
// yields an [UnknownValue].
func DecodeValue(raw json.RawMessage) (Value, error) {
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
	case KindProcessKill:
		return decodeValueAs[ProcessKillResult](kind, raw)
	case KindResultRead:
		return decodeValueAs[ResultReadResult](kind, raw)
	case KindFilesRead:
		return decodeValueAs[FilesReadResult](kind, raw)
	case KindFilesWrite:
		return decodeValueAs[FilesWriteResult](kind, raw)
	case KindFilesEdit:
		return decodeValueAs[FilesEditResult](kind, raw)
	case KindFilesList:
		return decodeValueAs[FilesListResult](kind, raw)
	case KindFilesExists:
		return decodeValueAs[FilesExistsResult](kind, raw)
	case KindFilesSearch:
		return decodeValueAs[FilesSearchResult](kind, raw)
	case KindWorkspaceImport:
		return decodeValueAs[WorkspaceImportResult](kind, raw)
	case KindWorkspaceExport:
		return decodeValueAs[WorkspaceExportResult](kind, raw)
	case KindTurnRun:
		return decodeValueAs[TurnRunResult](kind, raw)
	case KindNoop:
		return decodeValueAs[NoopResult](kind, raw)
	case KindStored:
		return decodeValueAs[Stored](kind, raw)
	default:
		return UnknownValue{Name: kind, Raw: raw}, nil
	}
}

func decodeValueAs[T Value](kind Kind, raw json.RawMessage) (Value, error) {
	var v T
	if err := json.Unmarshal(raw, &v); err != nil {
		return nil, fmt.Errorf("%s: %w", kind, err)
	}
	return v, nil
}
