package cli_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/cli"
	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

func TestSize_IsReadAndWritten(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]struct {
		size  cli.Size
		again string
	}{
		"0": {0, "0"}, "4096": {4096, "4K"}, "4097": {4097, "4097"}, "64K": {64 << 10, "64K"}, "64k": {64 << 10, "64K"},
		"512M": {512 << 20, "512M"}, "1.5G": {3 << 29, "1536M"}, "2GiB": {2 << 30, "2G"}, "2GB": {2 << 30, "2G"}, " 1T ": {1 << 40, "1T"},
		"10 M": {10 << 20, "10M"}, "7B": {7, "7"},
	} {
		var got cli.Size
		require.NoError(t, got.UnmarshalText([]byte(text)), text)
		require.Equal(t, want.size, got, text)
		require.Equal(t, want.again, got.String(), text)
	}
	for _, text := range []string{"", "M", "-1", "1X", "NaN", "1e30", "Inf", "half", "1KK"} {
		var got cli.Size
		require.ErrorContains(t, got.UnmarshalText([]byte(text)), "want a number of bytes", text)
	}
}

func TestLimits_Flags(t *testing.T) {
	t.Parallel()
	none, err := (&cli.Limits{}).Sandbox()
	require.NoError(t, err)
	require.Equal(t, sandbox.Limits{}, none)
	all, err := (&cli.Limits{
		Wall: time.Hour, CPU: time.Minute, Memory: 1 << 30, Processes: 5, OpenFiles: 64, FileSize: 7, Disk: 8, Output: 4096,
	}).Sandbox()
	require.NoError(t, err)
	require.Equal(t, sandbox.Limits{
		Wall: time.Hour, CPU: time.Minute, Memory: 1 << 30, Processes: 5, OpenFiles: 64, FileSize: 7, Disk: 8, Output: 4096,
	}, all)
	_, err = (&cli.Limits{Memory: 5, OpenFiles: 1, Wall: -time.Second}).Sandbox()
	var exit *cli.ExitError
	require.ErrorAs(t, err, &exit)
	require.Equal(t, cli.ExitUsage, exit.Code)
	require.ErrorContains(t, err, "--limit-memory 5: must be 0 or 1048576 to")
	require.ErrorContains(t, err, "--limit-open-files 1: must be 0 or 8 to")
	require.ErrorContains(t, err, "--limit-wall -1s: must be 0 or 1ms to 168h0m0s")
}

// TestWarnings_NameLimitsThatAreNotHeld, of those that were asked for.
func TestWarnings_NameLimitsThatAreNotHeld(t *testing.T) {
	t.Parallel()
	caps := isolation.Caps{Driver: "d", Warnings: []string{"one"}, Limits: isolation.LimitKinds{
		CPU: isolation.LimitNone, Memory: isolation.LimitRlimit, Processes: isolation.LimitNone, OpenFiles: isolation.LimitNone, FileSize: isolation.LimitNone, Disk: isolation.LimitNone,
	}}
	require.Equal(t, []string{"one"}, cli.Warnings(sandbox.Limits{Memory: 1 << 30, Wall: time.Second}, caps))
	require.Equal(t, []string{"one", "driver d does not enforce --limit-processes, --limit-disk"},
		cli.Warnings(sandbox.Limits{Memory: 1 << 30, Processes: 5, Disk: 1 << 20}, caps))
	require.Len(t, caps.Warnings, 1)
}
