package store

import (
	"net"
	"net/url"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/natsio/embedded"
)

func TestReadAck(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		body   string
		seq    uint64
		answer Answer
		fault  string
	}{
		"stored":                   {body: `{"stream":"TF_CALLS","seq":42}`, seq: 42},
		"stored, in a domain":      {body: `{"stream":"TF_CALLS","domain":"x","seq":7,"duplicate":false}`, seq: 7},
		"lane is ready or held":    {body: `{"error":{"code":503,"err_code":10077,"description":"maximum messages per subject exceeded"},"stream":"S","seq":0}`, answer: Occupied},
		"there is a result":        {body: `{"error":{"code":400,"err_code":10071,"description":"wrong last sequence: 5"},"stream":"S","seq":0}`, answer: Occupied},
		"too many messages":        {body: `{"error":{"code":503,"err_code":10077,"description":"maximum messages exceeded"},"stream":"S","seq":0}`, answer: Full},
		"too many bytes":           {body: `{"error":{"code":503,"err_code":10077,"description":"maximum bytes exceeded"},"stream":"S","seq":0}`, answer: Full},
		"another failure to store": {body: `{"error":{"code":503,"err_code":10077,"description":"disk is gone"},"stream":"S","seq":0}`, fault: "disk is gone"},
		"no leader":                {body: `{"error":{"code":503,"err_code":10008,"description":"JetStream system temporarily unavailable"}}`, fault: "temporarily unavailable"},
		"sequence is no number":    {body: `{"stream":"S","seq":"x"}`, fault: "acknowledgement"},
		"nothing":                  {body: ``, fault: "acknowledgement"},
		"an empty object":          {body: `{}`, fault: jetstream.ErrInvalidJSAck.Error()},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			seq, answer, err := readAck([]byte(test.body))
			if test.fault != "" {
				require.ErrorContains(t, err, test.fault)
				return
			}
			require.NoError(t, err)
			require.Equal(t, test.seq, seq)
			require.Equal(t, test.answer, answer)
		})
	}
}

func TestDeleteFault(t *testing.T) {
	t.Parallel()
	gone := []string{
		`{"type":"io.nats.jetstream.api.v1.stream_msg_delete_response","success":true}`,
		`{"error":{"code":500,"err_code":10057,"description":"no message found"},"success":false}`,
		`{"error":{"code":400,"err_code":10043,"description":"sequence 4 not found"}}`,
		`{"error":{"code":404,"err_code":10037,"description":"no message found"}}`,
	}
	for _, body := range gone {
		require.NoError(t, deletionError([]byte(body)), body)
	}
	require.ErrorContains(t, deletionError([]byte(`{"error":{"code":500,"err_code":10057,"description":"disk is gone"}}`)), "disk is gone")
	require.ErrorIs(t, deletionError([]byte(`{"success":false}`)), errNotDeleted)
	require.Error(t, deletionError([]byte(`garbage`)))
}

// Behind a leaf node messages of core NATS may get lost as between the servers of a cluster, and
// the streams may be kept by one. Such a server counts as one of several, because it always has a
// cluster's name.
func TestStore_ALeafNodeIsNoServerOfItsOwn(t *testing.T) {
	t.Parallel()
	start := func(o server.Options) *server.Server {
		o.Host, o.Port, o.NoSigs, o.NoLog = "127.0.0.1", server.RANDOM_PORT, true, true
		s, err := server.NewServer(&o)
		require.NoError(t, err)
		s.Start()
		t.Cleanup(func() {
			s.Shutdown()
			s.WaitForShutdown()
		})
		require.True(t, s.ReadyForConnections(time.Minute))
		return s
	}
	clustered := func(s *server.Server) bool {
		nc, err := nats.Connect(s.ClientURL(), nats.Timeout(time.Minute))
		require.NoError(t, err)
		t.Cleanup(nc.Close)
		return !(&Store{NC: nc}).Consistency().RepublishesAll()
	}
	ports, err := embedded.FreePorts(t.Context(), 1)
	require.NoError(t, err)
	start(server.Options{ServerName: "hub", LeafNode: server.LeafNodeOpts{Host: "127.0.0.1", Port: ports[0]}})
	address := &url.URL{Scheme: "nats-leaf", Host: net.JoinHostPort("127.0.0.1", strconv.Itoa(ports[0]))}
	leaf := start(server.Options{ServerName: "leaf", LeafNode: server.LeafNodeOpts{Remotes: []*server.RemoteLeafOpts{{URLs: []*url.URL{address}}}}})
	require.True(t, clustered(leaf))
	require.False(t, clustered(start(server.Options{ServerName: "alone"})))
}

// Clocks of two workers may tell the same time, so numbers that nobody else may have are not times.
func TestToken_IsNoTime(t *testing.T) {
	t.Parallel()
	drawn := make([]uint64, 100)
	for i := range drawn {
		drawn[i] = Nonce()
	}
	require.False(t, slices.IsSorted(drawn), "each is greater than the one before")
	slices.Sort(drawn)
	require.Len(t, slices.Compact(drawn), 100)
}
