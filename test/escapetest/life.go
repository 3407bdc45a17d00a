//go:build linux

package escapetest

import (
	"context"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// checkLife does to the sandbox itself what a probe cannot survive.
func (b *bench) checkLife(t *testing.T) {
	t.Helper()
	if b.caps.Level >= isolation.LevelFull {
		t.Run("kill everything", b.killEverything)
		t.Run("signals to the first process", b.signalInit)
		if b.host.ShmID >= 0 && b.host.MsgID >= 0 && b.host.SemID >= 0 {
			t.Run("what is shared ends with the commands", b.leaveShared)
			t.Run("what is shared is memory of its sandbox", b.shareMuch)
		} else {
			t.Log("UNSUPPORTED: this kernel has no System V IPC")
		}
		t.Run("what is shared by several counts once", b.holdShared)
	}
	if b.caps.ReadOnly {
		t.Run("read-only commands", b.checkReadOnly)
	}
	t.Run("file operations on hostile names", b.hostileNames)
	t.Run("swap race", b.swapRace)
}

// killEverything kills all that a command can kill: the sandbox goes on.
func (b *bench) killEverything(t *testing.T) {
	_, err := b.sandbox.Exec(t.Context(), sandbox.Cmd{Argv: []string{"sh", "-c", "kill -9 -1; kill -9 1; kill -9 $PPID; kill -9 $$"}})
	require.NoError(t, err)
	result, err := b.sandbox.Exec(t.Context(), sandbox.Cmd{Argv: []string{"sh", "-c", "echo alive"}})
	require.NoError(t, err)
	require.Equal(t, "alive\n", string(result.Stdout.Data))
	require.NoError(t, syscall.Kill(b.host.Worker, 0))
}

// signalInit sends every signal to the first process. A command that lives on to tell shows that
// the sandbox does.
func (b *bench) signalInit(t *testing.T) {
	const script = `s=1; while [ $s -le 64 ]; do kill -$s 1 2>/dev/null; s=$((s+1)); done; sleep 0.1; echo alive`
	result, err := b.sandbox.Exec(t.Context(), sandbox.Cmd{Argv: []string{"sh", "-c", script}})
	require.NoError(t, err)
	require.Equal(t, sandbox.ReasonExited, result.Reason)
	require.Equal(t, "alive\n", string(result.Stdout.Data))
}

// leaveShared shares memory, a queue and a semaphore by System V's means, which are there as long
// as there are commands.
func (b *bench) leaveShared(t *testing.T) {
	ctx, end := context.WithCancel(t.Context())
	defer end()
	up, done := make(chan struct{}, 1), make(chan sandbox.Result, 1)
	go func() {
		result, err := b.sandbox.Exec(ctx, sandbox.Cmd{
			Argv: []string{"sh", "-c", "echo up; exec sleep 1000"}, Live: func(sandbox.Stream, []byte) { up <- struct{}{} },
		})
		if err != nil {
			t.Errorf("Exec: %v", err)
		}
		done <- result
	}()
	<-up
	const list = "cat /proc/sysvipc/* | grep -vc key; true"
	require.Equal(t, "shared\n3\n", b.shell(t, "./probe share 1 && "+list))
	require.Equal(t, "3\n", b.shell(t, list), "while a command runs")
	end()
	require.Equal(t, sandbox.ReasonCancelled, (<-done).Reason)
	require.Equal(t, "0\n", b.shell(t, list))
}

func (b *bench) shell(t *testing.T, script string) string {
	t.Helper()
	result, err := b.sandbox.Exec(t.Context(), sandbox.Cmd{Argv: []string{"sh", "-c", script}})
	require.NoError(t, err)
	require.Empty(t, string(result.Stderr.Data))
	return string(result.Stdout.Data)
}

// shareMuch shares more memory than its sandbox has, and lets it go.
func (b *bench) shareMuch(t *testing.T) {
	result, err := b.sandbox.Exec(t.Context(), sandbox.Cmd{
		Argv: []string{"sh", "-c", "./probe share 500000000; exec sleep 1000"}, Limits: sandbox.Limits{Memory: 64 << 20, Wall: time.Minute},
	})
	require.NoError(t, err)
	require.Equal(t, sandbox.ReasonOOM, result.Reason)
}

// holdShared has six processes hold 40 MB each: together too much, unless it is the same in all of
// them.
func (b *bench) holdShared(t *testing.T) {
	const script = `mkfifo held; for i in 1 2 3 4 5 6; do ./probe hold $0 40000000 >held & done; exec 3<held
		for i in 1 2 3 4 5 6; do read x <&3 || exit 1; done; sleep $1; rm -f held /dev/shm/same; echo all`
	for file, want := range map[string]sandbox.Reason{"-": sandbox.ReasonOOM, "/dev/shm/same": sandbox.ReasonExited} {
		seconds := map[sandbox.Reason]string{sandbox.ReasonOOM: "1000", sandbox.ReasonExited: "0.5"}[want]
		result, err := b.sandbox.Exec(t.Context(), sandbox.Cmd{
			Argv: []string{"sh", "-c", "rm -f held; " + script, file, seconds}, Limits: sandbox.Limits{Memory: 128 << 20, Wall: time.Minute},
		})
		require.NoError(t, err)
		require.Equal(t, want, result.Reason, "%s: %s", file, result.Stderr.Data)
		require.Equal(t, want == sandbox.ReasonExited, string(result.Stdout.Data) == "all\n")
	}
}

// hostileNames lets file operations run into what a command may have left.
func (b *bench) hostileNames(t *testing.T) {
	dir := filepath.Join(b.workspace, "hostile")
	require.NoError(t, os.Mkdir(dir, 0o777))
	require.NoError(t, os.Chmod(dir, 0o777))
	require.NoError(t, syscall.Mkfifo(filepath.Join(dir, "fifo"), 0o666))
	secret := filepath.Join(b.host.Dir, "public")
	for name, target := range map[string]string{
		"absolute": secret, "relative": relative(t, dir, secret), "directory": b.host.Dir, "root": "/", "loop": "loop",
		"environ": "/proc/self/environ", "memory": "/proc/self/mem", "null": "/dev/zero", "socket": filepath.Join(b.host.Dir, "socket"),
		"victim": filepath.Join(b.host.Dir, "victim"),
	} {
		require.NoError(t, os.Symlink(target, filepath.Join(dir, name)))
	}
	fs := b.sandbox.FS()
	for _, name := range []string{
		"fifo", "absolute", "relative", "directory/public", "root/" + secret, "loop", "environ", "memory",
		"null", "socket", "directory", "../../../../../.." + secret,
	} {
		t.Run(filepath.Base(name), func(t *testing.T) {
			path := "hostile/" + name
			read, err := fs.Read(t.Context(), protocol.FilesRead{Path: path})
			if err == nil {
				require.NotContains(t, string(read.Content), b.host.Secret)
			}
			if found, err := fs.Search(t.Context(), protocol.FilesSearch{Path: path, Pattern: "."}, 0); err == nil {
				for _, match := range found.Matches {
					require.NotContains(t, match.Text, b.host.Secret)
				}
			}
		})
	}
	for _, name := range []string{"victim", "directory/victim", "root/" + filepath.Join(b.host.Dir, "victim")} {
		_, _ = fs.Write(t.Context(), protocol.FilesWrite{Path: "hostile/" + name, Content: []byte("overwritten")})
	}
	data, err := os.ReadFile(filepath.Join(b.host.Dir, "victim"))
	require.NoError(t, err)
	require.NotContains(t, string(data), "overwritten")
}

func relative(t *testing.T, from, to string) string {
	t.Helper()
	path, err := filepath.Rel(from, to)
	require.NoError(t, err)
	return path
}
