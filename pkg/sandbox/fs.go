package sandbox

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// FS is the file operations of a workspace. [FS.Do] does each of them; the other methods are Do
// with the types of one operation. Payloads and values are those of the fleet. Paths are
// slash-separated and relative to the workspace; "/workspace" and "/workspace/..." are accepted for
// it. Nothing outside is reached, whatever symlinks say. Expected failures are a *[protocol.Error].
//
// Operations that change a file check ExpectSHA256. Without it, [protocol.GuardRead] requires that
// the file does not exist: the caller does not know its content. Other guards have no effect here.
type FS struct {
	do    FileFunc
	roots []protocol.Roots
}

// FileFunc does one file operation within roots, and returns its value. The type of the payload
// says which operation. It must be safe for concurrent use.
type FileFunc func(ctx context.Context, payload protocol.Payload, roots []protocol.Roots) (protocol.Value, error)

// Payloads of the operations that are not calls of the fleet by themselves.
type (
	// FilesReadAt is the payload of [FS.ReadAt].
	FilesReadAt struct {
		Path  string
		From  int64
		Count int
	}
	// FilesSearch is the payload of [FS.Search].
	FilesSearch struct {
		protocol.FilesSearch

		Patience time.Duration
	}
)

// NewFS returns the file operations that a function does, for a [Sandbox] of one's own.
func NewFS(do FileFunc) FS { return FS{do: do} }

// Do does the operation of a payload, such as [protocol.FilesRead], and returns its value, such as
// [protocol.FilesReadResult].
func (f FS) Do(ctx context.Context, payload protocol.Payload) (protocol.Value, error) {
	return f.do(ctx, payload, f.roots)
}

// typed is Do for an operation whose values have one type.
func typed[V any](ctx context.Context, f FS, payload protocol.Payload) (V, error) {
	value, err := f.Do(ctx, payload)
	if err != nil {
		var none V
		return none, err
	}
	v, ok := value.(V)
	if !ok {
		return v, fmt.Errorf("file operation %T: the value is a %T", payload, value)
	}
	return v, nil
}

// Read returns a regular file, whole or some of its lines.
func (f FS) Read(ctx context.Context, p protocol.FilesRead) (protocol.FilesReadResult, error) {
	return typed[protocol.FilesReadResult](ctx, f, p)
}

// ReadAt returns count bytes of a regular file as they are, text or not, from an offset; fewer
// only where the file ends. 0 and less, and more than 1 MiB, means 1 MiB.
func (f FS) ReadAt(ctx context.Context, path string, from int64, count int) ([]byte, error) {
	return typed[[]byte](ctx, f, FilesReadAt{Path: path, From: from, Count: count})
}

// Write replaces a file atomically, making its parents and keeping its mode. A
// symlink inside the workspace is followed. Hard links are separated.
func (f FS) Write(ctx context.Context, p protocol.FilesWrite) (protocol.FilesWriteResult, error) {
	return typed[protocol.FilesWriteResult](ctx, f, p)
}

// Remove removes a file or a symbolic link, and no directory. A symlink is not followed.
func (f FS) Remove(ctx context.Context, p protocol.FilesRemove) (protocol.FilesRemoveResult, error) {
	return typed[protocol.FilesRemoveResult](ctx, f, p)
}

// Edit changes parts of a file, atomically. On failure the file is unchanged. Line ends are not
// compared, and new lines get those of the file, unless line ends are all that differs between
// the old text and the new one.
func (f FS) Edit(ctx context.Context, p protocol.FilesEdit) (protocol.FilesEditResult, error) {
	return typed[protocol.FilesEditResult](ctx, f, p)
}

// ReadJSON returns a JSON document, or one place of it.
func (f FS) ReadJSON(ctx context.Context, p protocol.FilesJSONRead) (protocol.FilesJSONReadResult, error) {
	return typed[protocol.FilesJSONReadResult](ctx, f, p)
}

// WriteJSON replaces a JSON document atomically, or one place of it; everything else in the
// file stays as it is, byte by byte. The last step of the query may be a key that an object
// does not have yet, or the end of an array ("-" or its length).
func (f FS) WriteJSON(ctx context.Context, p protocol.FilesJSONWrite) (protocol.FilesJSONWriteResult, error) {
	return typed[protocol.FilesJSONWriteResult](ctx, f, p)
}

// Stat returns what is at a path, without following a symlink at its end. It does not fail when
// nothing is there.
func (f FS) Stat(ctx context.Context, p protocol.FilesExists) (protocol.FilesExistsResult, error) {
	return typed[protocol.FilesExistsResult](ctx, f, p)
}

// List returns the entries of a directory, sorted by name.
func (f FS) List(ctx context.Context, p protocol.FilesList) (protocol.FilesListResult, error) {
	return typed[protocol.FilesListResult](ctx, f, p)
}

// Tree returns a directory and what is below it, as deep as requested.
func (f FS) Tree(ctx context.Context, p protocol.FilesTree) (protocol.FilesTreeResult, error) {
	return typed[protocol.FilesTreeResult](ctx, f, p)
}

// Glob finds files by their paths: everything but directories. It follows no symlinks and
// enters no ".git".
func (f FS) Glob(ctx context.Context, p protocol.FilesGlob) (protocol.FilesGlobResult, error) {
	return typed[protocol.FilesGlobResult](ctx, f, p)
}

// Search finds lines that match a regular expression. Below a directory it follows no symlinks
// and enters no ".git". After patience it returns what it has found; 0 is no limit.
func (f FS) Search(ctx context.Context, p protocol.FilesSearch, patience time.Duration) (protocol.FilesSearchResult, error) {
	return typed[protocol.FilesSearchResult](ctx, f, FilesSearch{FilesSearch: p, Patience: patience})
}

// Within returns the same operations, limited to some paths of the workspace. Each of roots
// must allow what an operation reaches once every symbolic link is followed. Without roots
// there is no limit. A root that is a symbolic link allows nothing by itself. What is not
// allowed fails with [protocol.CodePolicyDenied].
func (f FS) Within(roots ...protocol.Roots) FS {
	return FS{do: f.do, roots: slices.Concat(f.roots, roots)}
}
