//go:build linux

package ns_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/internal/sandbox/ns"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// limited opens a sandbox with limits.
func limited(t *testing.T, limits sandbox.Limits) sandbox.Sandbox {
	t.Helper()
	if limits.Wall == 0 {
		limits.Wall = 2 * time.Minute // for what does not end
	}
	s, err := ns.New(nil).Open(t.Context(), isolation.Spec{
		ID: t.Name(), Workspace: t.TempDir(), Scratch: t.TempDir(),
		Env: map[string]string{"PATH": "/usr/local/bin:/usr/bin:/bin"}, Limits: limits,
	})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

func run(t *testing.T, s sandbox.Sandbox, script string) sandbox.Result {
	t.Helper()
	result := mustExec(t, s, sandbox.Cmd{Argv: []string{"bash", "-c", script}})
	return result
}

// A shell becomes the last command that it runs, and then holds nothing any more: therefore the ":"
// at the end of scripts that hold memory.

// TestAbuse_EndsForTheRightReason: what a sandbox may not do ends, soon and alone.
func TestAbuse_EndsForTheRightReason(t *testing.T) {
	inArms(t, true, func(t *testing.T) {
		t.Helper()
		for name, test := range map[string]struct {
			limits sandbox.Limits
			script string
			reason sandbox.Reason
		}{
			"memory of one process": {
				sandbox.Limits{Memory: 64 << 20}, `x=x; while :; do x=$x$x; done`, sandbox.ReasonOOM,
			},
			"memory of many processes": {
				sandbox.Limits{Memory: 100 << 20}, `for i in $(seq 30); do (printf -v x %8000000s; sleep 100; :) & done; wait`, sandbox.ReasonOOM,
			},
			"disk, many files": {
				sandbox.Limits{Disk: 20 << 20}, `i=0; while :; do head -c 100000 /dev/zero >$i; i=$((i+1)); done`, sandbox.ReasonDiskLimit,
			},
			"disk, /tmp":        {sandbox.Limits{Disk: 20 << 20}, `i=0; while :; do head -c 100000 /dev/zero >/tmp/$i; i=$((i+1)); done`, sandbox.ReasonDiskLimit},
			"disk, empty files": {sandbox.Limits{Disk: 4 << 20}, `i=0; while :; do : >$i; i=$((i+1)); done`, sandbox.ReasonDiskLimit},
			"disk, one file":    {sandbox.Limits{Disk: 5 << 20}, `exec head -c 100000000 /dev/zero >file`, sandbox.ReasonDiskLimit},
			"file size":         {sandbox.Limits{FileSize: 1 << 20}, `exec head -c 100000000 /dev/zero >file`, sandbox.ReasonDiskLimit},
			"processor time":    {sandbox.Limits{CPU: time.Second}, `while :; do :; done`, sandbox.ReasonTimeout},
			"output":            {sandbox.Limits{Output: 1 << 16, Wall: 2 * time.Second}, `yes & yes >&2`, sandbox.ReasonTimeout},
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				s := limited(t, test.limits)
				start := time.Now()
				require.Equal(t, test.reason, run(t, s, test.script).Reason)
				require.Less(t, time.Since(start), time.Minute)
				require.Equal(t, "fine\n", string(run(t, s, "echo fine").Stdout.Data))
			})
		}
	})
}

// TestAbuse_MemoryIsTheSandboxs: commands side by side share the memory of their sandbox, and
// it is the one that holds most who ends.
func TestAbuse_MemoryIsTheSandboxs(t *testing.T) { //nolint:paralleltest // its arms are processes of their own
	inArms(t, true, func(t *testing.T) {
		t.Helper()
		endsAlone(t, limited(t, sandbox.Limits{Memory: 150 << 20}), 60_000_000, "printf -v x %120000000s; sleep 1000; :")
	})
}

// endsAlone runs a script that uses up the memory beside a command that holds some bytes of it: the
// script ends for that, and the command only when it is told to.
func endsAlone(t *testing.T, s sandbox.Sandbox, held int, script string) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	small, up := make(chan sandbox.Result, 1), make(chan struct{}, 1)
	go func() {
		result, _ := s.Exec(ctx, sandbox.Cmd{
			Argv: []string{"bash", "-c", fmt.Sprintf("printf -v x %%%ds; echo up; sleep 1000; :", held)},
			Live: func(sandbox.Stream, []byte) { up <- struct{}{} }, Limits: sandbox.Limits{Grace: 10 * time.Millisecond},
		})
		small <- result
	}()
	<-up
	require.Equal(t, sandbox.ReasonOOM, run(t, s, script).Reason)
	require.Empty(t, small)
	cancel()
	require.Equal(t, sandbox.ReasonCancelled, (<-small).Reason)
}

