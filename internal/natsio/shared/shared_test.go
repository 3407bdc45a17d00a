package shared_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gofrs/flock"
	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/natsio/shared"
)

// Words that make this test binary a server: one as it should be, and ones that end at once.
const (
	serve = "serve"
	crash = "crash"
	dial  = "dial"
)

func TestMain(m *testing.M) {
	if len(os.Args) < 3 || !strings.HasPrefix(os.Args[2], "/") {
		os.Exit(m.Run())
	}
	shared.CloseInherited()
	idle, _ := time.ParseDuration(os.Getenv(shared.IdleVariable))
	switch os.Args[1] {
	case crash:
		fmt.Fprintln(os.Stderr, "the first line\nit does not like it here")
		os.Exit(1)
	case dial: // and starts a server, with what this process inherits
		if _, err := connect(context.Background(), &shared.Server{Dir: os.Args[2], Command: command(serve, os.Args[2])}); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	tidy := func(_ context.Context, nc *nats.Conn) error {
		if _, err := os.Stat(filepath.Join(os.Args[2], "server.json")); err == nil {
			return fmt.Errorf("a process that connects now finds this server, which ends: %s", nc.ConnectedUrl()) //nolint:err113 // of a test
		}
		return os.WriteFile(filepath.Join(os.Args[2], "tidied"), []byte(nc.ConnectedUrl()), 0o600)
	}
	if err := shared.Serve(context.Background(), os.Args[2], idle, slog.New(slog.NewTextHandler(os.Stderr, nil)), tidy); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func command(word, dir string) []string { return []string{os.Args[0], word, dir} }

func connect(ctx context.Context, s *shared.Server) (*nats.Conn, error) {
	if err := s.Reach(ctx); err != nil {
		return nil, err
	}
	return natsio.Connect(ctx, shared.URL, natsio.ConnectOptions{Name: "test", Creds: s.TokenFile(), Dial: s.Dial})
}

// serverIn is a directory whose servers end with the test.
func serverIn(t *testing.T, word string) *shared.Server {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "local")
	t.Cleanup(func() {
		if pid := serverOf(t, dir); pid > 0 {
			stop(t, pid)
		}
	})
	return &shared.Server{Dir: dir, Command: command(word, dir)}
}

// serverOf is the process that serves a directory; 0 if none says so.
func serverOf(t *testing.T, dir string) int {
	t.Helper()
	var state struct {
		PID     int    `json:"pid"`
		Address string `json:"address"`
	}
	content, err := os.ReadFile(filepath.Join(dir, "server.json"))
	if err != nil || json.Unmarshal(content, &state) != nil || state.Address == "" {
		return 0
	}
	return state.PID
}

// stop is kill -9; it returns when the process is gone.
func stop(t *testing.T, pid int) {
	t.Helper()
	process, err := os.FindProcess(pid)
	require.NoError(t, err)
	_ = process.Kill() // it may have ended
	require.Eventually(t, func() bool { return !lives(pid) }, time.Minute, time.Millisecond)
}

// lives reports whether a process, which may be a child of this one, runs.
func lives(pid int) bool {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if errors.Is(err, os.ErrNotExist) {
		return false
	}
	_, rest, _ := strings.Cut(string(status), ") ")
	return !strings.HasPrefix(rest, "Z")
}

func TestReach_SeveralAtOnceStartOneServer(t *testing.T) {
	t.Setenv(shared.IdleVariable, "1m")
	first := serverIn(t, serve)
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			s := &shared.Server{Dir: first.Dir, Command: first.Command}
			nc, err := connect(t.Context(), s)
			if assert.NoError(t, err) {
				defer nc.Close()
				assert.NoError(t, nc.FlushTimeout(time.Minute))
			}
		})
	}
	group.Wait()
	info, err := os.Stat(first.Dir)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o700), info.Mode().Perm())
	pids := servers(t, first.Dir)
	require.Equal(t, []int{serverOf(t, first.Dir)}, pids)
}

