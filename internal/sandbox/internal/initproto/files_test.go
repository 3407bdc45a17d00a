//go:build linux

package initproto_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/sandbox/files"
	"github.com/toolfleet/toolfleet/internal/sandbox/internal/initproto"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
	"github.com/toolfleet/toolfleet/test/sandboxtest"
)

// File operations in another process keep every promise of those in this one.
func TestRemoteFS(t *testing.T) {
	t.Parallel()
	sandboxtest.RunFS(t, func(t *testing.T) (sandbox.FS, string) {
		t.Helper()
		dir := t.TempDir()
		fs, err := files.Open(dir)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, fs.Close()) })
		return initproto.RemoteFS(func(ctx context.Context, req *initproto.FileRequest) (*initproto.FileReply, error) {
			there, err := carry(req)
			if err != nil {
				return nil, err
			}
			reply := initproto.ServeFiles(ctx, fs, there)
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			return carry(reply)
		}), dir
	})
}

// carry takes a value through its wire form.
func carry[T any](v *T) (*T, error) {
	back := new(T)
	return back, initproto.Unpack(initproto.Pack(*v), back)
}

func TestServeFiles_RefusesWhatItDoesNotKnow(t *testing.T) {
	t.Parallel()
	fs, err := files.Open(t.TempDir())
	require.NoError(t, err)
	defer fs.Close()
	reply := initproto.ServeFiles(t.Context(), fs, &initproto.FileRequest{Operation: "chmod"})
	require.Contains(t, reply.Failure, `"chmod"`)
	reply = initproto.ServeFiles(t.Context(), fs, &initproto.FileRequest{Operation: "protocol.FilesRead", Body: []byte{1, 2}})
	require.NotEmpty(t, reply.Failure)
}
