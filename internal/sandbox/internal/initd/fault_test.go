//go:build linux

package initd_test

import (
	"context"
	"io"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/toolfleet/toolfleet/internal/sandbox/internal/initd"
	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/internal/sandbox/ns"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
	"github.com/toolfleet/toolfleet/test/escapetest"
	"github.com/toolfleet/toolfleet/test/sandboxtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestSelfTest_MissingLayerIsRefused: a sandbox from which one layer is missing does not
// serve, whichever it is, and says which.
func TestSelfTest_MissingLayerIsRefused(t *testing.T) { //nolint:paralleltest // its arms are processes of their own
	escapetest.InArms(t, true, func(t *testing.T) {
		t.Helper()
		test(t, ns.LauncherNative, func(f initd.Fault) bool { return !f.OnlyBwrap })
	})
}

// TestSelfTest_MissingLayerIsRefusedWithBwrap is about the layers that bubblewrap leaves to us.
func TestSelfTest_MissingLayerIsRefusedWithBwrap(t *testing.T) { //nolint:paralleltest // as above
	if _, err := os.Stat("/usr/bin/bwrap"); err != nil {
		t.Skip("UNSUPPORTED: bubblewrap is not installed")
	}
	escapetest.InArms(t, false, func(t *testing.T) {
		t.Helper()
		test(t, ns.LauncherBwrap, func(f initd.Fault) bool { return f.Bwrap })
	})
}

// test opens sandboxes with each of the faults.
func test(t *testing.T, launcher string, has func(initd.Fault) bool) {
	t.Helper()
	sandboxtest.Require(t, ns.New(&ns.Options{Launcher: launcher}))
	s, err := openIn(t, launcher, 0)
	require.NoError(t, err, "with nothing missing it serves")
	serves(t, s)
	require.NoError(t, s.Close())
	for _, name := range slices.Sorted(maps.Keys(initd.Faults)) {
		fault := initd.Faults[name]
		if !has(fault) {
			continue
		}
		t.Run(name, func(t *testing.T) {
			if fault.Root && os.Geteuid() != 0 {
				t.Skip("UNSUPPORTED: there only when the worker is root")
			}
			_, err := openIn(t, launcher, initd.FaultProcesses(name))
			require.ErrorIs(t, err, isolation.ErrLevel)
			require.ErrorContains(t, err, fault.Want)
			t.Log(err)
		})
	}
}

// serves uses a sandbox whose first process is this test, as it is in programs that contain no
// smaller one for that.
func serves(t *testing.T, s sandbox.Sandbox) {
	t.Helper()
	_, err := s.FS().Write(t.Context(), protocol.FilesWrite{Path: "file", Content: []byte("written")})
	require.NoError(t, err)
	result, err := s.Exec(t.Context(), sandbox.Cmd{Argv: []string{"/bin/cat", "file"}})
	require.NoError(t, err)
	require.Equal(t, "written", string(result.Stdout.Data))
}

// openIn opens a sandbox that is limited to that many processes.
func openIn(t *testing.T, launcher string, processes int64) (sandbox.Sandbox, error) {
	t.Helper()
	// So that there is something to give up.
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{Cur: 0, Max: 1 << 20}))
	workspace := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(workspace, "d/p"), 0o755))
	require.NoError(t, os.Mkdir(filepath.Join(workspace, "d/other"), 0o755))
	network := isolation.Network{}
	if processes == initd.FaultProcesses("no link") {
		network = isolation.Network{
			Mode: isolation.NetworkProxy, Serve: func(context.Context, net.Listener) {}, ServeLink: func(context.Context, io.ReadWriteCloser) {},
		}
	}
	return ns.New(&ns.Options{Launcher: launcher}).Open(t.Context(), isolation.Spec{
		ID: "faulty", Workspace: workspace, Scratch: t.TempDir(), Protection: isolation.Protection{Protect: []string{"d/p"}},
		Limits: sandbox.Limits{Processes: processes}, Network: network,
	})
}
