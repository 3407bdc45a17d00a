//go:build linux

package ns

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/sandbox/internal/initd"
	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
	"github.com/toolfleet/toolfleet/test/sandboxtest"
)

func openLost(t *testing.T) *Sandbox {
	t.Helper()
	s, err := New(nil).open(t.Context(), isolation.Spec{
		ID: "lost", Workspace: t.TempDir(), Scratch: t.TempDir(), Env: map[string]string{"PATH": "/usr/bin:/bin"},
	})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

// busy runs a command until it has written something; it ends with ctx.
func busy(ctx context.Context, t *testing.T, s *Sandbox) <-chan sandbox.Result {
	t.Helper()
	up, done := make(chan struct{}, 1), make(chan sandbox.Result, 1)
	go func() {
		result, err := s.Exec(ctx, sandbox.Cmd{
			Argv: []string{"sh", "-c", "echo up; sleep 1000"}, Limits: sandbox.Limits{Grace: 100 * time.Millisecond},
			Live: func(sandbox.Stream, []byte) { up <- struct{}{} },
		})
		if err != nil {
			t.Errorf("Exec: %v", err)
		}
		done <- result
	}()
	select {
	case <-up:
	case result := <-done:
		require.Fail(t, "the command has ended before it wrote", "%+v", result)
	}
	return done
}

// requireFresh checks that the sandbox works, with what is in its workspace.
func requireFresh(t *testing.T, s *Sandbox) {
	t.Helper()
	result, err := s.Exec(t.Context(), sandbox.Cmd{Argv: []string{"cat", "file"}})
	require.NoError(t, err)
	require.Equal(t, "kept", string(result.Stdout.Data))
}

func TestLost_FirstProcessIsKilled(t *testing.T) {
	t.Parallel()
	s := openLost(t)
	_, err := s.FS().Write(t.Context(), protocol.FilesWrite{Path: "file", Content: []byte("kept")})
	require.NoError(t, err)
	done, first := busy(t.Context(), t, s), s.current
	require.NoError(t, first.process.Kill())
	result := <-done
	require.Equal(t, sandbox.ReasonLost, result.Reason)
	require.Equal(t, -1, result.ExitCode)
	require.Equal(t, "up\n", string(result.Stdout.Data), "what was written is kept")
	require.Equal(t, "end of its first process: signal: killed; connection: EOF", first.postMortem())
	requireFresh(t, s)
}

func TestLost_FirstProcessDoesNotAnswer(t *testing.T) {
	t.Parallel()
	s := openLost(t)
	_, err := s.FS().Write(t.Context(), protocol.FilesWrite{Path: "file", Content: []byte("kept")})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := busy(ctx, t, s)
	sandboxtest.Freeze(t, s.current.process)
	start := time.Now()
	cancel()
	require.Equal(t, sandbox.ReasonCancelled, (<-done).Reason)
	require.Less(t, time.Since(start), time.Minute)
	requireFresh(t, s)
}

// TestLost_FirstProcessReadsNothing: it is ended in time also when there is more to be sent to it
// than it takes.
func TestLost_FirstProcessReadsNothing(t *testing.T) {
	t.Parallel()
	s := openLost(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done, first := busy(ctx, t, s), s.current
	sandboxtest.Freeze(t, first.process)
	start := time.Now()
	time.AfterFunc(500*time.Millisecond, cancel) // it is being sent by then; if not, the end is the same
	_, err := first.ask(t.Context(), func(id uint64) error {
		write := protocol.FilesWrite{Path: "big", Content: make([]byte, 8<<20)}
		return first.conn.Send(id, initd.KindFiles, initd.FileRequest{Operation: "protocol.FilesWrite", Body: initd.Pack(write)})
	})
	require.ErrorIs(t, err, errLost)
	require.Equal(t, sandbox.ReasonCancelled, (<-done).Reason)
	require.Less(t, time.Since(start), time.Minute)
}

// TestLost_FirstProcessReadsNothingOfAFile: who writes one waits no longer than they want to.
func TestLost_FirstProcessReadsNothingOfAFile(t *testing.T) {
	t.Parallel()
	s := openLost(t)
	_, err := s.FS().Write(t.Context(), protocol.FilesWrite{Path: "file", Content: []byte("kept")})
	require.NoError(t, err)
	sandboxtest.Freeze(t, s.current.process)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second) // it is sent by then
	defer cancel()
	_, err = s.FS().Write(ctx, protocol.FilesWrite{Path: "big", Content: make([]byte, 8<<20)})
	require.ErrorIs(t, err, errLost)
	requireFresh(t, s)
}

func TestLost_LauncherIsKilled(t *testing.T) { //nolint:paralleltest // it is everybody's
	openLost(t)
	launchers.mu.Lock()
	err := launchers.command.Process.Signal(os.Kill)
	launchers.mu.Unlock()
	require.NoError(t, err)
	s := openLost(t)
	_, err = s.FS().Write(t.Context(), protocol.FilesWrite{Path: "file", Content: []byte("kept")})
	require.NoError(t, err)
	requireFresh(t, s)
}

// TestLost_LauncherIsKilledWhileItLaunches: what it has half made does not speak for what the next
// one makes.
func TestLost_LauncherIsKilledWhileItLaunches(t *testing.T) { //nolint:paralleltest // it is everybody's
	s := openLost(t)
	for i := range 40 {
		launchers.mu.Lock()
		if launchers.command != nil {
			victim := launchers.command.Process
			time.AfterFunc(time.Duration(i)*100*time.Microsecond, func() { _ = victim.Kill() })
		}
		launchers.mu.Unlock()
		opened, err := open(t.Context(), s.config, nil, sandbox.Limits{})
		require.NoError(t, err)
		require.NoError(t, opened.close())
	}
}

func TestOpen_OfAnEndedStartLeavesNothing(t *testing.T) {
	t.Parallel()
	s := openLost(t)
	config := s.config
	config.Workspace = "/no/such/directory"
	_, err := open(t.Context(), config, nil, sandbox.Limits{})
	var failed *initd.Failed
	require.ErrorAs(t, err, &failed)
	require.Contains(t, failed.Step, "/no/such/directory")
}

// Whatever commands send to the first process, whoever starts beside them: it goes on. Its main
// thread blocks signals while it starts a command, and the kernel then ends what has no handler.
// Commands ignore none themselves.
func TestLost_SignalsEndNothing(t *testing.T) {
	t.Parallel()
	s := openLost(t)
	up, done := make(chan struct{}, 1), make(chan sandbox.Result, 1)
	go func() {
		result, err := s.Exec(t.Context(), sandbox.Cmd{
			Argv: []string{"bash", "-c", "echo up; until test -e over; do for i in {1..64}; do test $i = 9 || test $i = 19 || kill -$i 1; done; done 2>&-; echo over"},
			Live: func(_ sandbox.Stream, _ []byte) {
				select {
				case up <- struct{}{}:
				default:
				}
			},
		})
		if err != nil {
			t.Errorf("Exec: %v", err)
		}
		done <- result
	}()
	<-up
	for range 200 {
		result, err := s.Exec(t.Context(), sandbox.Cmd{Argv: []string{"grep", "SigIgn", "/proc/self/status"}})
		require.NoError(t, err)
		require.Equal(t, "SigIgn:\t0000000000000000\n", string(result.Stdout.Data), "%s", result.Reason)
	}
	_, err := s.FS().Write(t.Context(), protocol.FilesWrite{Path: "over"})
	require.NoError(t, err)
	result := <-done
	require.Equal(t, "up\nover\n", string(result.Stdout.Data), "%s", result.Reason)
}

// TestProxy_ComesBackWithALostSandbox: the sandbox that is started again has a listener and a link
// of its own, and the old ones are not served any more.
func TestProxy_ComesBackWithALostSandbox(t *testing.T) {
	t.Parallel()
	begun, ended := make(chan string, 4), make(chan string, 4)
	serve := func(ctx context.Context, what string) {
		begun <- what
		<-ctx.Done()
		ended <- what
	}
	both := func(from <-chan string) {
		require.ElementsMatch(t, []string{"proxy", "link"}, []string{<-from, <-from})
	}
	s, err := New(nil).open(t.Context(), isolation.Spec{
		ID: "lost", Workspace: t.TempDir(), Scratch: t.TempDir(), Env: map[string]string{"PATH": "/usr/bin:/bin"},
		Network: isolation.Network{
			Mode: isolation.NetworkProxy, Serve: func(ctx context.Context, _ net.Listener) { serve(ctx, "proxy") },
			ServeLink: func(ctx context.Context, _ io.ReadWriteCloser) { serve(ctx, "link") },
		},
	})
	require.NoError(t, err)
	both(begun)
	require.NoError(t, s.current.process.Kill())
	<-s.current.gone
	result, err := s.Exec(t.Context(), sandbox.Cmd{Argv: []string{"true"}})
	require.NoError(t, err)
	require.Zero(t, result.ExitCode)
	both(ended)
	both(begun)
	require.NoError(t, s.Close())
	both(ended)
}

// TestThreads_AreAllThereBeforeTheFirstCommand: whatever is done at once, the first process needs
// no thread more than it has in stock. It could not get one when commands have used up the
// processes of the sandbox, and commands could reach one that comes later.
func TestThreads_AreAllThereBeforeTheFirstCommand(t *testing.T) {
	t.Parallel()
	s := openLost(t)
	run := func(cmd sandbox.Cmd) {
		result, err := s.Exec(t.Context(), cmd)
		require.NoError(t, err)
		require.Equal(t, sandbox.ReasonExited, result.Reason)
	}
	run(sandbox.Cmd{Argv: []string{"sh", "-c", `mkdir d && for i in $(seq 200); do echo "line $i" >"d/$i"; done`}})
	stock := tasksOf(t, s)
	work := []func(name string){
		func(string) { run(sandbox.Cmd{Argv: []string{"true"}, Limits: sandbox.Limits{Memory: 1 << 30}}) },
		func(string) {
			run(sandbox.Cmd{Argv: []string{"sleep", "0.03"}, Dir: "d", Limits: sandbox.Limits{Disk: 1 << 30}})
		},
		func(string) { run(sandbox.Cmd{Argv: []string{"sh", "-c", "true & true"}, ReadOnly: true}) },
		func(string) {
			_, err := s.FS().Search(t.Context(), protocol.FilesSearch{Path: ".", Pattern: "line 1.*7"}, 0)
			require.NoError(t, err)
		},
		func(name string) {
			_, err := s.FS().Write(t.Context(), protocol.FilesWrite{Path: name, Content: make([]byte, 1<<20)})
			require.NoError(t, err)
		},
	}
	var all sync.WaitGroup
	for n := range 8 * len(work) {
		all.Go(func() {
			for range 3 {
				work[n%len(work)](filepath.Join("made", strconv.Itoa(n)))
			}
		})
	}
	all.Wait()
	require.Equal(t, stock, tasksOf(t, s))
}

// tasksOf are the threads of a sandbox's first process.
func tasksOf(t *testing.T, s *Sandbox) []string {
	t.Helper()
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", s.current.process.Pid))
	require.NoError(t, err)
	require.NotEmpty(t, tasks)
	return tasks
}
