package integration

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/mcp/toolserver/toolservertest"
	"github.com/toolfleet/toolfleet/internal/natsio/natsiotest"
	"github.com/toolfleet/toolfleet/internal/natsio/shared"
	"github.com/toolfleet/toolfleet/test/processtest"
)

// patience bounds every wait for a process; it is for machines that do much else.
const patience = 3 * time.Minute

// tries is how often something may take longer than it should: other programs of the machine take
// its time too, but not each time.
const tries = 3

// process is a running command. Its methods belong to the test's goroutine.
type process struct {
	cmd    *exec.Cmd
	stdout *processtest.Output
	stderr *processtest.Output
	exited chan struct{}
	failed error // of waiting for it, once exited is closed
}

// launch is how a process is started; only args are required.
type launch struct {
	args  []string
	env   []string // beside PATH, HOME and TMPDIR
	stdin string
	group bool // of a shell or a wrapper: the processes that it starts end with the test
}

// start runs a binary until it ends, or the test does.
func start(tb testing.TB, binary string, l launch) *process {
	tb.Helper()
	home := tb.TempDir()
	// The process must outlive tb.Context, which ends before clean-up functions run.
	cmd := exec.CommandContext(context.WithoutCancel(tb.Context()), binary, l.args...)
	cmd.Dir = home
	cmd.Env = append([]string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + home, "TMPDIR=" + home, "GORACE=" + os.Getenv("GORACE") + " exitcode=66",
		"TOOLFLEET_MIN_LEVEL=none", // most workers here isolate nothing
		shared.IdleVariable + "=" + processtest.Idle,
	}, l.env...)
	cmd.Stdin = strings.NewReader(l.stdin)
	p := &process{cmd: cmd, stdout: &processtest.Output{}, stderr: &processtest.Output{}, exited: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = p.stdout, p.stderr
	cmd.WaitDelay = 30 * time.Second
	dieWithTests(cmd)
	if l.group {
		ownGroup(cmd)
	}
	require.NoError(tb, cmd.Start())
	go func() {
		p.failed = cmd.Wait()
		close(p.exited)
	}()
	tb.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have ended
		if l.group {
			endGroup(cmd)
		}
		<-p.exited
		processtest.EndServer(stateOf(cmd.Env))
		if strings.Contains(p.stderr.String(), "DATA RACE") {
			tb.Error("the race detector found something")
		}
		if tb.Failed() {
			tb.Log(p.String())
		}
	})
	return p
}

// stateOf is the state directory of commands with an environment.
func stateOf(env []string) (state string) {
	for _, variable := range env {
		if home, is := strings.CutPrefix(variable, "HOME="); is {
			state = filepath.Join(home, ".local", "state")
		}
	}
	return state
}

// String is the command line and all output, for people who read a failed test.
func (p *process) String() string {
	return strings.Join(p.cmd.Args, " ") + "\n--- stdout\n" + p.stdout.String() + "\n--- stderr\n" + p.stderr.String() + "\n---"
}

// wait returns the exit code.
func (p *process) wait(tb testing.TB) int {
	tb.Helper()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-p.exited:
	case <-timer.C:
		tb.Fatalf("still running after %s:\n%s", patience, p)
	}
	if exit, ok := errors.AsType[*exec.ExitError](p.failed); ok {
		return exit.ExitCode() // -1 when a signal ended it
	}
	require.NoError(tb, p.failed)
	return 0
}

// waitFor waits until stderr has a match of the pattern and returns it with its groups.
func (p *process) waitFor(tb testing.TB, pattern string) []string {
	tb.Helper()
	match := p.stderr.Wait(pattern, p.exited, patience)
	if match == nil {
		tb.Fatalf("no line that matches %q in %s, or before it ended:\n%s", pattern, patience, p)
	}
	return match
}

func (p *process) signal(tb testing.TB, sig os.Signal) {
	tb.Helper()
	require.NoError(tb, p.cmd.Process.Signal(sig))
}

// kill is kill -9; it returns when the process is gone.
func (p *process) kill(tb testing.TB) {
	tb.Helper()
	p.signal(tb, syscall.SIGKILL)
	require.Equal(tb, -1, p.wait(tb))
}

// runs reports whether the process has not ended.
func (p *process) runs() bool {
	select {
	case <-p.exited:
		return false
	default:
		return true
	}
}

// finished is a process that has ended.
type finished struct {
	code   int
	stdout string
	stderr string
}

// execute runs a binary to its end.
func execute(tb testing.TB, binary string, l launch) finished {
	tb.Helper()
	p := start(tb, binary, l)
	code := p.wait(tb)
	return finished{code: code, stdout: p.stdout.String(), stderr: p.stderr.String()}
}

// succeed runs a binary to its end, which has the exit code 0.
func succeed(tb testing.TB, binary string, l launch) finished {
	tb.Helper()
	got := execute(tb, binary, l)
	require.Equal(tb, 0, got.code, got)
	return got
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// module is the root of the source tree.
const module = "../.."

// Binaries of this run of the tests; set by TestMain. refunds is a worker with a handler.
var coordinator, worker, refunds string

func TestMain(m *testing.M) {
	toolservertest.Main()
	natsiotest.Overlap()
	os.Exit(processtest.Built("", raceEnabled, func(dir string) int {
		coordinator, worker, refunds = filepath.Join(dir, "coordinator"), filepath.Join(dir, "worker"), filepath.Join(dir, "refunds")
		return processtest.Leakless(m)
	}, "./cmd/coordinator", "./cmd/worker", "./examples/refunds"))
}
