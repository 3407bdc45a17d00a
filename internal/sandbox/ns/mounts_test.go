//go:build linux

package ns_test

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/internal/sandbox/ns"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
	"github.com/toolfleet/toolfleet/test/processtest"
)

// What a sandbox has of its own would hide a mount there, or be hidden by it.
func TestMounts_HavePlacesOfTheirOwn(t *testing.T) {
	t.Parallel()
	host := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(host, "file"), []byte("seen"), 0o644))
	require.NoError(t, os.Chmod(host, 0o755))
	open := func(guest string) (sandbox.Sandbox, error) {
		return ns.New(nil).Open(t.Context(), isolation.Spec{
			ID: "mounts", Workspace: t.TempDir(), Scratch: t.TempDir(), Env: map[string]string{"PATH": "/usr/bin:/bin"},
			Mounts: []isolation.Mount{{Host: host, Guest: guest}},
		})
	}
	for _, guest := range []string{"/", "/tmp", "/tmp.host/x", "/home/sandbox/x", "/workspace/x", "/proc/x", "/dev", "/etc/passwd", "/home", "x", "/opt/../tmp"} {
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
func TestMounts_CanBeWrittenTo(t *testing.T) {
	t.Parallel()
	inArms(t, true, func(t *testing.T) {
		t.Helper()
		outer, inner := t.TempDir(), t.TempDir()
		require.NoError(t, os.Mkdir(filepath.Join(outer, "inner"), 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(inner, "own"), []byte("read "), 0o600))
		s, err := ns.New(nil).Open(t.Context(), isolation.Spec{
			ID: "written", Workspace: t.TempDir(), Scratch: t.TempDir(), Env: map[string]string{"PATH": "/usr/bin:/bin"},
			Mounts: []isolation.Mount{{Host: inner, Guest: "/opt/outer/inner", AsOwner: true}, {Host: outer, Guest: "/opt/outer", Write: true}, {Host: t.TempDir(), Guest: "/opt/cache", Write: true, Cache: true}},
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

// TestMounts_BelowTmp are at the host's paths, next to the temporary files of commands. They do not
// count as those, survive a command that empties /tmp, and one that only reads cannot change them.
func TestMounts_BelowTmp(t *testing.T) {
	t.Parallel()
	inArms(t, true, func(t *testing.T) {
		t.Helper()
		bin, data, scratch := filepath.Join(t.TempDir(), "my bin"), t.TempDir(), t.TempDir()
		require.NoError(t, os.Mkdir(bin, 0o700))
		processtest.WriteProgram(t, filepath.Join(bin, "tool"), []byte("#!/bin/sh\necho $0\n"))
		require.NoError(t, os.WriteFile(filepath.Join(bin, "big"), make([]byte, 30<<20), 0o600))
		s, err := ns.New(nil).Open(t.Context(), isolation.Spec{
			ID: "tmp", Workspace: t.TempDir(), Scratch: scratch, Env: map[string]string{"PATH": "/tmp/ci home/my bin:/usr/bin:/bin"},
			Limits: sandbox.Limits{Disk: 20 << 20},
			Mounts: []isolation.Mount{
				{Host: bin, Guest: "/tmp/ci home/my bin", AsOwner: true},
				{Host: filepath.Join(bin, "tool"), Guest: "/tmp/file", AsOwner: true},
				{Host: data, Guest: "/tmp/ci home/data", Write: true, AsOwner: true},
			},
		})
		require.NoError(t, err)
		defer func() { require.NoError(t, s.Close()) }()
		says := func(cmd sandbox.Cmd, script string) string {
			cmd.Argv = []string{"sh", "-c", script}
			result, err := s.Exec(t.Context(), cmd)
			require.NoError(t, err)
			require.Equal(t, sandbox.ReasonExited, result.Reason)
			return string(result.Stdout.Data) + string(result.Stderr.Data)
		}
		for range 2 {
			require.Equal(t, "/tmp/ci home/my bin/tool\n/tmp/file\n", says(sandbox.Cmd{}, `tool; /tmp/file`))
			require.Contains(t, says(sandbox.Cmd{}, `echo x >"/tmp/ci home/my bin/tool"`), "Read-only")
			require.Empty(t, says(sandbox.Cmd{}, `echo x >"/tmp/ci home/data/written"; echo x >/tmp/x`))
			require.Contains(t, says(sandbox.Cmd{ReadOnly: true}, `: >"/tmp/ci home/data/written"; echo x >/tmp/y`), "Permission denied")
			busy := says(sandbox.Cmd{}, `rm -rf /tmp/*; mv "/tmp/ci home" /tmp/other; ls /tmp`)
			require.Contains(t, busy, "busy")
			require.Contains(t, busy, "ci home\nfile\n")
			require.NoError(t, s.Reset(t.Context()))
		}
		require.FileExists(t, filepath.Join(data, "written"))
		require.NoError(t, s.Close())

		// What commands of an earlier life have put there makes way.
		require.NoError(t, os.Remove(filepath.Join(scratch, "tmp", "file")))
		require.NoError(t, os.MkdirAll(filepath.Join(scratch, "tmp", "file", "deep"), 0o700))
		again, err := ns.New(nil).Open(t.Context(), isolation.Spec{
			ID: "again", Workspace: t.TempDir(), Scratch: scratch, Env: map[string]string{"PATH": "/usr/bin:/bin"},
			Mounts: []isolation.Mount{{Host: filepath.Join(bin, "tool"), Guest: "/tmp/file", AsOwner: true}},
		})
		require.NoError(t, err)
		require.NoError(t, again.Close())
	})
}
