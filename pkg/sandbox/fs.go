package sandbox

import (
	"context"
	"time"

	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// FS is the file operations of a workspace. Requests and results are the payloads and values of the
// fleet. Paths are slash-separated and relative to the workspace; "/workspace" and "/workspace/..."
// are accepted for it. Nothing outside is reached, whatever symlinks say. Expected failures are a
// *[protocol.Error].
//
// Operations that change a file check ExpectSHA256. Without it, [protocol.GuardRead] requires that
// the file does not exist: the caller does not know its content. Other guards have no effect here.
type FS interface {
	// Read returns a regular file, whole or some of its lines.
	Read(ctx context.Context, p protocol.FilesRead) (protocol.FilesReadResult, error)
	// ReadAt returns count bytes of a regular file as they are, text or not, from an offset; fewer
	// only where the file ends. 0 and less, and more than 1 MiB, means 1 MiB.
	ReadAt(ctx context.Context, path string, from int64, count int) ([]byte, error)
	// Write replaces a file atomically, making its parents and keeping its mode. A
	// symlink inside the workspace is followed. Hard links are separated.
	Write(ctx context.Context, p protocol.FilesWrite) (protocol.FilesWriteResult, error)
	// Edit changes parts of a file, atomically. On failure the file is unchanged. Line ends are not
	// compared, and new lines get those of the file, unless line ends are all that differs between
	// the old text and the new one.
	Edit(ctx context.Context, p protocol.FilesEdit) (protocol.FilesEditResult, error)
	// ReadJSON returns a JSON document, or one place of it.
	ReadJSON(ctx context.Context, p protocol.FilesJSONRead) (protocol.FilesJSONReadResult, error)
	// WriteJSON replaces a JSON document atomically, or one place of it; everything else in the
	// file stays as it is, byte by byte. The last step of the query may be a key that an object
	// does not have yet, or the end of an array ("-" or its length).
	WriteJSON(ctx context.Context, p protocol.FilesJSONWrite) (protocol.FilesJSONWriteResult, error)
	// Stat returns what is at a path, without following a symlink at its end. It does not fail when
	// nothing is there.
	Stat(ctx context.Context, p protocol.FilesExists) (protocol.FilesExistsResult, error)
	// List returns the entries of a directory, sorted by name.
	List(ctx context.Context, p protocol.FilesList) (protocol.FilesListResult, error)
	// Tree returns a directory and what is below it, as deep as requested.
	Tree(ctx context.Context, p protocol.FilesTree) (protocol.FilesTreeResult, error)
	// Glob finds files by their paths: everything but directories. It follows no symlinks and
	// enters no ".git".
	Glob(ctx context.Context, p protocol.FilesGlob) (protocol.FilesGlobResult, error)
	// Search finds lines that match a regular expression. Below a directory it follows no symlinks
	// and enters no ".git". After patience it returns what it has found; 0 is no limit.
	Search(ctx context.Context, p protocol.FilesSearch, patience time.Duration) (protocol.FilesSearchResult, error)
	// Within returns the same operations, limited to some paths of the workspace. Each of roots
	// must allow what an operation reaches once every symbolic link is followed. Without roots
	// there is no limit. A root that is a symbolic link allows nothing by itself. What is not
	// allowed fails with [protocol.CodePolicyDenied].
	Within(roots ...protocol.Roots) FS
}
