package fleet_test

import (
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/toolfleet/toolfleet/internal/fleet"
	"github.com/toolfleet/toolfleet/internal/natsio"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A disk with too little room is told as one, with the directory that is on it.
func TestConnect_NamesTheDirectoryThatHasTooLittleRoom(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	_, err := fleet.Connect(t.Context(), fleet.Options{Name: "tf", Data: data, Storage: natsio.Storage{KeepBytes: 1 << 60}, Logger: slog.New(slog.DiscardHandler)})
	require.ErrorContains(t, err, "embedded NATS in "+data+" (--data): make bucket TF_KEPT: ")
	require.ErrorContains(t, err, "it reserves 1099511627776 MiB, and the server has less left")
}
