package protocol

import (
	"encoding/json"
	"fmt"
)

// Kind names a payload and the typed value that answers it; both use one name.
type Kind string

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
	class     Class
	sandboxed bool
	payload   func(raw json.RawMessage) (Payload, error)
	value     func(raw json.RawMessage) (Value, error)
}

// kinds has every kind that this version knows. To add one, define its payload and its value in a
// file, and describe both here; CONTRIBUTING.md has all steps.
var kinds = map[Kind]descriptor{ //nolint:gochecknoglobals // never changed; made once
	KindCommandRun:       describe[CommandRun, CommandRunResult](inSandbox, ClassExecute),
	KindCodeRun:          describe[CodeRun, CodeRunResult](inSandbox, ClassExecute),
	KindProcessList:      describe[ProcessList, ProcessListResult](inSandbox, ClassRead),
	KindProcessRead:      describe[ProcessRead, ProcessReadResult](inSandbox, ClassRead),
	KindProcessSend:      describe[ProcessSend, ProcessSendResult](inSandbox, ClassExecute),
	KindProcessKill:      describe[ProcessKill, ProcessKillResult](inSandbox, ClassExecute),
	KindFilesRead:        describe[FilesRead, FilesReadResult](inSandbox, ClassRead),
	KindFilesWrite:       describe[FilesWrite, FilesWriteResult](inSandbox, ClassWrite),
	KindFilesEdit:        describe[FilesEdit, FilesEditResult](inSandbox, ClassWrite),
	KindFilesJSONRead:    describe[FilesJSONRead, FilesJSONReadResult](inSandbox, ClassRead),
	KindFilesJSONWrite:   describe[FilesJSONWrite, FilesJSONWriteResult](inSandbox, ClassWrite),
	KindFilesExists:      describe[FilesExists, FilesExistsResult](inSandbox, ClassRead),
	KindFilesList:        describe[FilesList, FilesListResult](inSandbox, ClassRead),
	KindFilesTree:        describe[FilesTree, FilesTreeResult](inSandbox, ClassRead),
	KindFilesGlob:        describe[FilesGlob, FilesGlobResult](inSandbox, ClassRead),
	KindFilesSearch:      describe[FilesSearch, FilesSearchResult](inSandbox, ClassRead),
	KindResultRead:       describe[ResultRead, ResultReadResult](outside, ClassRead),
	KindToolRun:          describe[ToolRun, ToolRunResult](inSandbox, ClassNone),
	KindMCPList:          describe[MCPList, MCPListResult](inSandbox, ClassNone),
	KindMCPCall:          describe[MCPCall, MCPCallResult](inSandbox, ClassNone),
	KindDialogOpen:       describe[DialogOpen, DialogOpenResult](outside, ClassNone),
	KindDialogContinue:   describe[DialogContinue, DialogContinueResult](outside, ClassNone),
	KindDialogEnd:        describe[DialogEnd, DialogEndResult](outside, ClassNone),
	KindWorkspaceImport:  describe[WorkspaceImport, WorkspaceImportResult](inSandbox, ClassNone),
	KindWorkspaceExport:  describe[WorkspaceExport, WorkspaceExportResult](inSandbox, ClassNone),
	KindWorkspaceRemove:  describe[WorkspaceRemove, WorkspaceRemoveResult](inSandbox, ClassNone),
	KindWorkspaceRestore: describe[WorkspaceRestore, WorkspaceRestoreResult](inSandbox, ClassNone),
	KindTurnRun:          describe[TurnRun, TurnRunResult](outside, ClassNone),
	KindNoop:             describe[Noop, NoopResult](outside, ClassNone),
	KindHTTPFetch:        describe[HTTPFetch, HTTPFetchResult](outside, ClassNone),
	KindStored:           describe[Stored, Stored](inSandbox, ClassNone),
}

// describe is the descriptor of a kind with a type of payload and of value.
func describe[P Payload, V Value](sandboxed bool, class Class) descriptor {
	return descriptor{
		class: class, sandboxed: sandboxed,
		payload: func(raw json.RawMessage) (Payload, error) {
			var p P
			if err := unmarshal(raw, &p); err != nil {
				return nil, fmt.Errorf("%s: %w", p.Kind(), err)
			}
			return p, nil
		},
		value: func(raw json.RawMessage) (Value, error) {
			var v V
			if err := unmarshal(raw, &v); err != nil {
				return nil, fmt.Errorf("%s: %w", v.ValueKind(), err)
			}
			return v, nil
		},
	}
}

// Class returns the class of a kind. It is [ClassNone] for unknown kinds: those of a program's own
// handlers.
func (k Kind) Class() Class { return kinds[k].class }

// Sandboxed reports whether the calls of a kind run in a sandbox or work on its files. Those of a
// program's own kinds run in the worker's process.
func (k Kind) Sandboxed() bool { return kinds[k].sandboxed }

// decodePayload is [DecodePayload] for what is part of a body that has been read, and so is JSON.
func decodePayload(raw json.RawMessage) (Payload, error) {
	kind, err := kindOf(raw)
	if err != nil {
		return nil, err
	}
	if known, ok := kinds[kind]; ok {
		return known.payload(raw)
	}
	return UnknownPayload{Name: kind, Raw: raw}, nil
}

// decodeValue is [DecodeValue] for what is part of a body that has been read, and so is JSON.
func decodeValue(raw json.RawMessage) (Value, error) {
	kind, err := kindOf(raw)
	if err != nil {
		return nil, err
	}
	if known, ok := kinds[kind]; ok {
		return known.value(raw)
	}
	return UnknownValue{Name: kind, Raw: raw}, nil
}
