package lane_test

import (
	"bytes"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/internal/natsio/natsiotest"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// past is a server that was cut off or stood still, and still takes itself for the leader: for a
// while it gives the answers of an earlier time, before those of the leader arrive.
type past struct {
	nc      *nats.Conn
	filter  string
	answers map[string][]byte // by the subject of the question
}

// remember notes what is answered now about the mailbox of a lane.
func remember(t *testing.T, nc *nats.Conn, c *protocol.Call) *past {
	t.Helper()
	p := &past{nc: nc, filter: wire.MailboxFilter(protocol.DefaultFleet, c.Pool, wire.HashLane(c.Lane())), answers: map[string][]byte{}}
	stream := wire.CallsStream(protocol.DefaultFleet)
	p.ask(t, "$JS.API.STREAM.INFO."+stream, `{"subjects_filter":"`+p.filter+`"}`)
	p.ask(t, "$JS.API.STREAM.MSG.GET."+stream, `{"seq":1,"next_by_subj":"`+p.filter+`"}`)
	return p
}

// rememberResult notes what is answered now about the result of a call.
func rememberResult(t *testing.T, nc *nats.Conn, c *protocol.Call) *past {
	t.Helper()
	p := &past{nc: nc, filter: wire.ResultSubject(protocol.DefaultFleet, c.SessionID, c.ID), answers: map[string][]byte{}}
	p.ask(t, "$JS.API.STREAM.MSG.GET."+wire.ResultsStream(protocol.DefaultFleet), `{"last_by_subj":"`+p.filter+`"}`)
	return p
}

func (p *past) ask(t *testing.T, subject, question string) {
	t.Helper()
	answer, err := p.nc.Request(subject, []byte(question), patience)
	require.NoError(t, err)
	p.answers[subject] = answer.Data
}

// answer gives the old answers for a while after the first question.
func (p *past) answer(t *testing.T, d time.Duration) {
	t.Helper()
	first := make(chan struct{})
	var once sync.Once
	for subject, answer := range p.answers {
		subscription, err := p.nc.Subscribe(subject, func(msg *nats.Msg) {
			if !bytes.Contains(msg.Data, []byte(p.filter)) {
				return
			}
			once.Do(func() { close(first) })
			_ = msg.Respond(answer)
		})
		require.NoError(t, err)
		t.Cleanup(func() { _ = subscription.Unsubscribe() })
		go func() {
			select {
			case <-first:
				wait := time.NewTimer(d)
				defer wait.Stop()
				select {
				case <-wait.C:
				case <-t.Context().Done():
				}
				_ = subscription.Unsubscribe()
			case <-t.Context().Done():
			}
		}()
	}
	require.NoError(t, p.nc.Flush())
}

// besideTheLeader is a fleet on three servers, and a server that leads neither the calls nor the
// pool's consumer: what the one in the past says there is said before the leader's answer comes.
func besideTheLeader(t *testing.T, lease time.Duration) (f *fleet, nc *nats.Conn) {
	t.Helper()
	f, c := newFleetOn(t, natsiotest.NewPartableCluster(t))
	f.ensurePool(lease)
	leader := -1
	require.Eventually(t, func() bool {
		leader = c.Leader(wire.CallsStream(protocol.DefaultFleet))
		return leader >= 0
	}, patience, 10*time.Millisecond, "no leader")
	other := (leader + 1) % len(c.Servers)
	c.Slow(other, 30*time.Millisecond)
	f.dial = func() *nats.Conn { return c.ConnectTo(other) }
	return f, c.ConnectTo(other)
}

// Guard: the stream's leader may not know yet what the consumer's leader has handed out, and a
// server that was cut off knows even less. Neither may make a call start before one that was
// accepted earlier.
func TestCluster_AnOldAnswerDoesNotHideAnEarlierCall(t *testing.T) {
	t.Parallel()
	f, nc := besideTheLeader(t, steadyLease)
	x := exclusive("account/x")
	earlier, later := newCall("s", x), newCall("s", x)
	past := remember(t, nc, earlier)
	raw(t, f, wire.CallSubject(protocol.DefaultFleet, earlier.Pool, wire.HashLane(earlier.Lane()), earlier.ID), earlier)
	raw(t, f, wire.ReadySubject(protocol.DefaultFleet, later.Pool, wire.HashLane(later.Lane())), later)
	past.answer(t, time.Second)
	ran := make(chan protocol.CallID, 9)
	f.hold(tells(ran), lane.Options{})
	require.Equal(t, earlier.ID, <-ran)
	require.Equal(t, later.ID, <-ran)
	f.requireQuiet()
}

// Guard: nor may it bring a call back that was run and removed, for which nobody looks for a
// result.
func TestCluster_AnOldAnswerBringsNoCallBack(t *testing.T) {
	t.Parallel()
	f, nc := besideTheLeader(t, steadyLease)
	p := f.publisher()
	x := exclusive("account/x")
	before, after := newCall("s", x), newCall("s", x)
	raw(t, f, wire.CallSubject(protocol.DefaultFleet, before.Pool, wire.HashLane(before.Lane()), before.ID), before)
	past := remember(t, nc, before)
	ran := make(chan protocol.CallID, 9)
	h := f.hold(tells(ran), lane.Options{})
	f.wake(p, before)
	require.Equal(t, before.ID, <-ran)
	f.requireQuiet()
	h.stop()
	results, err := f.js.Stream(t.Context(), wire.ResultsStream(protocol.DefaultFleet))
	require.NoError(t, err)
	require.NoError(t, results.Purge(t.Context()))                                       // as if the one that is asked for them were in the past as well
	delete(past.answers, "$JS.API.STREAM.INFO."+wire.CallsStream(protocol.DefaultFleet)) // it comes too late with that
	past.answer(t, time.Second)
	raw(t, f, wire.CallSubject(protocol.DefaultFleet, after.Pool, wire.HashLane(after.Lane()), after.ID), after)
	f.wake(p, after)
	f.hold(tells(ran), lane.Options{})
	require.Equal(t, after.ID, <-ran)
	f.requireQuiet()
	require.Empty(t, ran)
}

// Guard: of a lane that is delivered again, also what was stored before the ready message may have
// been run since. An answer that knows the ready message is not new enough.
func TestCluster_AnOldAnswerBringsNothingBackOfALaneThatIsTakenOver(t *testing.T) {
	t.Parallel()
	f, nc := besideTheLeader(t, briefLease)
	p := f.publisher()
	x := exclusive("account/x")
	settled, open := newCall("s", x), newCall("s", x)
	for _, call := range []*protocol.Call{settled, open} {
		raw(t, f, wire.CallSubject(protocol.DefaultFleet, call.Pool, wire.HashLane(call.Lane()), call.ID), call)
	}
	f.wake(p, open)
	past := remember(t, nc, open)
	f.takeAndDie() // it has settled one call
	calls, err := f.js.Stream(t.Context(), wire.CallsStream(protocol.DefaultFleet))
	require.NoError(t, err)
	entry, err := calls.GetLastMsgForSubject(t.Context(), wire.CallSubject(protocol.DefaultFleet, settled.Pool, wire.HashLane(settled.Lane()), settled.ID))
	require.NoError(t, err)
	require.NoError(t, calls.DeleteMsg(t.Context(), entry.Sequence)) // the one that is asked for results is in the past, too
	past.answer(t, time.Second)
	ran := make(chan protocol.CallID, 99)
	f.hold(tells(ran), lane.Options{})
	require.Equal(t, open.ID, <-ran)
	f.requireQuiet()
	for len(ran) > 0 {
		require.Equal(t, open.ID, <-ran)
	}
}

// Guard: nor does an old answer hide the result of a call whose worker was lost before it removed
// the call.
func TestCluster_AnOldAnswerHidesNoResult(t *testing.T) {
	t.Parallel()
	f, nc := besideTheLeader(t, briefLease)
	p := f.publisher()
	x := exclusive("account/x")
	settled, open := newCall("s", x), newCall("s", x)
	for _, call := range []*protocol.Call{settled, open} {
		raw(t, f, wire.CallSubject(protocol.DefaultFleet, call.Pool, wire.HashLane(call.Lane()), call.ID), call)
	}
	past := rememberResult(t, nc, settled)
	f.wake(p, open)
	f.takeAndDie()
	f.storeResult(settled)
	past.answer(t, time.Second)
	ran := make(chan protocol.CallID, 99)
	f.hold(tells(ran), lane.Options{})
	require.Equal(t, open.ID, <-ran)
	f.requireQuiet()
	for len(ran) > 0 {
		require.Equal(t, open.ID, <-ran)
	}
}

// Guard: an old answer that knows the ready message need not know what was accepted after it: that
// the call is cancelled, or the lane paused.
func TestCluster_AnOldAnswerHidesNoCancel(t *testing.T) {
	t.Parallel()
	f, nc := besideTheLeader(t, steadyLease)
	p := f.publisher()
	call := newCall("s", exclusive("account/x"))
	raw(t, f, wire.ReadySubject(protocol.DefaultFleet, call.Pool, wire.HashLane(call.Lane())), call)
	past := remember(t, nc, call)
	f.insist(func() error { return p.Cancel(t.Context(), call) })
	past.answer(t, time.Second)
	ran := make(chan protocol.CallID, 9)
	f.hold(tells(ran), lane.Options{})
	require.Equal(t, protocol.StatusCancelled, f.await(p, call).Status)
	f.requireQuiet()
	require.Empty(t, ran)
}

func TestCluster_AnOldAnswerHidesNoPause(t *testing.T) {
	t.Parallel()
	f, nc := besideTheLeader(t, steadyLease)
	p := f.publisher()
	call := newCall("s", exclusive("account/x"))
	raw(t, f, wire.ReadySubject(protocol.DefaultFleet, call.Pool, wire.HashLane(call.Lane())), call)
	past := remember(t, nc, call)
	mark := nats.NewMsg(wire.PauseSubject(protocol.DefaultFleet, call.Pool, wire.HashLane(call.Lane())))
	mark.Header.Set(wire.HeaderLane, string(call.Lane()))
	f.publish(mark.Subject, mark.Header, nil)
	past.answer(t, time.Second)
	ran := make(chan protocol.CallID, 9)
	f.hold(tells(ran), lane.Options{})
	f.requireHeldPaused(call.Lane())
	f.insist(func() error { return p.Cancel(t.Context(), call) })
	require.Equal(t, protocol.StatusCancelled, f.await(p, call).Status)
	require.Empty(t, ran)
}
