package cli_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/toolfleet/toolfleet/internal/cli"
)

func TestFewFiles(t *testing.T) { //nolint:paralleltest // the limit is the process's
	var was unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &was))
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 256, Max: was.Max}))
	defer func() { require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &was)) }()
	require.Empty(t, cli.FewFiles(4))
	warnings := cli.FewFiles(64)
	require.Len(t, warnings, 1)
	require.Contains(t, warnings[0], "may have 256 open files, and 64 slots need 576")
}
