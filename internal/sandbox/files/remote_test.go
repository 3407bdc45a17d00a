//go:build unix

package files_test

import (
	"bytes"
	"context"
	"encoding/gob"
	"testing"

	"github.com/toolfleet/toolfleet/pkg/sandbox"
	"github.com/toolfleet/toolfleet/test/sandboxtest"
)

// File operations in another process keep every promise of those in this one.
func TestRemoteFS(t *testing.T) {
	t.Parallel()
	sandboxtest.RunFS(t, func(t *testing.T) (sandbox.FS, string) {
		t.Helper()
		dir := t.TempDir()
		fs := open(t, dir)
		return sandbox.RemoteFS{Do: func(ctx context.Context, req *sandbox.FileRequest) (*sandbox.FileReply, error) {
			there, err := carry(req)
			if err != nil {
				return nil, err
			}
			reply := sandbox.ServeFiles(ctx, fs, there)
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			return carry(reply)
		}}, dir
	})
}

// carry takes a value through its wire form.
func carry[T any](v *T) (*T, error) {
	var wire bytes.Buffer
	if err := gob.NewEncoder(&wire).Encode(v); err != nil {
		return nil, err
	}
	back := new(T)
	return back, gob.NewDecoder(&wire).Decode(back)
}
