//go:build linux

package ns

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/toolfleet/toolfleet/pkg/sandbox"
	"github.com/toolfleet/toolfleet/pkg/sandbox/escapetest"
)

// ordinary is a sandbox as most are.
func ordinary(t *testing.T) sandbox.Spec {
	t.Helper()
	return sandbox.Spec{ID: "spare", Workspace: t.TempDir(), Scratch: t.TempDir(), Env: map[string]string{"PATH": "/usr/bin:/bin"}}
}

// withSpare returns a driver that has the next sandbox like one half made, and the id of its first process.
func withSpare(t *testing.T, spec sandbox.Spec) (*Driver, int) {
	t.Helper()
	d := New(nil)
	d.spares = &spare{life: time.Minute}
	t.Cleanup(func() {
		d.spares.mu.Lock()
		defer d.spares.mu.Unlock()
		d.spares.drop()
	})
	s := openOne(t, d, spec)
	d.spares.renew(s.config, s.groups)
	require.NoError(t, s.Close())
	return d, spareOf(d).process.Pid
}

func spareOf(d *Driver) *half {
	d.spares.mu.Lock()
	defer d.spares.mu.Unlock()
	return d.spares.ready
}

// openOne opens a sandbox and uses it.
func openOne(t *testing.T, d *Driver, spec sandbox.Spec) *Sandbox {
	t.Helper()
	require.NoError(t, os.WriteFile(filepath.Join(spec.Workspace, "file"), []byte("kept"), 0o644))
	s, err := d.open(t.Context(), spec)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	requireFresh(t, s)
	return s
}

// requireEnd waits for the end of a process, which is a child of this one.
func requireEnd(t *testing.T, pid int) {
	t.Helper()
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		require.ErrorIs(t, err, unix.ESRCH)
		return
	}
	defer unix.Close(fd)
	n, err := -1, error(unix.EINTR) // as a signal of the runtime has it
	for errors.Is(err, unix.EINTR) {
		n, err = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(time.Minute.Milliseconds()))
	}
	require.NoError(t, err)
	require.Equal(t, 1, n, "process %d lives", pid)
}

// TestSpare_BecomesTheNextOneThatIsAlike: with its own directories and limits, and no other does.
func TestSpare_BecomesTheNextOneThatIsAlike(t *testing.T) { //nolint:paralleltest // its arms are processes of their own
	escapetest.InArms(t, true, func(t *testing.T) {
		t.Helper()
		for name, other := range map[string]sandbox.Spec{
			"network":   {Network: sandbox.Network{Mode: sandbox.NetworkAll}},
			"processes": {Limits: sandbox.Limits{Processes: 77}},
			"mounts":    {Mounts: []sandbox.Mount{{Host: t.TempDir(), Guest: "/mnt/x"}}},
		} {
			spec := ordinary(t)
			spec.Network, spec.Limits, spec.Mounts = other.Network, other.Limits, other.Mounts
			d, pid := withSpare(t, ordinary(t))
			require.NotEqual(t, pid, openOne(t, d, spec).current.process.Pid, name)
		}
		guarded := ordinary(t)
		guarded.Protect = []string{"dir/protected"}
		d, pid := withSpare(t, guarded)
		guarded.Workspace, guarded.Scratch = t.TempDir(), t.TempDir()
		s := openOne(t, d, guarded)
		require.Equal(t, pid, s.current.process.Pid)
		result, err := s.Exec(t.Context(), sandbox.Cmd{Argv: []string{"touch", "dir/protected/x"}})
		require.NoError(t, err)
		require.NotZero(t, result.ExitCode)
		d, pid = withSpare(t, ordinary(t))
		s = openOne(t, d, ordinary(t))
		require.Equal(t, pid, s.current.process.Pid)
		_, err = s.FS().Write(t.Context(), sandbox.WriteRequest{Path: "written", Content: []byte("x")})
		require.NoError(t, err)
		content, err := os.ReadFile(filepath.Join(s.spec.Workspace, "written"))
		require.NoError(t, err)
		require.Equal(t, "x", string(content))
	})
}

// TestSpare_IsNotUsedOnceTheHostHasChanged: neither when something was mounted nor when a file was replaced.
func TestSpare_IsNotUsedOnceTheHostHasChanged(t *testing.T) { //nolint:paralleltest // as above
	escapetest.InArms(t, true, func(t *testing.T) {
		t.Helper()
		for name, change := range map[string]func(t *testing.T, s *spare){
			"a file": func(_ *testing.T, s *spare) { s.host.files[len(s.host.files)-1].inode++ },
			"a mount": func(t *testing.T, _ *spare) {
				t.Helper()
				if os.Geteuid() != 0 {
					t.Skip("UNSUPPORTED: only root can mount anything")
				}
				at := t.TempDir()
				require.NoError(t, unix.Mount("none", at, "tmpfs", 0, "")) // in a mount namespace of this arm's own
				t.Cleanup(func() { require.NoError(t, unix.Unmount(at, unix.MNT_DETACH)) })
			},
		} {
			t.Run(name, func(t *testing.T) {
				d, pid := withSpare(t, ordinary(t))
				change(t, d.spares)
				require.NotEqual(t, pid, openOne(t, d, ordinary(t)).current.process.Pid)
				requireEnd(t, pid)
			})
		}
	})
}

// TestSpare_ThatIsGoneIsNotMissed: whatever has become of it, sandboxes open.
func TestSpare_ThatIsGoneIsNotMissed(t *testing.T) { //nolint:paralleltest // as above
	escapetest.InArms(t, true, func(t *testing.T) {
		t.Helper()
		d, pid := withSpare(t, ordinary(t))
		require.NoError(t, spareOf(d).process.Kill())
		require.NotEqual(t, pid, openOne(t, d, ordinary(t)).current.process.Pid)
	})
}

// TestSpare_EndsWithItsWorker: the other end of its control socket is closed then.
func TestSpare_EndsWithItsWorker(t *testing.T) { //nolint:paralleltest // as above
	escapetest.InArms(t, true, func(t *testing.T) {
		t.Helper()
		d, pid := withSpare(t, ordinary(t))
		require.NoError(t, spareOf(d).conn.Close())
		requireEnd(t, pid)
	})
}

// TestSpare_DoesNotLastForEver: it holds what the host has mounted.
func TestSpare_DoesNotLastForEver(t *testing.T) {
	t.Parallel()
	d, pid := withSpare(t, ordinary(t))
	d.spares.mu.Lock()
	d.spares.expiry.Reset(0)
	d.spares.mu.Unlock()
	requireEnd(t, pid)
}

// TestSpare_PathsThatAreTooLong: they are refused, and not cut.
func TestSpare_PathsThatAreTooLong(t *testing.T) {
	t.Parallel()
	s := openLost(t)
	config := s.config
	config.Privileged = false
	config.Home = "/" + string(make([]byte, unix.PathMax))
	h := &half{instance: s.current, owners: -1}
	require.ErrorContains(t, h.furnish(config), unix.ENAMETOOLONG.Error())
}
