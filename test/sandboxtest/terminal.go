//go:build unix

//nolint:thelper // these are tests
package sandboxtest

import (
	"bytes"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

func testTerminal(t *testing.T, s suite) {
	if runtime.GOOS != "linux" {
		t.Skip("terminals are for Linux")
	}
	tests := map[string]func(*testing.T, *box){
		"a command has one of its own":      terminalOwn,
		"what is typed arrives":             terminalTyped,
		"control-C ends what runs there":    terminalInterrupt,
		"all of the last output is there":   terminalLast,
		"it is gone with the command":       terminalGone,
		"several at once have one each":     terminalMany,
		"a command that waits has its time": terminalTimeout,
	}
	if s.newDriver(t).Name() != "process" {
		tests["input cannot be put into it"] = terminalNoInput
	}
	s.run(t, tests)
}

// screen is a command with a terminal, which runs.
type screen struct {
	typed chan []byte
	ended chan sandbox.Result

	mu   sync.Mutex
	seen bytes.Buffer
}

func (b *box) screen(t *testing.T, cmd sandbox.Cmd) *screen {
	s := &screen{typed: make(chan []byte), ended: make(chan sandbox.Result, 1)}
	cmd.Typed = s.typed
	cmd.Live = func(stream sandbox.Stream, data []byte) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if stream != sandbox.Stdout {
			s.seen.WriteString("STDERR")
		}
		s.seen.Write(data)
	}
	if cmd.Limits.Wall == 0 {
		cmd.Limits.Wall = patience
	}
	go func() {
		result, err := b.Exec(t.Context(), cmd)
		if err != nil {
			t.Error(err)
		}
		s.ended <- result
	}()
	return s
}

// shows waits until something is on the screen, and returns all of it.
func (s *screen) shows(t *testing.T, want string) (all string) {
	require.Eventually(t, func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		all = s.seen.String()
		return strings.Contains(all, want)
	}, patience, time.Millisecond, "%s", want)
	return all
}

func (s *screen) types(text string) { s.typed <- []byte(text) }

func terminalOwn(t *testing.T, b *box) {
	s := b.screen(t, shell(`[ -t 0 ] && [ -t 1 ] && [ -t 2 ] && echo all; stty size; echo own >/dev/tty; [ "$(cut -d ' ' -f 7 /proc/$$/stat)" != 0 ] && echo controls; echo err >&2; exit 3`))
	result := <-s.ended
	require.Equal(t, 3, result.ExitCode)
	require.Equal(t, "all\r\n40 120\r\nown\r\ncontrols\r\nerr\r\n", string(result.Stdout.Data))
	require.Zero(t, result.Stderr.Total)
}

func terminalTyped(t *testing.T, b *box) {
	s := b.screen(t, shell(`printf 'name? '; read name; echo "hello $name"; cat; echo end`))
	s.shows(t, "name? ")
	s.types("you\r")
	s.shows(t, "name? you\r\nhello you\r\n")
	s.types("line\r\x04")
	result := <-s.ended
	require.True(t, strings.HasSuffix(string(result.Stdout.Data), "line\r\nline\r\nend\r\n"), "%q", result.Stdout.Data)
}

func terminalInterrupt(t *testing.T, b *box) {
	caught := make(chan os.Signal, 1) // a script that starts tests in the background has them ignore it, and what they start
	signal.Notify(caught, os.Interrupt)
	t.Cleanup(func() { signal.Stop(caught) })
	s := b.screen(t, sandbox.Cmd{Argv: []string{"sh", "-c", "trap 'echo interrupted; exit 7' INT; echo ready; while :; do sleep 0.1; done"}})
	s.shows(t, "ready")
	s.types("\x03")
	result := <-s.ended
	require.Equal(t, 7, result.ExitCode)
	require.Contains(t, string(result.Stdout.Data), "interrupted")
}

func terminalLast(t *testing.T, b *box) {
	for range 10 {
		result := <-b.screen(t, shell("seq 1 2000; exit 1")).ended
		require.True(t, strings.HasSuffix(string(result.Stdout.Data), "\r\n1999\r\n2000\r\n"), "%q", result.Stdout.Data)
	}
}

// terminalGone is about what a command leaves behind with its terminal open.
func terminalGone(t *testing.T, b *box) {
	start := time.Now()
	result := <-b.screen(t, shell(`trap "" HUP; sleep 300 & echo done`)).ended
	require.Equal(t, sandbox.ReasonExited, result.Reason)
	require.Less(t, time.Since(start), patience)
}

// terminalNoInput has a command try to type for itself (TIOCSTI), as if somebody had.
func terminalNoInput(t *testing.T, b *box) {
	result := <-b.screen(t,
		shell(`command -v perl >/dev/null || { echo denied; exit; }; perl -e 'ioctl(STDIN, 0x5412, my $x = "x") and print "typed\n" or print "denied\n"'`)).ended
	require.Equal(t, "denied\r\n", string(result.Stdout.Data))
}

func terminalMany(t *testing.T, b *box) {
	screens := make([]*screen, 8)
	for i := range screens {
		screens[i] = b.screen(t, shell("read x; echo got $x"))
	}
	for i, s := range screens {
		s.types(strings.Repeat("x", i) + "\r")
	}
	for i, s := range screens {
		require.True(t, strings.HasSuffix(string((<-s.ended).Stdout.Data), strings.TrimSpace("got "+strings.Repeat("x", i))+"\r\n"))
	}
}

func terminalTimeout(t *testing.T, b *box) {
	cmd := shell("read x")
	cmd.Limits.Wall = 200 * time.Millisecond
	require.Equal(t, sandbox.ReasonTimeout, (<-b.screen(t, cmd).ended).Reason)
}
