package sandbox

import (
	"context"
	"fmt"
)

// Limits of file operations.
const (
	// MaxFileSize is the largest file that is read, edited or written, in bytes.
	MaxFileSize = 16 << 20
	// MaxReadBytes is the most content that one Read returns.
	MaxReadBytes = 256 << 10
	// MaxEntries is the most directory entries that one List returns.
	MaxEntries = 2000
	// MaxMatches is the most lines that one Search returns.
	MaxMatches = 500
	// MaxMatchText is where a matching line is cut, in bytes.
	MaxMatchText = 500
)

// FS is the file operations of a workspace. Paths are slash-separated and
// relative to it; "/workspace" and "/workspace/..." are accepted for it. Nothing
// outside is reached, whatever symlinks say. Expected failures are a *[Fault].
type FS interface {
	// Read returns a regular file, whole or some of its lines.
	Read(ctx context.Context, req ReadRequest) (ReadResult, error)
	// Write replaces a file atomically, making its parents and keeping its mode. A
	// symlink inside the workspace is followed. Hard links are separated.
	Write(ctx context.Context, path string, content []byte) (WriteResult, error)
	// Edit replaces text in a file, atomically. On failure the file is unchanged.
	Edit(ctx context.Context, req EditRequest) (EditResult, error)
	// List returns the entries of a directory, sorted by name.
	List(ctx context.Context, path string) (ListResult, error)
	// Stat tells what is at a path, without following a symlink at its end.
	// Nothing there is no fault.
	Stat(ctx context.Context, path string) (StatResult, error)
	// Search finds lines that match a regular expression. Below a directory it
	// follows no symlinks and enters no ".git".
	Search(ctx context.Context, req SearchRequest) (SearchResult, error)
}

// FaultCode says what kind of fault a file operation met, in the words of the wire.
type FaultCode string

// Every fault code.
const (
	FaultEscape         FaultCode = "path_escape"
	FaultInvalidPath    FaultCode = "invalid_path"
	FaultInvalidPattern FaultCode = "invalid_pattern"
	FaultNotFound       FaultCode = "not_found"
	FaultIsDirectory    FaultCode = "is_directory"
	FaultNotDirectory   FaultCode = "not_directory"
	FaultNotRegular     FaultCode = "not_regular_file"
	FaultPermission     FaultCode = "permission_denied"
	FaultEditNotFound   FaultCode = "edit_not_found"
	FaultEditNotUnique  FaultCode = "edit_not_unique"
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

// ReadRequest asks for a file.
type ReadRequest struct {
	Path   string
	Offset int // first line, from 1; 0 and less means 1
	Limit  int // number of lines; 0 and less means as many as fit
}

// ReadResult is what Read found.
type ReadResult struct {
	Content    []byte // bytes as they are in the file, line ends included
	SHA256     string // of the whole file, in hex
	Size       int64  // of the whole file
	FirstLine  int    // number of the first line in Content, from 1; 0 when there is none
	Lines      int    // lines in Content
	TotalLines int
	Truncated  bool // lines that were asked for did not fit
	Binary     bool // has a NUL byte or is not UTF-8; not counted in lines
}

// WriteResult is what Write did.
type WriteResult struct {
	Size    int64
	SHA256  string
	Created bool
	Diff    string // short unified diff; empty for binary content
}

// EditRequest asks for a replacement.
type EditRequest struct {
	Path, Old, New string
	All            bool // every occurrence; else Old must occur exactly once
}

// EditResult is what Edit did.
type EditResult struct {
	Replacements int
	Size         int64
	SHA256       string
	Diff         string
}

// FileType says what something in a workspace is: file, dir, symlink or other.
type FileType string

// The file types.
const (
	TypeFile    FileType = "file"
	TypeDir     FileType = "dir"
	TypeSymlink FileType = "symlink"
	TypeOther   FileType = "other"
)

// Entry is one name in a directory.
type Entry struct {
	Name string
	Type FileType
	Size int64 // in bytes; 0 when it is not a file
}

// ListResult is the entries of a directory.
type ListResult struct {
	Entries []Entry
	Total   int // more than len(Entries) when cut at [MaxEntries]
}

// StatResult is what is at a path.
type StatResult struct {
	Exists bool
	Type   FileType
	Size   int64 // in bytes; 0 when it is not a file
}

// SearchRequest asks for matching lines.
type SearchRequest struct {
	Pattern string // RE2 syntax
	Path    string // file or directory; "" is the workspace
	Glob    string // keeps files whose path below Path, or base name when the glob has no slash, matches
}

// Match is one matching line.
type Match struct {
	Path string
	Line int    // from 1
	Text string // without its line end, valid UTF-8, cut at [MaxMatchText]
}

// SearchResult is the matching lines, sorted by path and line.
type SearchResult struct {
	Matches   []Match
	Truncated bool // there were more than [MaxMatches]
	Files     int  // searched
	Skipped   int  // binary, too big or unreadable
}
