package sandbox

import (
	"context"
	"errors"
	"slices"
)

// FileRequest is the request of one file operation: beside Roots exactly one field is set.
type FileRequest struct {
	Roots     []Roots // see [FS]'s Within
	Read      *ReadRequest
	ReadAt    *ReadAtRequest
	Write     *WriteRequest
	Edit      *EditRequest
	ReadJSON  *ReadJSONRequest
	WriteJSON *WriteJSONRequest
	Stat      *StatRequest
	List      *ListRequest
	Tree      *TreeRequest
	Glob      *GlobRequest
	Search    *SearchRequest
}

// FileReply answers a [FileRequest]: the field of its operation, or one of Fault,
// Closed and Failure is set. Names in it need not be UTF-8.
type FileReply struct {
	Read    *ReadResult
	ReadAt  *ReadAtResult
	Write   *WriteResult // also of WriteJSON
	Edit    *EditResult
	JSON    *ReadJSONResult
	Stat    *StatResult
	List    *ListResult
	Tree    *TreeResult
	Glob    *GlobResult
	Search  *SearchResult
	Fault   *Fault
	Closed  bool   // [ErrClosed]
	Failure string // every other error
}

// ServeFiles carries out a request that came from a [RemoteFS].
func ServeFiles(ctx context.Context, fs FS, req *FileRequest) *FileReply {
	reply := &FileReply{}
	var err error
	if len(req.Roots) > 0 {
		fs = fs.Within(req.Roots...)
	}
	switch {
	case req.Read != nil:
		reply.Read, err = serve(ctx, fs.Read, req.Read)
	case req.ReadAt != nil:
		reply.ReadAt, err = serve(ctx, fs.ReadAt, req.ReadAt)
	case req.Write != nil:
		reply.Write, err = serve(ctx, fs.Write, req.Write)
	case req.Edit != nil:
		reply.Edit, err = serve(ctx, fs.Edit, req.Edit)
	case req.ReadJSON != nil:
		reply.JSON, err = serve(ctx, fs.ReadJSON, req.ReadJSON)
	case req.WriteJSON != nil:
		reply.Write, err = serve(ctx, fs.WriteJSON, req.WriteJSON)
	case req.Stat != nil:
		reply.Stat, err = serve(ctx, fs.Stat, req.Stat)
	case req.List != nil:
		reply.List, err = serve(ctx, fs.List, req.List)
	case req.Tree != nil:
		reply.Tree, err = serve(ctx, fs.Tree, req.Tree)
	case req.Glob != nil:
		reply.Glob, err = serve(ctx, fs.Glob, req.Glob)
	case req.Search != nil:
		reply.Search, err = serve(ctx, fs.Search, req.Search)
	default:
		err = errors.New("file request: no operation is set")
	}
	if err == nil {
		return reply
	}
	fault, isFault := errors.AsType[*Fault](err)
	switch {
	case isFault:
		return &FileReply{Fault: fault}
	case errors.Is(err, ErrClosed):
		return &FileReply{Closed: true}
	default:
		return &FileReply{Failure: err.Error()}
	}
}

func serve[Q, R any](ctx context.Context, do func(context.Context, Q) (R, error), req *Q) (*R, error) {
	result, err := do(ctx, *req)
	return &result, err
}

// RemoteFS is the file operations of a workspace in another process. Do carries a
// request there, has [ServeFiles] answer it, and carries the reply back; it returns
// an error when that fails or ctx ends, and may run side by side with itself.
type RemoteFS struct {
	Do func(ctx context.Context, req *FileRequest) (*FileReply, error)

	roots []Roots
}

var _ FS = RemoteFS{}

// Within implements [FS].
func (r RemoteFS) Within(roots ...Roots) FS {
	return RemoteFS{Do: r.Do, roots: slices.Concat(r.roots, roots)}
}

// Read implements [FS].
func (r RemoteFS) Read(ctx context.Context, req ReadRequest) (ReadResult, error) {
	return ask(ctx, r, &FileRequest{Read: &req}, func(reply *FileReply) *ReadResult { return reply.Read })
}

// ReadAt implements [FS].
func (r RemoteFS) ReadAt(ctx context.Context, req ReadAtRequest) (ReadAtResult, error) {
	return ask(ctx, r, &FileRequest{ReadAt: &req}, func(reply *FileReply) *ReadAtResult { return reply.ReadAt })
}

// Write implements [FS].
func (r RemoteFS) Write(ctx context.Context, req WriteRequest) (WriteResult, error) {
	return ask(ctx, r, &FileRequest{Write: &req}, func(reply *FileReply) *WriteResult { return reply.Write })
}

// Edit implements [FS].
func (r RemoteFS) Edit(ctx context.Context, req EditRequest) (EditResult, error) {
	return ask(ctx, r, &FileRequest{Edit: &req}, func(reply *FileReply) *EditResult { return reply.Edit })
}

// ReadJSON implements [FS].
func (r RemoteFS) ReadJSON(ctx context.Context, req ReadJSONRequest) (ReadJSONResult, error) {
	return ask(ctx, r, &FileRequest{ReadJSON: &req}, func(reply *FileReply) *ReadJSONResult { return reply.JSON })
}

// WriteJSON implements [FS].
func (r RemoteFS) WriteJSON(ctx context.Context, req WriteJSONRequest) (WriteResult, error) {
	return ask(ctx, r, &FileRequest{WriteJSON: &req}, func(reply *FileReply) *WriteResult { return reply.Write })
}

// Stat implements [FS].
func (r RemoteFS) Stat(ctx context.Context, req StatRequest) (StatResult, error) {
	return ask(ctx, r, &FileRequest{Stat: &req}, func(reply *FileReply) *StatResult { return reply.Stat })
}

// List implements [FS].
func (r RemoteFS) List(ctx context.Context, req ListRequest) (ListResult, error) {
	return ask(ctx, r, &FileRequest{List: &req}, func(reply *FileReply) *ListResult { return reply.List })
}

// Tree implements [FS].
func (r RemoteFS) Tree(ctx context.Context, req TreeRequest) (TreeResult, error) {
	return ask(ctx, r, &FileRequest{Tree: &req}, func(reply *FileReply) *TreeResult { return reply.Tree })
}

// Glob implements [FS].
func (r RemoteFS) Glob(ctx context.Context, req GlobRequest) (GlobResult, error) {
	return ask(ctx, r, &FileRequest{Glob: &req}, func(reply *FileReply) *GlobResult { return reply.Glob })
}

// Search implements [FS].
func (r RemoteFS) Search(ctx context.Context, req SearchRequest) (SearchResult, error) {
	return ask(ctx, r, &FileRequest{Search: &req}, func(reply *FileReply) *SearchResult { return reply.Search })
}

// ask sends a request and takes the part of the reply that answers it.
func ask[R any](ctx context.Context, r RemoteFS, req *FileRequest, part func(*FileReply) *R) (R, error) {
	var none R
	if err := ctx.Err(); err != nil {
		return none, err
	}
	req.Roots = r.roots
	reply, err := r.Do(ctx, req)
	if err != nil {
		return none, err
	}
	result := part(reply)
	switch {
	case reply.Fault != nil:
		return none, reply.Fault
	case reply.Closed:
		return none, ErrClosed
	case reply.Failure != "":
		return none, errors.New(reply.Failure)
	case result == nil:
		return none, errors.New("file reply: does not answer the request")
	default:
		return *result, nil
	}
}
