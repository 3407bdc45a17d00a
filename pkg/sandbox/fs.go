package sandbox

import (
	"context"
	"fmt"

	"github.com/toolfleet/toolfleet/internal/sandbox/lines"
)

// Limits of file operations.
const (
	// MaxFileSize is the largest file that is edited or written, in bytes.
	MaxFileSize = 16 << 20
	// MaxReadSize is the largest file that is read, in bytes: it is read to its end for its digest.
	MaxReadSize = 1 << 30
	// MaxReadBytes is the most content that one Read returns.
	MaxReadBytes = lines.MaxContent
	// MaxImageSize is the largest image that Read returns whole.
	MaxImageSize = 4 << 20
	// MaxChunk is the most that one ReadAt returns.
	MaxChunk = 1 << 20
	// MaxFound is the most entries, paths or lines that one List, Tree, Glob or Search
	// returns. What is beyond that is counted.
	MaxFound = 100_000
	// MaxFoundBytes is the most that the paths and texts of one Tree, Glob or Search have together.
	MaxFoundBytes = 16 << 20
	// MaxEdits is the most replacements that one Edit makes.
	MaxEdits = 200
	// MaxPatch is the largest patch, in bytes.
	MaxPatch = 4 << 20
)

// FS is the file operations of a workspace. Paths are slash-separated and
// relative to it; "/workspace" and "/workspace/..." are accepted for it. Nothing
// outside is reached, whatever symlinks say. Expected failures are a *[Fault].
//
// Requests and results are plain data: [ServeFiles] and [RemoteFS] carry them to
// another process.
type FS interface {
	// Read returns a regular file, whole or some of its lines.
	Read(ctx context.Context, req ReadRequest) (ReadResult, error)
	// ReadAt returns bytes of a regular file as they are, text or not.
	ReadAt(ctx context.Context, req ReadAtRequest) (ReadAtResult, error)
	// Write replaces a file atomically, making its parents and keeping its mode. A
	// symlink inside the workspace is followed. Hard links are separated.
	Write(ctx context.Context, req WriteRequest) (WriteResult, error)
	// Edit changes parts of a file, atomically. On failure the file is unchanged.
	Edit(ctx context.Context, req EditRequest) (EditResult, error)
	// ReadJSON returns a JSON document, or one place of it.
	ReadJSON(ctx context.Context, req ReadJSONRequest) (ReadJSONResult, error)
	// WriteJSON replaces a JSON document atomically, or one place of it; everything
	// else in the file stays as it is, byte by byte.
	WriteJSON(ctx context.Context, req WriteJSONRequest) (WriteResult, error)
	// Stat tells what is at a path, without following a symlink at its end.
	// Nothing there is no fault.
	Stat(ctx context.Context, req StatRequest) (StatResult, error)
	// List returns the entries of a directory, sorted by name.
	List(ctx context.Context, req ListRequest) (ListResult, error)
	// Tree returns a directory and what is below it, as deep as is asked for.
	Tree(ctx context.Context, req TreeRequest) (TreeResult, error)
	// Glob finds files by their paths. It follows no symlinks and enters no ".git".
	Glob(ctx context.Context, req GlobRequest) (GlobResult, error)
	// Search finds lines that match a regular expression. Below a directory it
	// follows no symlinks and enters no ".git".
	Search(ctx context.Context, req SearchRequest) (SearchResult, error)
	// Within returns the same operations, bound to some places of the workspace. Each of
	// roots has to allow what an operation reaches once every symbolic link is followed;
	// none of them is no bound. What is not allowed is the fault [FaultDenied].
	Within(roots ...Roots) FS
}

// Roots are the places of a workspace that file operations may reach: files and
// directories with all that is below them, as relative paths in canonical form; "" is the
// workspace. A root that is a symbolic link allows nothing by itself.
type Roots struct {
	Read  []string // may be read
	Write []string // may be changed, and read
}

// FaultCode says what kind of fault a file operation met, in the words of the wire.
type FaultCode string

// Every fault code.
const (
	FaultEscape         FaultCode = "path_escape"
	FaultInvalidPath    FaultCode = "invalid_path"
	FaultInvalidPattern FaultCode = "invalid_pattern"
	FaultInvalidPatch   FaultCode = "invalid_patch"
	FaultInvalidJSON    FaultCode = "invalid_json"
	FaultNotFound       FaultCode = "not_found"
	FaultIsDirectory    FaultCode = "is_directory"
	FaultNotDirectory   FaultCode = "not_directory"
	FaultNotRegular     FaultCode = "not_regular_file"
	FaultPermission     FaultCode = "permission_denied"
	FaultProtected      FaultCode = "protected"
	FaultEditNotFound   FaultCode = "edit_not_found"
	FaultEditNotUnique  FaultCode = "edit_not_unique"
	FaultFileChanged    FaultCode = "file_changed"
	FaultFileNotRead    FaultCode = "file_not_read"
	FaultDenied         FaultCode = "policy_denied"
	FaultTooLarge       FaultCode = "too_large"
	FaultCommand        FaultCode = "command_not_found"
	FaultArguments      FaultCode = "invalid_tool_arguments"
	FaultFailed         FaultCode = "tool_failed"
)

// Fault is an expected failure: the caller's request was wrong or the file
// system said no. Message says what to do next.
type Fault struct { //nolint:errname // "fault" is the word for it
	Code    FaultCode
	Message string
}

// Error implements the error interface.
func (f *Fault) Error() string { return string(f.Code) + ": " + f.Message }

// ErrorType returns the code.
func (f *Fault) ErrorType() string { return string(f.Code) }

// Faultf makes a [Fault] with a formatted message.
func Faultf(code FaultCode, format string, args ...any) *Fault {
	return &Fault{Code: code, Message: fmt.Sprintf(format, args...)}
}
