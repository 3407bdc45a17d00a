package wire

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"

	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Every kind that this version knows.
const (
	KindCommandRun       protocol.Kind = "command_run"
	KindCodeRun          protocol.Kind = "code_run"
	KindProcessList      protocol.Kind = "process_list"
	KindProcessRead      protocol.Kind = "process_read"
	KindProcessSend      protocol.Kind = "process_send"
	KindProcessKill      protocol.Kind = "process_kill"
	KindResultRead       protocol.Kind = "result_read"
	KindToolRun          protocol.Kind = "tool_run"
	KindMCPList          protocol.Kind = "mcp_list"
	KindMCPCall          protocol.Kind = "mcp_call"
	KindDialogOpen       protocol.Kind = "dialog_open"
	KindDialogContinue   protocol.Kind = "dialog_continue"
	KindDialogEnd        protocol.Kind = "dialog_end"
	KindWorkspaceImport  protocol.Kind = "workspace_import"
	KindWorkspaceExport  protocol.Kind = "workspace_export"
	KindWorkspaceRemove  protocol.Kind = "workspace_remove"
	KindWorkspaceRestore protocol.Kind = "workspace_restore"
	KindWorkspaceFork    protocol.Kind = "workspace_fork"
	KindWorkspaceMerge   protocol.Kind = "workspace_merge"
	KindTurnRun          protocol.Kind = "turn_run"
	KindNoop             protocol.Kind = "noop"
	KindStored           protocol.Kind = "stored"
	KindFilesRead        protocol.Kind = "files_read"
	KindFilesWrite       protocol.Kind = "files_write"
	KindFilesEdit        protocol.Kind = "files_edit"
	KindFilesJSONRead    protocol.Kind = "files_json_read"
	KindFilesJSONWrite   protocol.Kind = "files_json_write"
	KindFilesExists      protocol.Kind = "files_exists"
	KindFilesList        protocol.Kind = "files_list"
	KindFilesTree        protocol.Kind = "files_tree"
	KindFilesGlob        protocol.Kind = "files_glob"
	KindFilesSearch      protocol.Kind = "files_search"
	KindHTTPFetch        protocol.Kind = "http_fetch"
)

// Class says what the calls of a kind do, for rules that hold for the tools of every toolset.
type Class string

// The classes.
const (
	// ClassNone is that of kinds that no rule for a class is about.
	ClassNone Class = ""
	// ClassExecute runs programs that the model chooses, writes to them, or ends them.
	ClassExecute Class = "execute"
	// ClassWrite changes files by the tool itself.
	ClassWrite Class = "write"
	// ClassRead returns files, processes and results.
	ClassRead Class = "read"
)

// Where the calls of a kind run.
const (
	inSandbox = true  // in a sandbox, or on its files
	outside   = false // in the process of the worker or of a coordinator
)

// descriptor is what the engine, the policies and the codecs know of a kind.
type descriptor struct {
	class                      Class
	sandboxed                  bool
	payload, value             reflect.Type
	decodePayload, decodeValue func(raw json.RawMessage) (any, error)
}

// kinds has every kind that this version knows. To add one, define its payload and its value in a
// file, and describe both here; CONTRIBUTING.md has all steps.
var kinds = map[protocol.Kind]descriptor{ //nolint:gochecknoglobals // a constant table
	KindCommandRun:       describe[protocol.CommandRun, protocol.CommandRunResult](inSandbox, ClassExecute),
	KindCodeRun:          describe[protocol.CodeRun, protocol.CodeRunResult](inSandbox, ClassExecute),
	KindProcessList:      describe[ProcessList, ProcessListResult](inSandbox, ClassRead),
	KindProcessRead:      describe[ProcessRead, ProcessReadResult](inSandbox, ClassRead),
	KindProcessSend:      describe[ProcessSend, ProcessSendResult](inSandbox, ClassExecute),
	KindProcessKill:      describe[ProcessKill, ProcessKillResult](inSandbox, ClassExecute),
	KindFilesRead:        describe[protocol.FilesRead, protocol.FilesReadResult](inSandbox, ClassRead),
	KindFilesWrite:       describe[protocol.FilesWrite, protocol.FilesWriteResult](inSandbox, ClassWrite),
	KindFilesEdit:        describe[protocol.FilesEdit, protocol.FilesEditResult](inSandbox, ClassWrite),
	KindFilesJSONRead:    describe[protocol.FilesJSONRead, protocol.FilesJSONReadResult](inSandbox, ClassRead),
	KindFilesJSONWrite:   describe[protocol.FilesJSONWrite, protocol.FilesJSONWriteResult](inSandbox, ClassWrite),
	KindFilesExists:      describe[protocol.FilesExists, protocol.FilesExistsResult](inSandbox, ClassRead),
	KindFilesList:        describe[protocol.FilesList, protocol.FilesListResult](inSandbox, ClassRead),
	KindFilesTree:        describe[protocol.FilesTree, protocol.FilesTreeResult](inSandbox, ClassRead),
	KindFilesGlob:        describe[protocol.FilesGlob, protocol.FilesGlobResult](inSandbox, ClassRead),
	KindFilesSearch:      describe[protocol.FilesSearch, protocol.FilesSearchResult](inSandbox, ClassRead),
	KindResultRead:       describe[ResultRead, ResultReadResult](outside, ClassRead),
	KindToolRun:          describe[protocol.ToolRun, protocol.ToolRunResult](inSandbox, ClassNone),
	KindMCPList:          describe[MCPList, MCPListResult](inSandbox, ClassNone),
	KindMCPCall:          describe[protocol.MCPCall, protocol.MCPCallResult](inSandbox, ClassNone),
	KindDialogOpen:       describe[DialogOpen, DialogOpenResult](outside, ClassNone),
	KindDialogContinue:   describe[DialogContinue, DialogContinueResult](outside, ClassNone),
	KindDialogEnd:        describe[DialogEnd, DialogEndResult](outside, ClassNone),
	KindWorkspaceImport:  describe[WorkspaceImport, WorkspaceImportResult](inSandbox, ClassNone),
	KindWorkspaceExport:  describe[WorkspaceExport, WorkspaceExportResult](inSandbox, ClassNone),
	KindWorkspaceRemove:  describe[WorkspaceRemove, WorkspaceRemoveResult](inSandbox, ClassNone),
	KindWorkspaceRestore: describe[WorkspaceRestore, WorkspaceRestoreResult](inSandbox, ClassNone),
	KindWorkspaceFork:    describe[WorkspaceFork, WorkspaceForkResult](inSandbox, ClassNone),
	KindWorkspaceMerge:   describe[WorkspaceMerge, WorkspaceMergeResult](inSandbox, ClassNone),
	KindTurnRun:          describe[TurnRun, TurnRunResult](outside, ClassNone),
	KindNoop:             describe[Noop, NoopResult](outside, ClassNone),
	KindHTTPFetch:        describe[protocol.HTTPFetch, protocol.HTTPFetchResult](outside, ClassNone),
	KindStored:           describe[Stored, Stored](inSandbox, ClassNone),
}

