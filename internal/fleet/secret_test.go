package fleet_test

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/toolfleet/toolfleet/internal/fleet"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/natsio/natsiotest"
	public "github.com/toolfleet/toolfleet/pkg/fleet"
)

// All that ask at once, and those that come after them, get one secret.
func TestSecret_IsOneForAFleet(t *testing.T) {
	t.Parallel()
	servers := natsiotest.New(t, natsio.Topology{})
	connect := func() *fleet.Fleet {
		f := &fleet.Fleet{Name: servers.Name, NC: servers.Connect(), Logger: servers.Logger}
		require.NoError(t, f.Open(t.Context(), true))
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
	_, err := public.Connect(t.Context(), public.Options{Data: data, Storage: public.Storage{KeepBytes: 1 << 60}})
	require.ErrorContains(t, err, "embedded NATS in "+data+" (--data): make bucket TF_KEPT: ")
	require.ErrorContains(t, err, "it reserves 1099511627776 MiB, and the server has less left")
}