// TestAbuse_ForksAreBounded: a fork bomb fills its own sandbox and no other, which
// answers at once meanwhile.
func TestAbuse_ForksAreBounded(t *testing.T) { //nolint:paralleltest // its arms are processes of their own
	inArms(t, true, func(t *testing.T) {
		t.Helper()
		s := limited(t, sandbox.Limits{Processes: 100, Wall: 2 * time.Second, Grace: 100 * time.Millisecond})
		other := limited(t, sandbox.Limits{})
		done := make(chan sandbox.Result, 1)
		go func() {
			result, _ := s.Exec(t.Context(), sandbox.Cmd{Argv: []string{"bash", "-c", `trap "" TERM; bomb() { bomb | bomb & }; bomb; while :; do sleep 0.01; done`}})
			done <- result
		}()
		for len(done) == 0 {
			require.Equal(t, "fine\n", string(run(t, other, "echo fine").Stdout.Data))
			_, err := s.FS().Write(t.Context(), protocol.FilesWrite{Path: "file", Content: []byte("x")})
			require.NoError(t, err, "the first process answers")
		}
		require.Equal(t, sandbox.ReasonTimeout, (<-done).Reason)
		require.Equal(t, "fine\n", string(run(t, s, "echo fine").Stdout.Data))
	})
}

// TestOrphans_LeaveNoZombies: what a command leaves without a parent is waited for by the first
// process, also while the command runs.
func TestOrphans_LeaveNoZombies(t *testing.T) { //nolint:paralleltest // its arms are processes of their own
	inArms(t, true, func(t *testing.T) {
		t.Helper()
		s := limited(t, sandbox.Limits{})
		result := run(t, s, `for i in $(seq 50); do (setsid true &); done
			until ! grep -qs '^State:.Z' /proc/[0-9]*/status; do sleep 0.01; done`)
		require.Equal(t, sandbox.ReasonExited, result.Reason, "zombies are left")
		require.Zero(t, result.ExitCode, "%s", result.Stderr.Data)
	})
}

// TestReadOnly_NothingChanges: a read-only command changes nothing in the workspace, beside a
// command that does.
func TestReadOnly_NothingChanges(t *testing.T) { //nolint:paralleltest // its arms are processes of their own
	inArms(t, true, func(t *testing.T) {
		t.Helper()
		s := limited(t, sandbox.Limits{})
		require.Zero(t, run(t, s, "mkdir dir; echo old >file; ln -s file link; chmod 640 file; touch -d @1000000000 file").ExitCode)
		before := string(run(t, s, "stat -c '%n %a %s %Y %F' . * dir").Stdout.Data)
		for _, script := range []string{
			"echo new >file", "echo new >>file", "echo new >link", ": >file", "truncate -s 0 file", "rm file", "rm link", "rmdir dir",
			"mv file dir/", "mv file file2", "touch new", "mkdir new", "ln -s x new", "ln file new", "mkfifo new", "mknod new p",
			"chmod 777 file", "chmod 777 .", "touch file", "touch -d @5 file", "chown 1000 file", "cp /bin/true new",
			"ln file /tmp/hard", "cd dir && touch x", "echo x >/workspace/new", "dd if=/dev/zero of=file conv=notrunc count=1",
			"exec 3<>file", "bash -c 'echo x >file'", "(setsid bash -c 'echo x >file')",
		} {
			result := mustExec(t, s, sandbox.Cmd{Argv: []string{"bash", "-c", script}, ReadOnly: true})
			require.NotZero(t, result.ExitCode, script)
			require.Equal(t, before, string(run(t, s, "stat -c '%n %a %s %Y %F' . * dir").Stdout.Data), script)
		}
		result := mustExec(t, s, sandbox.Cmd{
			Argv: []string{"bash", "-c", `cat file && echo x >/tmp/x && echo y >"$HOME/y" && echo z >/dev/null && cat /tmp/x | tee /dev/null`}, ReadOnly: true,
		})
		require.Zero(t, result.ExitCode, "%s", result.Stderr.Data)
		require.Equal(t, "old\nx\n", string(result.Stdout.Data))
		require.Zero(t, run(t, s, "echo new >file").ExitCode, "others may change it")
	})
}

