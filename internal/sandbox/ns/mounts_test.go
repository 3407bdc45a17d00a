//go:build linux

package ns_test

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/internal/sandbox/ns"
	"github.com/toolfleet/toolfleet/pkg/protocol"
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
	result := mustExec(t, s, sandbox.Cmd{Argv: []string{"sh", "-c", "cat /opt/tools/file; : >/opt/tools/x"}})
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
			Mounts: []isolation.Mount{
				{Host: inner, Guest: "/opt/outer/inner", AsOwner: true},
				{Host: outer, Guest: "/opt/outer", Write: true},
				{Host: t.TempDir(), Guest: "/opt/cache", Write: true, Cache: true},
			},
		})
		require.NoError(t, err)
		result := mustExec(t, s, sandbox.Cmd{
			Argv: []string{"sh", "-c", "cat /opt/outer/inner/own; mkdir -m 555 /opt/outer/d && echo x >/opt/outer/file && stat -c %U /opt/outer/file; : >/opt/outer/inner/x"},
		})
		require.Equal(t, "read sandbox\n", string(result.Stdout.Data), string(result.Stderr.Data))
		require.Contains(t, string(result.Stderr.Data), "Read-only", "the inner mount is not hidden by the outer one")
		result = mustExec(t, s, sandbox.Cmd{Argv: []string{"sh", "-c", "echo x >/opt/cache/x && echo cached; : >/opt/outer/y"}, ReadOnly: true})
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
			result := mustExec(t, s, cmd)
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
			result := mustExec(t, s, sandbox.Cmd{Argv: []string{"sh", "-c", script, at.guest}})
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
		result := mustExec(t, s, sandbox.Cmd{Argv: []string{"sh", "-c", "cat sub/there; echo made >made; echo made >sub/made"}})
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
			ID: "exchanged", Workspace: workspace, Scratch: t.TempDir(),
			Env:        map[string]string{"PATH": "/usr/bin:/bin"},
			Protection: isolation.Protection{Protect: []string{"d/p"}},
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
