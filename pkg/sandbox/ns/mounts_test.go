//go:build linux

package ns_test

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/pkg/sandbox"
	"github.com/toolfleet/toolfleet/pkg/sandbox/ns"
)

// What a sandbox has of its own would hide a mount there, or be hidden by it.
func TestMounts_HavePlacesOfTheirOwn(t *testing.T) {
	t.Parallel()
	host := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(host, "file"), []byte("seen"), 0o644))
	require.NoError(t, os.Chmod(host, 0o755))
	open := func(guest string) (sandbox.Sandbox, error) {
		return ns.New(nil).Open(t.Context(), sandbox.Spec{
			ID: "mounts", Workspace: t.TempDir(), Scratch: t.TempDir(), Env: map[string]string{"PATH": "/usr/bin:/bin"},
			Mounts: []sandbox.Mount{{Host: host, Guest: guest}},
		})
	}
	for _, guest := range []string{"", "/", "/tmp", "/tmp/x", "/home/sandbox/x", "/workspace/x", "/proc/x", "/dev", "/etc/passwd", "/home", "x", "/opt/../tmp/x"} {
		_, err := open(guest)
		require.Error(t, err, guest)
		require.ErrorContains(t, err, "mount "+host, guest)
	}
	s, err := open("/opt/tools")
	require.NoError(t, err)
	defer func() { require.NoError(t, s.Close()) }()
	result, err := s.Exec(t.Context(), sandbox.Cmd{Argv: []string{"sh", "-c", "cat /opt/tools/file; : >/opt/tools/x"}})
	require.NoError(t, err)
	require.Equal(t, "seen", string(result.Stdout.Data))
	require.Contains(t, string(result.Stderr.Data), "Read-only")
	require.NoFileExists(t, filepath.Join(host, "x"))
}

// TestMounts_CanBeWrittenTo by the sandbox's user, whoever that is on the host: what it makes there
// belongs to whom the directory belongs.
func TestMounts_CanBeWrittenTo(t *testing.T) { //nolint:paralleltest // its arms are processes of their own
	inArms(t, true, func(t *testing.T) {
		t.Helper()
		outer, inner := t.TempDir(), t.TempDir()
		require.NoError(t, os.Mkdir(filepath.Join(outer, "inner"), 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(inner, "own"), []byte("read "), 0o600))
		s, err := ns.New(nil).Open(t.Context(), sandbox.Spec{
			ID: "written", Workspace: t.TempDir(), Scratch: t.TempDir(), Env: map[string]string{"PATH": "/usr/bin:/bin"},
			Mounts: []sandbox.Mount{{Host: inner, Guest: "/opt/outer/inner", AsOwner: true}, {Host: outer, Guest: "/opt/outer", Write: true}, {Host: t.TempDir(), Guest: "/opt/cache", Write: true, Cache: true}},
		})
		require.NoError(t, err)
		result, err := s.Exec(t.Context(), sandbox.Cmd{Argv: []string{"sh", "-c", "cat /opt/outer/inner/own; mkdir -m 555 /opt/outer/d && echo x >/opt/outer/file && stat -c %U /opt/outer/file; : >/opt/outer/inner/x"}})
		require.NoError(t, err)
		require.Equal(t, "read sandbox\n", string(result.Stdout.Data), string(result.Stderr.Data))
		require.Contains(t, string(result.Stderr.Data), "Read-only", "the inner mount is not hidden by the outer one")
		result, err = s.Exec(t.Context(), sandbox.Cmd{Argv: []string{"sh", "-c", "echo x >/opt/cache/x && echo cached; : >/opt/outer/y"}, ReadOnly: true})
		require.NoError(t, err)
		require.Equal(t, "cached\n", string(result.Stdout.Data))
		require.Contains(t, string(result.Stderr.Data), "Permission denied")
		require.NoError(t, s.Close())
		info, err := os.Stat(filepath.Join(outer, "file"))
		require.NoError(t, err)
		stat, is := info.Sys().(*syscall.Stat_t)
		require.True(t, is)
		require.Equal(t, os.Geteuid(), int(stat.Uid))
	})
}