// TestOwner_StaysThatOfTheDirectory: what commands and file operations make in a workspace
// belongs to whom the directory belongs to.
func TestOwner_StaysThatOfTheDirectory(t *testing.T) { //nolint:paralleltest // its arms are processes of their own
	inArms(t, true, func(t *testing.T) {
		t.Helper()
		if os.Geteuid() != 0 {
			return // it is the only user there
		}
		for _, uid := range []int{0, 12345} {
			workspace := t.TempDir()
			require.NoError(t, os.WriteFile(filepath.Join(workspace, "theirs"), []byte("old"), 0o600))
			require.NoError(t, os.Chown(filepath.Join(workspace, "theirs"), uid, uid))
			require.NoError(t, os.Chown(workspace, uid, uid))
			s, err := ns.New(nil).Open(t.Context(), isolation.Spec{
				ID: "owner", Workspace: workspace, Scratch: t.TempDir(), Env: map[string]string{"PATH": "/usr/bin:/bin"},
			})
			require.NoError(t, err)
			require.Equal(t, "1000 1000\n", string(run(t, s, "mkdir made; echo x >made/file; echo x >>theirs; stat -c '%u %g' theirs").Stdout.Data))
			_, err = s.FS().Write(t.Context(), protocol.FilesWrite{Path: "written", Content: []byte("x")})
			require.NoError(t, err)
			require.NoError(t, s.Close())
			for _, name := range []string{".", "theirs", "made", "made/file", "written"} {
				var stat syscall.Stat_t
				require.NoError(t, syscall.Lstat(filepath.Join(workspace, name), &stat))
				require.Equal(t, [2]uint32{uint32(uid), uint32(uid)}, [2]uint32{stat.Uid, stat.Gid}, name)
			}
		}
	})
}

// TestWorker_KilledTakesItsSandboxesAlong: when the worker is gone, so is every process of
// its sandboxes.
func TestWorker_KilledTakesItsSandboxesAlong(t *testing.T) { //nolint:paralleltest // its arms are processes of their own
	const variable = "TOOLFLEET_TEST_VICTIM"
	if dir := os.Getenv(variable); dir != "" {
		victim(t, dir)
		return
	}
	inArms(t, true, func(t *testing.T) {
		t.Helper()
		dir := t.TempDir()
		require.NoError(t, syscall.Mkfifo(filepath.Join(dir, "fifo"), 0o666))
		held, err := os.OpenFile(filepath.Join(dir, "fifo"), os.O_RDONLY|syscall.O_NONBLOCK, 0)
		require.NoError(t, err)
		defer held.Close()
		self, err := os.Executable()
		require.NoError(t, err)
		worker := exec.CommandContext(t.Context(), self, "-test.run", "^TestWorker_KilledTakesItsSandboxesAlong$")
		worker.Env = append(os.Environ(), variable+"="+dir)
		require.NoError(t, worker.Start())
		content := make([]byte, 0, 100)
		require.NoError(t, held.SetReadDeadline(time.Now().Add(time.Minute)))
		for strings.Count(string(content), "\n") < victims {
			buf := make([]byte, 100)
			n, err := held.Read(buf)
			if n == 0 && err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
				require.FailNow(t, "the sandboxes do not start")
			}
			content = append(content, buf[:n]...)
		}
		require.NoError(t, worker.Process.Kill())
		start := time.Now()
		require.NoError(t, held.SetReadDeadline(start.Add(time.Minute)))
		n, err := held.Read(make([]byte, 1))
		require.Zero(t, n)
		require.NotErrorIs(t, err, os.ErrDeadlineExceeded, "a process is alive")
		t.Logf("%d sandboxes were gone after %s", victims, time.Since(start))
		_ = worker.Wait() // it was killed
	})
}

// victims is how many sandboxes a worker that is killed has.
const victims = 5

// victim is a worker with busy sandboxes that waits to be killed.
func victim(t *testing.T, dir string) {
	t.Helper()
	for i := range victims {
		scratch := filepath.Join(t.TempDir(), strconv.Itoa(i))
		require.NoError(t, os.Mkdir(scratch, 0o700))
		s, err := ns.New(nil).Open(t.Context(), isolation.Spec{ID: "victim", Workspace: dir, Scratch: scratch, Env: map[string]string{"PATH": "/usr/bin:/bin"}})
		require.NoError(t, err)
		go func() {
			_, _ = s.Exec(context.WithoutCancel(t.Context()), sandbox.Cmd{Argv: []string{
				"bash", "-c", `exec 3>fifo; echo up >&3; trap "" TERM HUP; (setsid sleep 1000 &); while :; do sleep 1; done`,
			}})
		}()
	}
	fmt.Fprintln(os.Stderr, "waiting to be killed")
	select {}
}
