package natsio_test

import (
	"testing"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/natsio/natsiotest"
)

// TestCheckRights_HasNoEffect: the first message of each stream is one that was published
// afterwards.
func TestCheckRights_HasNoEffect(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(t *testing.T) jetstream.JetStream{
		"one server":    func(t *testing.T) jetstream.JetStream { t.Helper(); return natsiotest.New(t, natsio.Topology{}).JS },
		"three servers": func(t *testing.T) jetstream.JetStream { t.Helper(); return natsiotest.NewCluster(t).JS },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			js := start(t)
			require.NoError(t, natsio.Ensure(t.Context(), js, natsio.Topology{}))
			pool, _, err := natsio.EnsurePool(t.Context(), js, tf, "default", 0)
			require.NoError(t, err)
			require.NoError(t, natsio.CheckRights(t.Context(), js.Conn(), natsio.CallRights(tf, "default"), natsio.SessionRights(tf),
				natsio.LaneRights(tf, "default"), natsio.LaneChangeRights(tf, "default"), natsio.JournalRights(tf), natsio.WorkersRights(tf, "default"), natsio.ApprovalRights(tf)))
			for _, name := range []string{tf.SessionsStream(), natsio.ObjectStream(tf.KeptBucket()), natsio.ObjectStream(tf.BlobsBucket())} {
				stream, err := js.Stream(t.Context(), name)
				require.NoError(t, err)
				require.Zero(t, stream.CachedInfo().State.Consumers, name)
			}
			for _, subject := range []string{
				tf.ReadySubject("default", "lane"), tf.ResultSubject("session", "call"), tf.EventSubject("session"),
				"$KV.TF_PLACES.key", "$O.TF_BLOBS.C.chunk", "$O.TF_KEPT.C.chunk",
			} {
				ack, err := js.Publish(t.Context(), subject, nil)
				require.NoError(t, err, subject)
				require.EqualValues(t, 1, ack.Sequence, subject)
			}
			batch, err := pool.Fetch(1)
			require.NoError(t, err)
			msg, ok := <-batch.Messages()
			require.True(t, ok, "nobody else has taken it")
			require.Equal(t, tf.ReadySubject("default", "lane"), msg.Subject())
		})
	}
}
