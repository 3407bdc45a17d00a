// Package files does the operations of a [sandbox.FS] over an [os.Root]. The table in operations.go
// has one row for each: to add one, write its function and a row.
//
// Confinement is the root's: every name is resolved by the kernel from the directory's descriptor,
// one component at a time, so that no symbolic link, and no swap of one while a call runs, leads
// outside. Nothing here checks a path first and opens it later by its name on the host.
//
//	request path ──clean──► relative name ──os.Root──► open, non-blocking
//	                │                        │              │
//	           path_escape,             path_escape   not_regular_file
//	           invalid_path              (symlink)    (FIFO, socket, device)
//
// An absolute link is followed when it begins with the workspace's own name: /workspace, or its
// path in the view of this process.
//
// "." and ".." are resolved in the text of a path, before symbolic links are: a path names the same
// file here as in a resource key.
//
// Files change by rename of a complete temporary file in the same directory: a reader sees the old
// content or the new, and a failure leaves the old. This is about other processes, not about power:
// nothing is flushed to disk. Calls on different files may run side by side; of two calls that
// change one file at once, one change is lost, so callers order them.
//
// What an edit, a patch, a JSON value or the text of a notebook makes of a file's content is pure
// (substitute.go, patch.go, document.go, notebook.go): a name is there for messages only, and what
// cannot be done is a *[protocol.Error] that says what a model can do about it. What ignore files
// exclude is in internal/sandbox/internal/gitignore.
//
// Hard links look like files. A process that makes one into the workspace could read the other file
// anyway.
package files

import (
	"context"
	"fmt"
	"os"
	"reflect"
	"sync"

	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// FS is the file operations of one workspace. It is safe for concurrent use.
type FS struct {
	root   *root
	turns  *turns           // of those who change a file
	bounds []protocol.Roots // of one operation

	protected []string // see Protect
}

// Open returns the file operations of a directory. Absolute symbolic links work that begin
// with its name, with [mount], or with one of the names by which others call it.
func Open(dir string, called ...string) (*FS, error) {
	opened, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("open workspace: %w", err)
	}
	return &FS{root: newRoot(opened, called), turns: &turns{}}, nil
}

// Protect has operations refuse to change what is at or below places, as [isolation.Spec].Protect
// has them in canonical form, with the code protected. It is called before any
// operation. That a command cannot exchange a link meanwhile is up to who makes the places
// read-only.
func (f *FS) Protect(places []string) { f.protected = places }

// Close ends the FS; operations that run finish, later ones return [sandbox.ErrClosed].
func (f *FS) Close() error {
	if err := f.root.Close(); err != nil {
		return fmt.Errorf("close workspace: %w", err)
	}
	return nil
}

// room is how much more an operation may return of what it finds: it finds all, and
// returns the first that fit.
type room struct{ entries, bytes int }

// newRoom is room for limit entries; 0 and less is as many as may be returned at all.
func newRoom(limit int) room {
	r := room{entries: isolation.MaxFound, bytes: isolation.MaxFoundBytes}
	if limit > 0 {
		r.entries = min(r.entries, limit)
	}
	return r
}

// take reserves room for an entry of so many bytes, and reports whether there was any. After the
// first failure there is no room for later entries.
func (r *room) take(bytes int) bool {
	if r.entries < 1 || r.bytes < bytes {
		r.entries = 0
		return false
	}
	r.entries--
	r.bytes -= bytes
	return true
}

// turns lets one change at a time work on a file. Calls that name one file in one way come one
// after the other anyway; with symbolic links it has several names. It is safe for concurrent use.
type turns struct {
	mu    sync.Mutex
	files map[string]*turn // the files that an operation changes or waits for
}

type turn struct {
	mu    sync.Mutex
	users int
}

