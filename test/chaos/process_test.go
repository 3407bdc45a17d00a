//go:build linux

package chaos

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/test/sandboxtest"
)

// patience bounds every wait for something that must come.
const patience = 90 * time.Second

// process is this test binary in another role.
type process struct {
	t      *testing.T
	cmd    *exec.Cmd
	output string // file of stderr
	exited chan struct{}
	err    error // of waiting for it, once exited is closed
}

// spawn starts a process that lives until it ends, is killed, or the test is over.
func spawn(t *testing.T, role string, config any, output string) *process {
	t.Helper()
	settings, err := json.Marshal(config)
	require.NoError(t, err)
	self, err := os.Executable()
	require.NoError(t, err)
	stderr, err := os.OpenFile(output, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	require.NoError(t, err)
	defer func() { _ = stderr.Close() }() // the process has its own
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), self)
	cmd.Env = append(os.Environ(), roleVariable+"="+role, configVariable+"="+string(settings), "GORACE="+os.Getenv("GORACE")+" exitcode=66")
	cmd.Stderr = stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	p := &process{t: t, cmd: cmd, output: output, exited: make(chan struct{})}
	require.NoError(t, cmd.Start())
	go func() {
		p.err = cmd.Wait()
		close(p.exited)
	}()
	t.Cleanup(func() {
		p.kill()
		p.inspect()
	})
	return p
}

// inspect fails the test for a data race, and shows what a process said when the test has failed.
func (p *process) inspect() {
	said, err := os.ReadFile(p.output)
	require.NoError(p.t, err)
	if bytes.Contains(said, []byte("DATA RACE")) || bytes.Contains(said, []byte("panic:")) {
		p.t.Errorf("%s: data race or panic", p.output)
	}
	if p.t.Failed() && len(said) > 0 {
		p.t.Logf("--- %s\n%s", p.output, said[max(0, len(said)-1500):])
	}
}

// kill is kill -9; it returns when the process is gone.
func (p *process) kill() {
	_ = p.cmd.Process.Kill() // it may have ended
	<-p.exited
}

// stop ends a process in order, as SIGTERM does: one that has not begun to listen to it yet is
// ended by it.
func (p *process) stop() {
	p.t.Helper()
	require.NoError(p.t, p.cmd.Process.Signal(syscall.SIGTERM))
	select {
	case <-p.exited:
		if p.cmd.ProcessState.String() != "signal: terminated" {
			require.NoError(p.t, p.err, p.output)
		}
	case <-time.After(patience):
		require.FailNow(p.t, "still running", "%s after %s", p.output, patience)
	}
}

// wait waits until the process has ended well.
func (p *process) wait(d time.Duration) {
	p.t.Helper()
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-p.exited:
		require.NoError(p.t, p.err, p.output)
	case <-timer.C:
		require.FailNow(p.t, "still running", "%s after %s", p.output, d)
	}
}

// ended reports whether the process is gone.
func (p *process) ended() bool {
	select {
	case <-p.exited:
		return true
	default:
		return false
	}
}

// freeze is SIGSTOP; it returns when every thread of the process stands still.
func (p *process) freeze() {
	p.t.Helper()
	sandboxtest.Freeze(p.t, p.cmd.Process)
}

// thaw is SIGCONT.
func (p *process) thaw() {
	p.t.Helper()
	require.NoError(p.t, p.cmd.Process.Signal(syscall.SIGCONT))
}
