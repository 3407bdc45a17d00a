package drivers_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/toolfleet/toolfleet/internal/sandbox/drivers"
	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestOpen_ProcessIsProbedAndWarns(t *testing.T) {
	t.Parallel()
	d, caps, err := drivers.Open(t.Context(), "process", nil)
	require.NoError(t, err)
	require.Equal(t, "process", d.Name())
	require.Equal(t, "process", caps.Driver)
	require.Equal(t, isolation.LevelNone, caps.Level)
	require.NotEmpty(t, caps.Warnings)
	require.Contains(t, caps.Warnings[0], "isolates nothing")
}

func TestOpen_AutoNeverChoosesProcess(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"", drivers.Auto} {
		d, _, err := drivers.Open(t.Context(), name, &drivers.Options{})
		if err == nil {
			require.NotEqual(t, "process", d.Name())
			continue
		}
		require.ErrorIs(t, err, isolation.ErrLevel)
		require.ErrorContains(t, err, "--sandbox process")
	}
}

func TestOpen_UnknownNameTellsTheAllowedOnes(t *testing.T) {
	t.Parallel()
	_, _, err := drivers.Open(t.Context(), "docker", nil)
	require.ErrorIs(t, err, drivers.ErrUnknown)
	for _, name := range drivers.Names() {
		require.ErrorContains(t, err, name)
		require.NoError(t, drivers.Valid(name))
	}
}
