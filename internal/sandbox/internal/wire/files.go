//go:build linux

package wire

import (
	"context"
	"errors"
	"fmt"
	"reflect"

	"github.com/toolfleet/toolfleet/internal/sandbox/files"
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

// ServeFiles carries out a request that came from a [RemoteFS].
func ServeFiles(ctx context.Context, fs *files.FS, req *FileRequest) *FileReply {
	value, err := serveFile(ctx, fs, req)
	expected, isExpected := errors.AsType[*protocol.Error](err)
	switch {
	case err == nil:
		return &FileReply{Body: Pack(value)}
	case isExpected:
		return &FileReply{Error: expected}
	case errors.Is(err, sandbox.ErrClosed):
		return &FileReply{Closed: true}
	default:
		return &FileReply{Failure: err.Error()}
	}
}

func serveFile(ctx context.Context, fs *files.FS, req *FileRequest) (any, error) {
	op, err := files.Find(req.Operation)
	if err != nil {
		return nil, err
	}
	payload, err := unpackAs(op.Payload, req.Body)
	if err != nil {
		return nil, err
	}
	return fs.Do(ctx, payload, req.Roots)
}

// unpackAs returns a value of a type that was packed.
func unpackAs(t reflect.Type, packed []byte) (any, error) {
	value := reflect.New(t)
	err := Unpack(packed, value.Interface())
	return value.Elem().Interface(), err
}

// RemoteFS is the file operations of a workspace in another process. ask sends a request there,
// where [ServeFiles] carries it out, and returns the reply; it fails when that fails or ctx ends,
// and must be safe for concurrent use.
func RemoteFS(ask func(ctx context.Context, req *FileRequest) (*FileReply, error)) sandbox.FS {
	return sandbox.NewFS(func(ctx context.Context, payload protocol.Payload, roots []protocol.Roots) (protocol.Value, error) {
		op, err := files.Of(payload)
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return nil, err
		}
		reply, err := ask(ctx, &FileRequest{Operation: op.Name(), Roots: roots, Body: Pack(payload)})
		switch {
		case err != nil:
			return nil, err
		case reply.Error != nil:
			return nil, reply.Error
		case reply.Closed:
			return nil, sandbox.ErrClosed
		case reply.Failure != "":
			return nil, errors.New(reply.Failure)
		}
		value, err := unpackAs(op.Value, reply.Body)
		if err != nil {
			return nil, fmt.Errorf("file reply: %w", err)
		}
		return value, nil
	})
}
