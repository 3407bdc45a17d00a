package wire

import "github.com/toolfleet/toolfleet/pkg/protocol"

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
	At protocol.CallID `json:"at"`
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
