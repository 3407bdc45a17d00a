//go:build linux

package wire

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// FileRequest asks for one file operation. Body is its payload, packed.
type FileRequest struct {
	Operation string
	Roots     []protocol.Roots // see Within of [sandbox.FS]
	Body      []byte
}

// FileReply answers a [FileRequest]: the packed result, or one of Error, Closed and Failure is set.
type FileReply struct {
	Body    []byte
	Error   *protocol.Error
	Closed  bool   // [sandbox.ErrClosed]
	Failure string // every other error
}

// Payloads of operations that have more than one argument.
type (
	readAt struct {
		Path  string
		From  int64
		Count int
	}
	search struct {
		Payload  protocol.FilesSearch
		Patience time.Duration
	}
)

// operations are what [ServeFiles] does, by the names that [RemoteFS] sends.
var operations = map[string]func(context.Context, sandbox.FS, []byte) ([]byte, error){ //nolint:gochecknoglobals // a constant table
	"read":       operation(sandbox.FS.Read),
	"write":      operation(sandbox.FS.Write),
	"edit":       operation(sandbox.FS.Edit),
	"read_json":  operation(sandbox.FS.ReadJSON),
	"write_json": operation(sandbox.FS.WriteJSON),
	"stat":       operation(sandbox.FS.Stat),
	"list":       operation(sandbox.FS.List),
	"tree":       operation(sandbox.FS.Tree),
	"glob":       operation(sandbox.FS.Glob),
	"read_at": operation(func(fs sandbox.FS, ctx context.Context, r readAt) ([]byte, error) {
		return fs.ReadAt(ctx, r.Path, r.From, r.Count)
	}),
	"search": operation(func(fs sandbox.FS, ctx context.Context, s search) (protocol.FilesSearchResult, error) {
		return fs.Search(ctx, s.Payload, s.Patience)
	}),
}

func operation[P, R any](do func(sandbox.FS, context.Context, P) (R, error)) func(context.Context, sandbox.FS, []byte) ([]byte, error) {
	return func(ctx context.Context, fs sandbox.FS, body []byte) ([]byte, error) {
		var payload P
		if err := Unpack(body, &payload); err != nil {
			return nil, err
		}
		result, err := do(fs, ctx, payload)
		if err != nil {
			return nil, err
		}
		return Pack(result), nil
	}
}

// ServeFiles carries out a request that came from a [RemoteFS].
func ServeFiles(ctx context.Context, fs sandbox.FS, req *FileRequest) *FileReply {
	do, ok := operations[req.Operation]
	if !ok {
		return &FileReply{Failure: fmt.Sprintf("file request: unknown operation %q", req.Operation)}
	}
	if len(req.Roots) > 0 {
		fs = fs.Within(req.Roots...)
	}
	body, err := do(ctx, fs, req.Body)
	expected, isExpected := errors.AsType[*protocol.Error](err)
	switch {
	case err == nil:
		return &FileReply{Body: body}
	case isExpected:
		return &FileReply{Error: expected}
	case errors.Is(err, sandbox.ErrClosed):
		return &FileReply{Closed: true}
	default:
		return &FileReply{Failure: err.Error()}
	}
}

// RemoteFS is the file operations of a workspace in another process. Do sends a request there,
// where [ServeFiles] carries it out, and returns the reply; it fails when that fails or ctx ends,
// and must be safe for concurrent use.
type RemoteFS struct {
	Do func(ctx context.Context, req *FileRequest) (*FileReply, error)

	roots []protocol.Roots
}

var _ sandbox.FS = RemoteFS{}

// Within implements [sandbox.FS].
func (r RemoteFS) Within(roots ...protocol.Roots) sandbox.FS {
	return RemoteFS{Do: r.Do, roots: slices.Concat(r.roots, roots)}
}

// Read implements [sandbox.FS].
func (r RemoteFS) Read(ctx context.Context, p protocol.FilesRead) (protocol.FilesReadResult, error) {
	return request[protocol.FilesReadResult](ctx, r, "read", p)
}

// ReadAt implements [sandbox.FS].
func (r RemoteFS) ReadAt(ctx context.Context, path string, from int64, count int) ([]byte, error) {
	return request[[]byte](ctx, r, "read_at", readAt{path, from, count})
}

// Write implements [sandbox.FS].
func (r RemoteFS) Write(ctx context.Context, p protocol.FilesWrite) (protocol.FilesWriteResult, error) {
	return request[protocol.FilesWriteResult](ctx, r, "write", p)
}

// Edit implements [sandbox.FS].
func (r RemoteFS) Edit(ctx context.Context, p protocol.FilesEdit) (protocol.FilesEditResult, error) {
	return request[protocol.FilesEditResult](ctx, r, "edit", p)
}

// ReadJSON implements [sandbox.FS].
func (r RemoteFS) ReadJSON(ctx context.Context, p protocol.FilesJSONRead) (protocol.FilesJSONReadResult, error) {
	return request[protocol.FilesJSONReadResult](ctx, r, "read_json", p)
}

// WriteJSON implements [sandbox.FS].
func (r RemoteFS) WriteJSON(ctx context.Context, p protocol.FilesJSONWrite) (protocol.FilesJSONWriteResult, error) {
	return request[protocol.FilesJSONWriteResult](ctx, r, "write_json", p)
}

// Stat implements [sandbox.FS].
func (r RemoteFS) Stat(ctx context.Context, p protocol.FilesExists) (protocol.FilesExistsResult, error) {
	return request[protocol.FilesExistsResult](ctx, r, "stat", p)
}

// List implements [sandbox.FS].
func (r RemoteFS) List(ctx context.Context, p protocol.FilesList) (protocol.FilesListResult, error) {
	return request[protocol.FilesListResult](ctx, r, "list", p)
}

// Tree implements [sandbox.FS].
func (r RemoteFS) Tree(ctx context.Context, p protocol.FilesTree) (protocol.FilesTreeResult, error) {
	return request[protocol.FilesTreeResult](ctx, r, "tree", p)
}

// Glob implements [sandbox.FS].
func (r RemoteFS) Glob(ctx context.Context, p protocol.FilesGlob) (protocol.FilesGlobResult, error) {
	return request[protocol.FilesGlobResult](ctx, r, "glob", p)
}

// Search implements [sandbox.FS].
func (r RemoteFS) Search(ctx context.Context, p protocol.FilesSearch, patience time.Duration) (protocol.FilesSearchResult, error) {
	return request[protocol.FilesSearchResult](ctx, r, "search", search{p, patience})
}

// request sends a payload and returns the result.
func request[R any](ctx context.Context, r RemoteFS, operation string, payload any) (R, error) {
	var none, result R
	if err := ctx.Err(); err != nil {
		return none, err
	}
	reply, err := r.Do(ctx, &FileRequest{Operation: operation, Roots: r.roots, Body: Pack(payload)})
	switch {
	case err != nil:
		return none, err
	case reply.Error != nil:
		return none, reply.Error
	case reply.Closed:
		return none, sandbox.ErrClosed
	case reply.Failure != "":
		return none, errors.New(reply.Failure)
	}
	if err := Unpack(reply.Body, &result); err != nil {
		return none, fmt.Errorf("file reply: %w", err)
	}
	return result, nil
}