// servers are the processes that serve a directory.
func servers(t *testing.T, dir string) (pids []int) {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/cmdline")
	require.NoError(t, err)
	if len(all) == 0 {
		t.Skip("NOT TESTED: no /proc, so processes cannot be counted")
	}
	for _, path := range all {
		line, err := os.ReadFile(path)
		var pid int
		if _, scanErr := fmt.Sscanf(path, "/proc/%d/", &pid); err == nil && scanErr == nil && strings.Contains(string(line), "\x00"+dir) && lives(pid) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// A client whose server is killed starts another one, with the same data and token.
func TestDial_AKilledServerIsReplaced(t *testing.T) {
	t.Setenv(shared.IdleVariable, "1m")
	s := serverIn(t, serve)
	nc, err := connect(t.Context(), s)
	require.NoError(t, err)
	defer nc.Close()
	before := serverOf(t, s.Dir)
	stop(t, before)
	require.Eventually(t, func() bool { return nc.FlushTimeout(time.Second) == nil }, time.Minute, 10*time.Millisecond)
	require.NotEqual(t, before, serverOf(t, s.Dir))
}

// What a dead server has left is not connected to, whoever listens there now.
func TestReach_AStaleAddressIsNotUsed(t *testing.T) {
	t.Setenv(shared.IdleVariable, "1m")
	s := serverIn(t, serve)
	require.NoError(t, os.MkdirAll(s.Dir, 0o700))
	taken, err := listen(t)
	require.NoError(t, err)
	for _, name := range []string{"server.json", "server.lock"} {
		require.NoError(t, os.WriteFile(filepath.Join(s.Dir, name), fmt.Appendf(nil, `{"protocol":1,"pid":1,"address":%q}`, taken.Addr()), 0o600))
	}
	nc, err := connect(t.Context(), s)
	require.NoError(t, err)
	defer nc.Close()
	require.NoError(t, nc.FlushTimeout(time.Minute))
	require.Zero(t, taken.count())
}

// The address is gone before a server has the lock, and one that another server says is not.
func TestReach_RemovesAStaleAddress(t *testing.T) {
	t.Parallel()
	s := serverIn(t, crash)
	require.NoError(t, os.MkdirAll(s.Dir, 0o700))
	lock := flock.New(filepath.Join(s.Dir, "server.lock"))
	state := filepath.Join(s.Dir, "server.json")
	require.NoError(t, lock.Lock())
	require.NoError(t, os.WriteFile(state, []byte(`{"protocol":1,"pid":1}`), 0o600))
	require.ErrorContains(t, s.Reach(t.Context()), "it does not like it here")
	require.FileExists(t, state)
	require.NoError(t, lock.Unlock())
	require.ErrorContains(t, s.Reach(t.Context()), "it does not like it here")
	require.NoFileExists(t, state)
}

// A server that takes long to end, or to start for a process that was interrupted, is waited for.
func TestReach_WaitsForTheServerBefore(t *testing.T) {
	t.Setenv(shared.IdleVariable, "1m")
	s := serverIn(t, serve)
	require.NoError(t, os.MkdirAll(s.Dir, 0o700))
	lock := flock.New(filepath.Join(s.Dir, "server.lock"))
	require.NoError(t, lock.Lock())
	time.AfterFunc(6*time.Second, func() { _ = lock.Unlock() })
	require.NoError(t, s.Reach(t.Context()))
}

func TestServe_EndsWithoutClients(t *testing.T) {
	t.Setenv(shared.IdleVariable, "500ms")
	s := serverIn(t, serve)
	nc, err := connect(t.Context(), s)
	require.NoError(t, err)
	pid := serverOf(t, s.Dir)
	time.Sleep(1500 * time.Millisecond) // longer than it would wait for a client
	require.True(t, lives(pid), "it has a client")
	nc.Close()
	require.Eventually(t, func() bool { return !lives(pid) }, time.Minute, 10*time.Millisecond)
	require.NoFileExists(t, filepath.Join(s.Dir, "server.json"))
	require.FileExists(t, filepath.Join(s.Dir, "tidied"), "at its end")
	nc, err = connect(t.Context(), s)
	require.NoError(t, err)
	nc.Close()
}

// A server is found again although what it says of itself was removed.
func TestServe_WritesItsStateAgain(t *testing.T) {
	t.Setenv(shared.IdleVariable, "1m")
	s := serverIn(t, serve)
	require.NoError(t, s.Reach(t.Context()))
	pid := serverOf(t, s.Dir)
	require.NoError(t, os.Remove(filepath.Join(s.Dir, "server.json")))
	nc, err := connect(t.Context(), &shared.Server{Dir: s.Dir, Command: s.Command})
	require.NoError(t, err)
	defer nc.Close()
	require.Equal(t, pid, serverOf(t, s.Dir))
	require.Eventually(t, func() bool { return slices.Equal([]int{pid}, servers(t, s.Dir)) }, time.Minute, time.Millisecond, "another one that was started ends")
}

// A process that is about to start a server, and was stopped, is not waited for without end.
func TestReach_WaitsForAnotherOneForATime(t *testing.T) {
	t.Parallel()
	s := serverIn(t, serve)
	require.NoError(t, os.MkdirAll(s.Dir, 0o700))
	lock := flock.New(filepath.Join(s.Dir, "start.lock"))
	require.NoError(t, lock.Lock())
	defer lock.Close()
	require.NoError(t, os.WriteFile(lock.Path(), []byte("1234"), 0o600))
	s.SetStartTime(50 * time.Millisecond)
	require.EqualError(t, s.Reach(t.Context()), "start the server of your sessions in "+s.Dir+
		": process 1234 has been about to start it for 50ms: end it (kill 1234), then try again")
}

func TestServe_EndsWithItsDirectory(t *testing.T) {
	t.Setenv(shared.IdleVariable, "1m")
	s := serverIn(t, serve)
	nc, err := connect(t.Context(), s)
	require.NoError(t, err)
	pid := serverOf(t, s.Dir)
	nc.Close()
	require.NoError(t, os.RemoveAll(s.Dir))
	require.Eventually(t, func() bool { return !lives(pid) }, time.Minute, 10*time.Millisecond)
	require.NoDirExists(t, s.Dir)
}

func TestReach_SaysWhyNoServerStarts(t *testing.T) {
	t.Parallel()
	s := serverIn(t, crash)
	err := s.Reach(t.Context())
	require.ErrorContains(t, err, "start the server of your sessions in "+s.Dir+": exit status 1:\nthe first line\nit does not like it here")

	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	err = (&shared.Server{Dir: filepath.Join(file, "local"), Command: s.Command}).Reach(t.Context())
	require.ErrorContains(t, err, "set HOME or XDG_STATE_HOME to a directory of yours that can be written to")
}

func TestReach_OfAnotherVersion(t *testing.T) {
	t.Setenv(shared.IdleVariable, "1m")
	s := serverIn(t, serve)
	require.NoError(t, s.Reach(t.Context()))
	pid := serverOf(t, s.Dir)
	state := filepath.Join(s.Dir, "server.json")
	content, err := os.ReadFile(state)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(state, []byte(strings.Replace(string(content), `"protocol":1`, `"protocol":2`, 1)), 0o600))
	require.ErrorContains(t, s.Reach(t.Context()), fmt.Sprintf("the server of your sessions (process %d) is that of another version of coordinator", pid))
}

// Only its user may use the directory.
func TestReach_ClosesTheDirectory(t *testing.T) {
	t.Setenv(shared.IdleVariable, "1m")
	s := serverIn(t, serve)
	require.NoError(t, os.MkdirAll(s.Dir, 0o755))
	require.NoError(t, os.Chmod(s.Dir, 0o755))
	require.NoError(t, s.Reach(t.Context()))
	info, err := os.Stat(s.Dir)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o700), info.Mode().Perm())
	if os.Geteuid() != 0 {
		t.Skip("NOT TESTED: only root can give a directory to another user")
	}
	other := serverIn(t, serve)
	require.NoError(t, os.MkdirAll(other.Dir, 0o700))
	require.NoError(t, os.Chown(other.Dir, 1234, 1234))
	require.ErrorContains(t, other.Reach(t.Context()), "belongs to user 1234, and this is user 0 (did sudo keep HOME?)")
}

