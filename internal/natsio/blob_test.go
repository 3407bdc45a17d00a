package natsio_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/natsio/natsiotest"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// TestBlobs_RemoveWhereThereIsNoRoom: it makes room, which calls with large payloads wait for.
func TestBlobs_RemoveWhereThereIsNoRoom(t *testing.T) {
	t.Parallel()
	f := natsiotest.New(t, natsio.Topology{})
	blobs, err := natsio.NewBlobs(f.NC, f.Name)
	require.NoError(t, err)
	body := bytes.Repeat([]byte("x"), 300<<10)
	stored, err := blobs.Put(t.Context(), "call/s", body)
	require.NoError(t, err)

	stream, err := f.JS.Stream(t.Context(), natsio.ObjectStream(wire.BlobsBucket(f.Name)))
	require.NoError(t, err)
	full := stream.CachedInfo().Config
	full.MaxBytes, full.Discard = int64(stream.CachedInfo().State.Bytes), jetstream.DiscardNew
	stream, err = f.JS.UpdateStream(t.Context(), full)
	require.NoError(t, err)
	_, err = blobs.Put(t.Context(), "call/s", body)
	require.ErrorIs(t, err, natsio.ErrFull)

	blobs.Remove(t.Context(), stored)
	info, err := stream.Info(t.Context())
	require.NoError(t, err)
	require.Zero(t, info.State.Msgs)
	_, err = blobs.Get(t.Context(), stored)
	require.ErrorIs(t, err, jetstream.ErrObjectNotFound)
	_, err = blobs.Put(t.Context(), "call/s", body)
	require.NoError(t, err)
}

// A result whose attempts each failed with a long text still arrives, with both ends of each.
func TestBlobs_EncodeResultShortensTheErrorsOfAttempts(t *testing.T) {
	t.Parallel()
	f := natsiotest.New(t, natsio.Topology{})
	blobs, err := natsio.NewBlobs(f.NC, f.Name)
	require.NoError(t, err)
	long := &protocol.Error{Code: protocol.CodeToolFailed, Message: "start" + strings.Repeat("x", 200<<10) + "end"}
	r := protocol.Result{
		CallID: "c", SessionID: protocol.NewSessionID(), Status: protocol.StatusFailed, Error: long,
	}
	for i := range 10 {
		r.Tries = append(r.Tries, protocol.Try{Attempt: i + 1, Error: long})
	}
	body, err := blobs.EncodeResult(t.Context(), &r)
	require.NoError(t, err)
	require.False(t, blobs.TooLarge(body))
	read, err := wire.DecodeResult(body)
	require.NoError(t, err)
	require.Len(t, read.Tries, 10)
	for _, try := range read.Tries {
		require.True(t, strings.HasPrefix(try.Error.Message, "start") && strings.HasSuffix(try.Error.Message, "end"))
	}
	require.Equal(t, long, r.Tries[0].Error, "the result itself stays whole")
}

// A bucket that somebody removes is found to be gone also by who has read from it: a result is had
// without its value.
func TestBlobs_ABucketThatIsGone(t *testing.T) {
	t.Parallel()
	f := natsiotest.New(t, natsio.Topology{})
	blobs, err := natsio.NewBlobs(f.NC, f.Name)
	require.NoError(t, err)
	stored, err := blobs.Put(t.Context(), "result/s", []byte(`{}`))
	require.NoError(t, err)
	_, err = blobs.Get(t.Context(), stored)
	require.NoError(t, err)
	require.NoError(t, f.JS.DeleteObjectStore(t.Context(), wire.BlobsBucket(f.Name)))
	_, err = blobs.Get(t.Context(), stored)
	require.Error(t, err)
	_, err = blobs.Get(t.Context(), stored)
	require.ErrorIs(t, err, jetstream.ErrObjectNotFound)
	r := &protocol.Result{Value: stored}
	require.NoError(t, blobs.Value(t.Context(), r))
	require.Nil(t, r.Value)
}
