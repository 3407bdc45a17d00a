//go:build linux

package ns_test

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/internal/sandbox/ns"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// mountBelow mounts a file system on a new directory, which belongs to a user. The mount is shared,
// as those of most hosts are.
func mountBelow(t *testing.T, kind, dir string, uid int) {
	t.Helper()
	require.NoError(t, os.MkdirAll(dir, 0o755))
	require.NoError(t, unix.Mount(kind, dir, kind, 0, ""))
	t.Cleanup(func() { require.NoError(t, unix.Unmount(dir, 0)) })
	require.NoError(t, unix.Mount("", dir, "", unix.MS_SHARED, ""))
	require.NoError(t, os.Chown(dir, uid, uid))
	require.NoError(t, os.Chmod(dir, 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "there"), []byte("seen\n"), 0o600))
	require.NoError(t, os.Chown(filepath.Join(dir, "there"), uid, uid))
}

// TestMounts_BelowAreSeenByTheSandboxOfRoot: what is mounted below the workspace, or below a mount
// of the sandbox, is what commands see and change there, by the rights of the mount that it is in.
func TestMounts_BelowAreSeenByTheSandboxOfRoot(t *testing.T) {
	t.Parallel()
	inArms(t, true, func(t *testing.T) {
		t.Helper()
		if os.Geteuid() != 0 {
			t.Skip("this test is about root; without it the kernel clones whole trees")
		}
		const uid = 1234
		work, open, shown := t.TempDir(), t.TempDir(), t.TempDir()
		for _, dir := range []string{work, open, shown} {
			require.NoError(t, os.Chown(dir, uid, uid))
		}
		require.NoError(t, os.MkdirAll(filepath.Join(work, ".git", "hooks"), 0o777))
		for _, dir := range []string{"node_modules", "node_modules/deep", ".git/hooks"} {
			mountBelow(t, "tmpfs", filepath.Join(work, dir), uid)
		}
		mountBelow(t, "tmpfs", filepath.Join(open, "sub"), uid)
		mountBelow(t, "tmpfs", filepath.Join(shown, "sub"), uid)
		s, err := ns.New(nil).Open(t.Context(), isolation.Spec{
			ID: "below", Workspace: work, Scratch: t.TempDir(), Env: map[string]string{"PATH": "/usr/bin:/bin"}, Protection: isolation.Protection{Protect: []string{".git"}},
			Mounts: []isolation.Mount{{Host: open, Guest: "/opt/open", Write: true}, {Host: shown, Guest: "/opt/shown", AsOwner: true}},
		})
		require.NoError(t, err)
		defer func() { require.NoError(t, s.Close()) }()
		for _, at := range []struct {
			host, guest string
			writable    bool
		}{
			{filepath.Join(work, "node_modules"), "/workspace/node_modules", true},
			{filepath.Join(work, "node_modules/deep"), "/workspace/node_modules/deep", true},
			{filepath.Join(work, ".git/hooks"), "/workspace/.git/hooks", false},
			{filepath.Join(open, "sub"), "/opt/open/sub", true},
			{filepath.Join(shown, "sub"), "/opt/shown/sub", false},
		} {
			const script = `cd "$0" && cat there; echo made >made; grep " $0 " /proc/self/mountinfo | cut -d' ' -f6,7`
			result, err := s.Exec(t.Context(), sandbox.Cmd{Argv: []string{"sh", "-c", script, at.guest}})
			require.NoError(t, err)
			require.Regexp(t, `^seen\n(.+\n)+$`, string(result.Stdout.Data), "%s: %s", at.guest, result.Stderr.Data)
			require.Regexp(t, `\nr[wo],nosuid,nodev,[a-z,]+ -\n$`, string(result.Stdout.Data), "set-user-ID programs, devices and propagation of %s", at.guest)
			made := filepath.Join(at.host, "made")
			if !at.writable {
				require.Contains(t, string(result.Stderr.Data), "Read-only file system", at.guest)
				require.NoFileExists(t, made)
				continue
			}
			requireMade(t, made, uid)
		}
		_, err = s.FS().Write(t.Context(), protocol.FilesWrite{Path: "node_modules/made", Content: []byte("made\n")})
		require.NoError(t, err)
		requireMade(t, filepath.Join(work, "node_modules/made"), uid)
	})
}

// TestMounts_BelowThatCannotBeTranslatedAreReadOnly: a file system that cannot show its files under
// another owner is shown as it is. Nothing is written beneath it.
func TestMounts_BelowThatCannotBeTranslatedAreReadOnly(t *testing.T) {
	t.Parallel()
	inArms(t, true, func(t *testing.T) {
		t.Helper()
		if os.Geteuid() != 0 {
			t.Skip("this test is about root; an ordinary user needs no translation")
		}
		work := t.TempDir()
		mountBelow(t, "ramfs", filepath.Join(work, "sub"), 0)
		require.NoError(t, os.Chmod(filepath.Join(work, "sub"), 0o777))
		require.NoError(t, os.Chmod(filepath.Join(work, "sub/there"), 0o644))
		s, err := ns.New(nil).Open(t.Context(), isolation.Spec{ID: "below", Workspace: work, Scratch: t.TempDir(), Env: map[string]string{"PATH": "/usr/bin:/bin"}})
		require.NoError(t, err)
		defer func() { require.NoError(t, s.Close()) }()
		result, err := s.Exec(t.Context(), sandbox.Cmd{Argv: []string{"sh", "-c", "cat sub/there; echo made >made; echo made >sub/made"}})
		require.NoError(t, err)
		require.Equal(t, "seen\n", string(result.Stdout.Data), "%s", result.Stderr.Data)
		require.Contains(t, string(result.Stderr.Data), "Read-only file system")
		requireMade(t, filepath.Join(work, "made"), 0)
		require.NoFileExists(t, filepath.Join(work, "sub/made"))
	})
}

// requireMade wants a file of the host that belongs to a user.
func requireMade(t *testing.T, path string, uid int) {
	t.Helper()
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, "made\n", string(data))
	info, err := os.Stat(path)
	require.NoError(t, err)
	stat, is := info.Sys().(*syscall.Stat_t)
	require.True(t, is)
	require.Equal(t, uid, int(stat.Uid), path)
}
