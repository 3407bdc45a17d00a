package fleet_test

import (
	"log/slog"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/toolfleet/toolfleet/internal/fleet"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// All that ask at once, and those that come after them, get one secret.
func TestSecret_IsOneForAFleet(t *testing.T) {
	t.Parallel()
	o := fleet.Options{Name: protocol.DefaultFleet, Data: t.TempDir(), Logger: slog.New(slog.DiscardHandler)}
	connect := func() *fleet.Fleet {
		f, err := fleet.Connect(t.Context(), o)
		require.NoError(t, err)
		t.Cleanup(f.Close)
		return f
	}
	f := connect()
	var got [8][]byte
	var errs [len(got)]error
	var all sync.WaitGroup
	for i := range got {
		all.Go(func() { got[i], errs[i] = f.Secret(t.Context()) })
	}
	all.Wait()
	for i := range got {
		require.NoError(t, errs[i])
		require.Equal(t, got[0], got[i])
	}
	require.GreaterOrEqual(t, len(got[0]), 16)
	f.Close()
	again, err := connect().Secret(t.Context())
	require.NoError(t, err)
	require.Equal(t, got[0], again)
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A disk with too little room is told as one, with the directory that is on it.
func TestConnect_NamesTheDirectoryThatHasTooLittleRoom(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	_, err := fleet.Connect(t.Context(), fleet.Options{Name: "tf", Data: data, Storage: natsio.Storage{KeepBytes: 1 << 60}, Logger: slog.New(slog.DiscardHandler)})
	require.ErrorContains(t, err, "embedded NATS in "+data+" (--data): make bucket TF_KEPT: ")
	require.ErrorContains(t, err, "it reserves 1099511627776 MiB, and the server has less left")
}
