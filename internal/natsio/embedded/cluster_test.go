package embedded_test

import (
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/natsio/embedded"
)

func TestCluster_KeepsReplicas(t *testing.T) {
	t.Parallel()
	cluster, err := embedded.StartCluster(t.Context(), 3, embedded.Options{Data: t.TempDir()})
	require.NoError(t, err)
	t.Cleanup(cluster.Close)
	nc := connect(t, cluster.URL(), "", cluster.Options()...)
	js, err := jetstream.New(nc, patient)
	require.NoError(t, err)
	stream, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "S", Subjects: []string{"s"}, Replicas: 3})
	require.NoError(t, err)
	_, err = js.Publish(t.Context(), "s", []byte("kept"))
	require.NoError(t, err)
	info, err := stream.Info(t.Context())
	require.NoError(t, err)
	require.Len(t, info.Cluster.Replicas, 2, "beside the leader")

	for address := range strings.SplitSeq(cluster.URL(), ",") {
		parsed, err := url.Parse(address)
		require.NoError(t, err)
		require.Equal(t, "127.0.0.1", parsed.Hostname())
		_, err = nats.Connect(address, nats.Token("guessed"), nats.Timeout(time.Minute))
		require.ErrorIs(t, err, nats.ErrAuthorization, "others of this machine get in")
	}
}
