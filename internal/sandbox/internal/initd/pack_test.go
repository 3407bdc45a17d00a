//go:build linux

package initd_test

import (
	"context"
	"io"
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/toolfleet/toolfleet/internal/sandbox/files"
	"github.com/toolfleet/toolfleet/internal/sandbox/internal/initd"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
	"github.com/toolfleet/toolfleet/test/sandboxtest"
)

// fill sets every field of a value to something of its own.
func fill(v reflect.Value, n *int) {
	*n++
	switch v.Kind() {
	case reflect.Bool:
		v.SetBool(*n%2 == 1)
	case reflect.Int, reflect.Int64:
		v.SetInt(int64(*n * 1000 * (1 - *n%2*2)))
	case reflect.String:
		v.SetString("\xff\x00 " + string(rune('a'+*n%26)))
	case reflect.Slice:
		if *n%3 == 0 {
			return // absent and empty are the same for fields that may be absent
		}
		v.Set(reflect.MakeSlice(v.Type(), *n%3, *n%3))
		for i := range v.Len() {
			fill(v.Index(i), n)
		}
	case reflect.Uint8:
		v.SetUint(uint64(*n % 256))
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), n)
	case reflect.Struct:
		for _, field := range v.Fields() {
			fill(field, n)
		}
	default:
	}
}

func roundTrip[T any](t *testing.T, value T) {
	t.Helper()
	var got T
	require.NoError(t, initd.Unpack(initd.Pack(value), &got))
	require.Equal(t, value, got)
}

// filled checks a value in which every field is set, with lengths that depend on n.
func filled[T any](t *testing.T, n int) {
	t.Helper()
	var value T
	fill(reflect.ValueOf(&value).Elem(), &n)
	roundTrip(t, value)
}

func TestPack_EveryRequestAndReplyComesBack(t *testing.T) {
	t.Parallel()
	for n := range 7 { // of different lengths
		filled[initd.FileRequest](t, n)
		filled[initd.FileReply](t, n)
		filled[protocol.FilesRead](t, n)
		filled[protocol.FilesReadResult](t, n)
		filled[protocol.FilesWrite](t, n)
		filled[protocol.FilesWriteResult](t, n)
		filled[protocol.FilesEdit](t, n)
		filled[protocol.FilesEditResult](t, n)
		filled[protocol.FilesJSONRead](t, n)
		filled[protocol.FilesJSONReadResult](t, n)
		filled[protocol.FilesJSONWrite](t, n)
		filled[protocol.FilesJSONWriteResult](t, n)
		filled[protocol.FilesExists](t, n)
		filled[protocol.FilesExistsResult](t, n)
		filled[protocol.FilesList](t, n)
		filled[protocol.FilesListResult](t, n)
		filled[protocol.FilesTree](t, n)
		filled[protocol.FilesTreeResult](t, n)
		filled[protocol.FilesGlob](t, n)
		filled[protocol.FilesGlobResult](t, n)
		filled[protocol.FilesSearch](t, n)
		filled[protocol.FilesSearchResult](t, n)
		filled[sandbox.FilesReadAt](t, n)
		filled[sandbox.FilesSearch](t, n)
	}
	roundTrip(t, initd.FileRequest{})
	roundTrip(t, protocol.FilesListResult{Entries: []protocol.DirEntry{}})
	roundTrip(t, protocol.FilesReadResult{Content: make([]byte, 100_000)})
}

func TestUnpack_RefusesWhatIsNoValue(t *testing.T) {
	t.Parallel()
	packed := initd.Pack(initd.FileRequest{Operation: "protocol.FilesWrite", Body: []byte("text")})
	for n := range packed {
		require.ErrorIs(t, initd.Unpack(packed[:n], &initd.FileRequest{}), initd.ErrMalformed, n)
	}
	require.ErrorIs(t, initd.Unpack(append(packed, 0), &initd.FileRequest{}), initd.ErrMalformed)
	require.Panics(t, func() { initd.Pack(func() {}) })
}

// What comes out of a sandbox may be anything. It takes memory for what is there, not for what it
// says.
func FuzzUnpack(f *testing.F) {
	f.Add(initd.Pack(initd.FileReply{}))
	f.Add(initd.Pack(protocol.FilesGlobResult{Paths: []string{"a", "b"}}))
	f.Add([]byte{0, 0, 0, 0, 0, 1, 0xff, 0xff, 0xff, 0xff, 0x0f})
	f.Fuzz(func(t *testing.T, b []byte) {
		var reply initd.FileReply
		if initd.Unpack(b, &reply) == nil {
			roundTrip(t, reply)
		}
		var found protocol.FilesSearchResult
		_ = initd.Unpack(b, &found) // fields that are absent and empty are the same
	})
}

// pair returns the two ends of a connection.
func pair(t *testing.T) (ours, theirs *initd.Conn) {
	t.Helper()
	ours, file, err := initd.Pair()
	require.NoError(t, err)
	fd, err := unix.Dup(int(file.Fd()))
	require.NoError(t, err)
	require.NoError(t, file.Close())
	theirs, err = initd.OpenConn(fd)
	require.NoError(t, err)
	t.Cleanup(func() { _ = ours.Close() })
	return ours, theirs
}

func TestConn_TheLastWordOfOneThatDidNotListenIsHeard(t *testing.T) {
	t.Parallel()
	ours, theirs := pair(t)
	require.NoError(t, ours.Send(1, initd.KindConfig, initd.Config{}))
	require.NoError(t, theirs.Send(0, initd.KindFailed, initd.Failed{Step: "a step"}))
	require.NoError(t, theirs.Close()) // without having read
	m, err := ours.Receive()
	require.NoError(t, err)
	var failed initd.Failed
	require.NoError(t, m.Decode(&failed))
	require.Equal(t, "a step", failed.Step)
	_, err = ours.Receive()
	require.ErrorIs(t, err, io.EOF)
}

// File operations in another process keep every promise of those in this one.
func TestRemoteFS(t *testing.T) {
	t.Parallel()
	sandboxtest.RunFS(t, func(t *testing.T) (sandbox.FS, string) {
		t.Helper()
		dir := t.TempDir()
		fs, err := files.Open(dir)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, fs.Close()) })
		return initd.RemoteFS(func(ctx context.Context, req *initd.FileRequest) (*initd.FileReply, error) {
			there, err := carry(req)
			if err != nil {
				return nil, err
			}
			reply := initd.ServeFiles(ctx, fs, there)
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
	return back, initd.Unpack(initd.Pack(*v), back)
}

func TestServeFiles_RefusesWhatItDoesNotKnow(t *testing.T) {
	t.Parallel()
	fs, err := files.Open(t.TempDir())
	require.NoError(t, err)
	defer fs.Close()
	reply := initd.ServeFiles(t.Context(), fs, &initd.FileRequest{Operation: "chmod"})
	require.Contains(t, reply.Failure, `"chmod"`)
	reply = initd.ServeFiles(t.Context(), fs, &initd.FileRequest{Operation: "protocol.FilesRead", Body: []byte{1, 2}})
	require.NotEmpty(t, reply.Failure)
}
