package journal_test

import (
	"testing"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/toolfleet/toolfleet/internal/journal"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/natsio/embedded"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/loop/looptest"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestJournal(t *testing.T) {
	t.Parallel()
	looptest.RunJournal(t, func(t *testing.T) loop.Journal {
		t.Helper()
		server, err := embedded.Start(t.Context(), embedded.Options{Data: t.TempDir()})
		require.NoError(t, err)
		t.Cleanup(server.Close)
		nc, err := natsio.Connect(t.Context(), "", natsio.ConnectOptions{Name: t.Name(), Options: server.Options()})
		require.NoError(t, err)
		t.Cleanup(nc.Close)
		js, err := jetstream.New(nc)
		require.NoError(t, err)
		require.NoError(t, natsio.Ensure(t.Context(), js, natsio.Topology{}))
		j, err := journal.Open(t.Context(), nc, protocol.DefaultFleet)
		require.NoError(t, err)
		return j
	})
}
