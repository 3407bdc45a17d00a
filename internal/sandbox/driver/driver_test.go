package driver_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/toolfleet/toolfleet/internal/sandbox/driver"
	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestOpen_ProcessIsProbedAndWarns(t *testing.T) {
	t.Parallel()
	d, caps, err := driver.Open(t.Context(), "process", nil)
	require.NoError(t, err)
	require.Equal(t, "process", d.Name())
	require.Equal(t, "process", caps.Driver)
	require.Equal(t, isolation.LevelNone, caps.Level)
	require.NotEmpty(t, caps.Warnings)
	require.Contains(t, caps.Warnings[0], "isolates nothing")
}

func TestOpen_AutoNeverChoosesProcess(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"", driver.Auto} {
		d, _, err := driver.Open(t.Context(), name, &driver.Options{})
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
	_, _, err := driver.Open(t.Context(), "docker", nil)
	require.ErrorIs(t, err, driver.ErrUnknown)
	for _, name := range driver.Names() {
		require.ErrorContains(t, err, name)
		require.NoError(t, driver.Valid(name))
	}
}
