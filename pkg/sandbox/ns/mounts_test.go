//go:build linux

package ns_test

import (
	"os"
	"path/filepath"
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
	for _, guest := range []string{"", "/", "/tmp", "/tmp/x", "/home/sandbox/x", "/workspace/x", "/proc/x", "/dev", "/etc/passwd", "x", "/opt/../tmp/x"} {
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
