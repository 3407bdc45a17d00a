package wire

import (
	"github.com/toolfleet/toolfleet/pkg/fleet/report"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

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

// WorkspaceRestore restores a sandbox's workspace, and its shell's directory and variables, as
// after an earlier call. Processes that live in the sandbox are killed.
type WorkspaceRestore struct {
	// At is the call, which changed something.
	At protocol.CallID `json:"at"`
}

// WorkspaceFork begins the workspace of another sandbox with the files that this one has. Done
// twice it does nothing.
type WorkspaceFork struct {
	// To is the id of the other sandbox, which has no workspace yet.
	To string `json:"to"`
}

// WorkspaceMerge brings what changed in a fork of a sandbox's workspace since it began into that
// workspace, all or nothing. Files that changed on both sides stay as they are, unless their texts
// can be merged; the fork's version of them is put next to them. Repositories of git keep what is
// theirs.
type WorkspaceMerge struct {
	// From is the id of the fork's sandbox.
	From string `json:"from"`
	// After is the fork's checkpoint that was merged last, 0 if only the workspace may know.
	After uint64 `json:"after,omitempty"`
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

// WorkspaceForkResult answers [WorkspaceFork].
type WorkspaceForkResult struct {
	Files int   `json:"files"`
	Bytes int64 `json:"bytes"`
}

// WorkspaceMergeResult answers [WorkspaceMerge].
type WorkspaceMergeResult = report.MergedFiles

// WorkspaceRemoveResult answers [WorkspaceRemove].
type WorkspaceRemoveResult struct{}

// WorkspaceRestoreResult answers [WorkspaceRestore].
type WorkspaceRestoreResult struct {
	// Written and Removed are how many files were made anew, and how many paths were removed.
	Written int `json:"written"`
	Removed int `json:"removed"`
}