// describe is the descriptor of a kind with a type of payload and of value.
func describe[P, V any](sandboxed bool, class Class) descriptor {
	return descriptor{class, sandboxed, reflect.TypeFor[P](), reflect.TypeFor[V](), decodeAs[P], decodeAs[V]}
}

func decodeAs[T any](raw json.RawMessage) (any, error) {
	var v T
	err := unmarshal(raw, &v)
	return v, err
}

// payloadKinds and valueKinds are the kinds by the types of their payloads and values.
var payloadKinds, valueKinds = kindsByType() //nolint:gochecknoglobals // constant tables

func kindsByType() (payloads, values map[reflect.Type]protocol.Kind) {
	payloads, values = map[reflect.Type]protocol.Kind{}, map[reflect.Type]protocol.Kind{}
	for kind, d := range kinds {
		payloads[d.payload], values[d.value] = kind, kind
	}
	return payloads, values
}

// KindOf returns the kind of a payload; "" when it is none.
func KindOf(p protocol.Payload) protocol.Kind {
	if unknown, ok := p.(protocol.UnknownPayload); ok {
		return unknown.Name
	}
	return payloadKinds[reflect.TypeOf(p)]
}

// ValueKindOf returns the kind of a value; "" when it is none.
func ValueKindOf(v protocol.Value) protocol.Kind {
	if unknown, ok := v.(protocol.UnknownValue); ok {
		return unknown.Name
	}
	return valueKinds[reflect.TypeOf(v)]
}

// ClassOf returns the class of a kind. It is [ClassNone] for unknown kinds: those of a program's
// own handlers.
func ClassOf(kind protocol.Kind) Class { return kinds[kind].class }

// Sandboxed reports whether the calls of a kind run in a sandbox or work on its files. Those of a
// program's own kinds run in the worker's process.
func Sandboxed(kind protocol.Kind) bool { return kinds[kind].sandboxed }

// MaxKindLength bounds the kind of a payload of a user's own, in bytes.
const MaxKindLength = 64

// ErrInvalidKind is wrapped by the errors of [ParseUserKind].
var ErrInvalidKind = errors.New("invalid payload kind")

// userBody is the JSON of a payload or a value of a kind of a user's own. The user's part is one
// field, so that its names never meet those of the envelope.
type userBody struct {
	Arguments json.RawMessage `json:"arguments,omitempty"`
	Output    json.RawMessage `json:"output,omitempty"`
}

// ParseUserKind checks a kind for payloads of a user's own: 1 to [MaxKindLength]
// lower-case letters, digits and '_', and not a kind of this package. The error
// wraps [ErrInvalidKind].
func ParseUserKind(s string) (protocol.Kind, error) {
	if len(s) > MaxKindLength || !plainName([]byte(s)) {
		return "", fmt.Errorf("%w %q: must be 1 to %d lower-case letters, digits and '_'", ErrInvalidKind, s, MaxKindLength)
	}
	known, err := DecodePayload(json.RawMessage(typePrefix + s + `"}`))
	if _, unknown := known.(protocol.UnknownPayload); err != nil || !unknown {
		return "", fmt.Errorf("%w %q: is a built-in payload: choose another name", ErrInvalidKind, s)
	}
	return protocol.Kind(s), nil
}

// NewUserPayload makes a payload of a kind of a user's own, which a worker with a
// handler for that kind executes. arguments is a JSON value. The kind must be one
// that [ParseUserKind] takes.
func NewUserPayload(kind protocol.Kind, arguments json.RawMessage) (protocol.UnknownPayload, error) {
	raw, err := encodeTyped(kind, userBody{Arguments: arguments})
	return protocol.UnknownPayload{Name: kind, Raw: raw}, err
}

// NewUserValue makes the value that answers a payload of a kind of a user's own.
// output is a JSON value.
func NewUserValue(kind protocol.Kind, output json.RawMessage) (protocol.UnknownValue, error) {
	raw, err := encodeTyped(kind, userBody{Output: output})
	return protocol.UnknownValue{Name: kind, Raw: raw}, err
}
