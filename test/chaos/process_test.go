//go:build linux

package chaos

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/system/pause"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
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

// run injects faults while calls are made, and holds what happened against the laws.
func run(t *testing.T, s setup, faults ...func(*rig)) *Report {
	t.Helper()
	begin := time.Now()
	r := newRig(t, s)
	pause.For(t.Context(), 300*time.Millisecond)
	for n := 0; !r.caller.ended(); n++ {
		if n == s.faults {
			require.NoError(t, os.WriteFile(r.path("enough"), nil, 0o600))
		}
		if *callCount == 0 && n >= s.faults {
			break
		}
		faults[r.random.IntN(len(faults))](r)
		pause.For(t.Context(), s.pause/4+time.Duration(r.random.Int64N(int64(s.pause))))
	}
	if s.orphans {
		r.caller.kill()
	} else {
		r.caller.wait(2 * patience)
	}
	if len(r.servers) > 1 {
		r.awaitReplicas() // one that has only just come back may still answer from its past, or have leaders chosen anew
	}
	return r.conclude(begin)
}

// conclude waits until nothing is left, ends the workers, and holds what happened against the laws.
func (r *rig) conclude(begin time.Time) *Report {
	t := r.t
	t.Helper()
	r.requireQuiet()
	for _, w := range r.workers {
		w.stop()
	}
	h := r.history()
	report := checkHistory(h)
	for _, f := range h.Faults[len(r.faults):] {
		switch {
		case f.Blocked:
			r.counts["slow disk seen"]++
		case f.Stalled:
			r.counts["stall seen"]++
		default:
			r.counts["lease lost"]++
		}
	}
	t.Logf("-seed=%d: %d calls, %d accepted, %d executions, %d run again, faults %v, %d violations, %d lost, %d double, slowest %s, lane %s idle for %s, statuses %v, %s in all",
		*seed, report.Calls, report.Accepted, report.Executions, report.Rerun, r.counts, len(report.Violations),
		report.Lost, report.Double, report.Slowest.Round(time.Millisecond), report.IdleLane, report.Idle.Round(time.Millisecond), report.Statuses, time.Since(begin).Round(time.Second))
	require.Empty(t, h.Troubles)
	require.Positive(t, report.Executions)
	for i, v := range report.Violations {
		if i == 20 {
			t.Errorf("and %d more", len(report.Violations)-i)
			break
		}
		t.Errorf("%s", v)
	}
	return report
}

// fault records something that was done to a worker, or to everybody.
func (r *rig) fault(name string, f Fault) {
	r.faults = append(r.faults, f)
	r.counts[name]++
}

// heed is how long a holder may not know of a request to cancel that was not told: it looks once a
// second.
const heed = 2 * time.Second

// history puts together what everybody wrote down, and what is stored.
func (r *rig) history() *History {
	r.t.Helper()
	h := newHistory()
	h.Lease, h.Grace, h.Heed, h.Faults = r.setup.lease, r.setup.lease/2, heed, r.faults
	drift := offset() - r.offset
	h.ClockError = Time(10*time.Millisecond + drift.Abs())
	for _, path := range r.logs {
		log, err := os.Open(path)
		if os.IsNotExist(err) {
			continue // it was killed before it did anything
		}
		require.NoError(r.t, err)
		require.NoError(r.t, h.Read(log), path)
		require.NoError(r.t, log.Close())
	}
	r.addLostLeases(h)
	h.Stored = r.stored()
	r.addEntered(h)
	return h
}

// stored reads the results stream.
func (r *rig) stored() []Stored {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), 10*patience) // for a hundred thousand and more
	defer cancel()
	stream, err := r.js.Stream(ctx, wire.ResultsStream(protocol.DefaultFleet))
	require.NoError(r.t, err)
	state := stream.CachedInfo().State
	require.Equal(r.t, state.LastSeq, state.Msgs, "a result was replaced or removed")
	out := make([]Stored, 0, state.Msgs)
	for seq := uint64(1); seq <= state.LastSeq; seq++ { // the leader is asked: a consumer may be served by another
		msg, err := stream.GetMsg(ctx, seq)
		for err != nil && !errors.Is(err, jetstream.ErrMsgNotFound) && pause.For(ctx, 50*time.Millisecond) { // no leader just now
			msg, err = stream.GetMsg(ctx, seq)
		}
		require.NoError(r.t, err, "result %d of %d", seq, state.LastSeq)
		if strings.Contains(msg.Subject, ".none.") {
			continue // a note, and no result
		}
		result, err := wire.DecodeResult(msg.Data)
		require.NoError(r.t, err)
		stored := Stored{
			CallID: result.CallID, At: Time(msg.Time.UnixNano() - int64(r.offset)),
			Result: Result{Status: result.Status, Worker: result.WorkerID, Attempt: result.Attempt},
		}
		if result.Error != nil {
			stored.Code = result.Error.Code
		}
		out = append(out, stored)
	}
	return out
}

// requireQuiet waits until nothing is stored, held or pending.
func (r *rig) requireQuiet() {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), patience)
	defer cancel()
	left := "nothing is known"
	for left != "" {
		if !pause.For(ctx, 50*time.Millisecond) {
			require.FailNow(r.t, "the calls stream keeps messages, or the consumer keeps deliveries", left)
		}
		left = r.left(ctx)
	}
}

// isOfACall reports whether a subject is of a call in a mailbox, or of something about one.
func isOfACall(subject string) bool {
	return wire.ParseMailboxSubject(protocol.DefaultFleet, subject).CallID != ""
}

// left says what the calls stream and the pool's consumer have; "" is nothing.
func (r *rig) left(ctx context.Context) string {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	stream, err := r.js.Stream(ctx, wire.CallsStream(protocol.DefaultFleet))
	if err != nil {
		return err.Error()
	}
	consumer, err := stream.Consumer(ctx, wire.ReadyConsumer(protocol.DefaultPool))
	if err != nil {
		return err.Error()
	}
	info, err := stream.Info(ctx, jetstream.WithSubjectFilter(">"))
	if err != nil {
		return err.Error()
	}
	if info.State.Msgs == 0 && consumer.CachedInfo().NumAckPending == 0 {
		return ""
	}
	if r.setup.cabled && !slices.ContainsFunc(slices.Collect(maps.Keys(info.State.Subjects)), isOfACall) {
		return "" // servers that were apart may not deliver a ready message again; the next call of its lane has it replaced
	}
	return fmt.Sprintf("%d deliveries, %d messages: %v", consumer.CachedInfo().NumAckPending, info.State.Msgs, info.State.Subjects)
}
