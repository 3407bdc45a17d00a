//go:build linux

package ns_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/internal/sandbox/ns"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// TestProtect_NothingOfTheHostWhileDirectoriesAreExchanged opens sandboxes while the directory that
// a protected place is in is exchanged, all the time, for a link to a directory of the host: what
// is mounted is of the workspace, or the sandbox does not serve.
func TestProtect_NothingOfTheHostWhileDirectoriesAreExchanged(t *testing.T) { //nolint:paralleltest // its arms are processes of their own
	inArms(t, true, func(t *testing.T) {
		t.Helper()
		exchanged(t, ns.New(&ns.Options{Launcher: ns.LauncherNative}))
		if _, err := os.Stat("/usr/bin/bwrap"); err == nil && os.Geteuid() != 0 {
			exchanged(t, withBwrap())
		}
	})
}

func exchanged(t *testing.T, d isolation.Driver) {
	t.Helper()
	host, workspace := t.TempDir(), t.TempDir()
	for dir, content := range map[string]string{host: "secret", filepath.Join(workspace, "d"): "mine"} {
		require.NoError(t, os.MkdirAll(filepath.Join(dir, "p"), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(dir, "p", "f"), []byte(content), 0o644))
		require.NoError(t, os.Chmod(dir, 0o755))
	}
	require.NoError(t, os.Symlink(host, filepath.Join(workspace, "link")))
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for exchanges := 0; ; exchanges++ {
			select {
			case <-stop:
				t.Logf("%d exchanges", exchanges)
				return
			default:
				_ = unix.Renameat2(unix.AT_FDCWD, filepath.Join(workspace, "d"), unix.AT_FDCWD, filepath.Join(workspace, "link"), unix.RENAME_EXCHANGE)
			}
		}
	}()
	served, refused := 0, 0
	for end := time.Now().Add(time.Second); time.Now().Before(end); {
		s, err := d.Open(t.Context(), isolation.Spec{
			ID: "exchanged", Workspace: workspace, Scratch: t.TempDir(), Env: map[string]string{"PATH": "/usr/bin:/bin"}, Protection: isolation.Protection{Protect: []string{"d/p"}},
		})
		if err != nil {
			refused++
			continue
		}
		// What was exchanged since has the sandbox made anew, which may be refused.
		result, err := s.Exec(t.Context(), sandbox.Cmd{Argv: []string{"sh", "-c", "cat /workspace/d/p/f /workspace/link/p/f"}})
		if err == nil {
			served++
		}
		require.NotContains(t, string(result.Stdout.Data), "secret")
		require.NoError(t, s.Close())
	}
	close(stop)
	<-stopped
	t.Logf("%d sandboxes served, %d were refused", served, refused)
}