// What waits for the end of a command does not wait for the server that it has started.
func TestServe_HoldsNothingOfItsCommand(t *testing.T) {
	t.Parallel()
	s := serverIn(t, serve)
	read, write, err := os.Pipe()
	require.NoError(t, err)
	defer read.Close()
	cmd := exec.CommandContext(t.Context(), os.Args[0], dial, s.Dir)
	cmd.Env = append(os.Environ(), shared.IdleVariable+"=1m")
	cmd.ExtraFiles = []*os.File{write}
	out, err := cmd.CombinedOutput() // which waits for its standard streams
	require.NoError(t, err, string(out))
	require.NoError(t, write.Close())
	require.NoError(t, read.SetReadDeadline(time.Now().Add(time.Minute)))
	_, err = io.ReadAll(read)
	require.NoError(t, err)
	require.True(t, lives(serverOf(t, s.Dir)))
}

// listener counts connections.
type listener struct {
	net.Listener

	connections atomic.Int64
}

func (l *listener) count() int64 { return l.connections.Load() }

func listen(t *testing.T) (*listener, error) {
	t.Helper()
	inner, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	l := &listener{Listener: inner}
	t.Cleanup(func() { _ = inner.Close() })
	go func() {
		for {
			conn, err := inner.Accept()
			if err != nil {
				return
			}
			l.connections.Add(1)
			_ = conn.Close()
		}
	}()
	return l, nil
}
