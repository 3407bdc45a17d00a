package natsio_test

import (
	"slices"
	"testing"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/natsio/natsiotest"
	"github.com/toolfleet/toolfleet/internal/wire"
)

// TestCheckRights_HasNoEffect: each stream has what was published before and afterwards.
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
			for _, subject := range []string{wire.EventSubject(tf, "kept"), wire.ResultSubject(tf, "kept", "call"), "$O.TF_KEPT.C.kept", "$O.TF_BLOBS.C.kept"} {
				_, err := js.Publish(t.Context(), subject, nil)
				require.NoError(t, err, subject)
			}
			require.NoError(t, natsio.CheckRights(t.Context(), js.Conn(), slices.Concat(
				natsio.SessionRights(tf), natsio.JournalRights(tf), natsio.ApprovalRights(tf, "default"), natsio.RemoveRights(tf), []natsio.Rights{
					natsio.CallRights(tf, "default"), natsio.LaneRights(tf, "default"), natsio.LaneChangeRights(tf, "default"), natsio.WorkersRights(tf, "default"),
					natsio.WorkspaceListRights(tf, "default"), natsio.PoolsRights(tf),
				},
			)...))
			for _, name := range []string{wire.SessionsStream(tf), wire.WorkspacesStream(tf), natsio.ObjectStream(wire.KeptBucket(tf)), natsio.ObjectStream(wire.BlobsBucket(tf))} {
				stream, err := js.Stream(t.Context(), name)
				require.NoError(t, err)
				require.Zero(t, stream.CachedInfo().State.Consumers, name)
			}
			for subject, messages := range map[string]uint64{
				wire.ReadySubject(tf, "default", "lane"): 1, wire.ResultSubject(tf, "session", "call"): 2, wire.EventSubject(tf, "session"): 2,
				"$KV.TF_PLACES.key": 1, "$O.TF_BLOBS.C.chunk": 2, "$O.TF_KEPT.C.chunk": 2,
			} {
				ack, err := js.Publish(t.Context(), subject, nil)
				require.NoError(t, err, subject)
				require.Equal(t, messages, ack.Sequence, subject)
				stream, err := js.Stream(t.Context(), ack.Stream)
				require.NoError(t, err)
				require.Equal(t, messages, stream.CachedInfo().State.Msgs, "what was there is there: %s", subject)
			}
			batch, err := pool.Fetch(1)
			require.NoError(t, err)
			msg, ok := <-batch.Messages()
			require.True(t, ok, "nobody else has taken it")
			require.Equal(t, wire.ReadySubject(tf, "default", "lane"), msg.Subject())
		})
	}
}