// take waits until no other call changes the file. The caller ends its turn by done.
func (t *turns) take(name string) (done func()) {
	t.mu.Lock()
	if t.files == nil {
		t.files = map[string]*turn{}
	}
	this := t.files[name]
	if this == nil {
		this = &turn{}
		t.files[name] = this
	}
	this.users++
	t.mu.Unlock()
	this.mu.Lock()
	return func() {
		this.mu.Unlock()
		t.mu.Lock()
		defer t.mu.Unlock()
		if this.users--; this.users == 0 {
			delete(t.files, name)
		}
	}
}

// operations are all file operations, by the names of their payloads' types.
var operations = table( //nolint:gochecknoglobals // a constant table
	at(reading, "read", func(p protocol.FilesRead) string { return p.Path }, (*FS).read),
	at(reading, "read", func(p sandbox.FilesReadAt) string { return p.Path }, (*FS).readAt),
	at(writing, "write", func(p protocol.FilesWrite) string { return p.Path }, (*FS).write),
	operation((*FS).remove), // as stat
	at(writing, "edit", func(p protocol.FilesEdit) string { return p.Path }, (*FS).edit),
	at(reading, "read", func(p protocol.FilesJSONRead) string { return p.Path }, (*FS).readJSON),
	at(writing, "write", func(p protocol.FilesJSONWrite) string { return p.Path }, (*FS).writeJSON),
	at(reading, "list", func(p protocol.FilesList) string { return p.Path }, (*FS).list),
	at(reading, "list", func(p protocol.FilesTree) string { return p.Path }, (*FS).tree),
	at(reading, "search", func(p protocol.FilesGlob) string { return p.Path }, (*FS).glob),
	at(reading, "search", func(p protocol.FilesSearch) string { return p.Path }, (*FS).searchAll),
	at(reading, "search", func(p sandbox.FilesSearch) string { return p.Path }, (*FS).search),
	operation((*FS).stat), // it resolves its path by itself
)

// Operation is what an [FS] does with payloads of one type.
type Operation struct {
	Payload, Value reflect.Type
	do             func(f *FS, ctx context.Context, payload any) (any, error)
}

// Name is the operation's name in the table.
func (o *Operation) Name() string { return o.Payload.String() }

// Find returns an operation by its name.
func Find(name string) (*Operation, error) {
	if op := operations[name]; op != nil {
		return op, nil
	}
	return nil, fmt.Errorf("unknown file operation %q", name)
}

// Of returns the operation of a payload.
func Of(payload protocol.Payload) (*Operation, error) { return Find(fmt.Sprintf("%T", payload)) }

// Do is a [sandbox.FileFunc]. Every error that is to be expected is a *[protocol.Error].
func (f *FS) Do(ctx context.Context, payload protocol.Payload, roots []protocol.Roots) (protocol.Value, error) {
	op, err := Of(payload)
	if err != nil {
		return nil, err
	}
	bound := *f
	bound.bounds = roots
	return op.do(&bound, ctx, payload)
}

func table(all ...*Operation) map[string]*Operation {
	named := make(map[string]*Operation, len(all))
	for _, op := range all {
		named[op.Name()] = op
	}
	return named
}

// at makes a function the operation of its payload's type, which uses the payload's path so. verb
// names it in errors.
func at[P, V any](as use, verb string, pathOf func(P) string, do func(f *FS, ctx context.Context, name string, p P) (V, error)) *Operation {
	return operation(func(f *FS, ctx context.Context, p P) (value V, err error) {
		name, err := f.reach(pathOf(p), as)
		if err != nil {
			return value, err
		}
		if value, err = do(f, ctx, name, p); err != nil {
			return value, f.fault(verb, name, err)
		}
		return value, nil
	})
}

// operation makes a function the operation of its payload's type.
func operation[P, V any](do func(f *FS, ctx context.Context, p P) (V, error)) *Operation {
	return &Operation{
		Payload: reflect.TypeFor[P](), Value: reflect.TypeFor[V](),
		do: func(f *FS, ctx context.Context, payload any) (any, error) {
			p, ok := payload.(P)
			if !ok {
				return nil, fmt.Errorf("unknown file operation %T of another package", payload)
			}
			value, err := do(f, ctx, p)
			if err != nil {
				return nil, err
			}
			return value, nil
		},
	}
}
