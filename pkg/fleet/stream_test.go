package fleet_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/lane/limits"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/natsio/natsiotest"
	"github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools/policy"
	"github.com/toolfleet/toolfleet/pkg/worker"
)

func requireOK(t *testing.T, futures ...*fleet.Future) {
	t.Helper()
	for _, f := range futures {
		result := mustWait(t, f)
		require.Equal(t, protocol.StatusOK, result.Status, result.Text)
	}
}

// Each stream keeps its order, and After orders streams, also across sandboxes and on a worker with
// one slot.
func TestStream_OrdersItsCallsAndAfterOrdersStreams(t *testing.T) {
	t.Parallel()
	client := mustConnect(t, fleet.Options{})
	defer func() { require.NoError(t, client.Close()) }()
	a, b, far := client.Stream("box", "a"), client.Stream("box", "b"), client.Stream("other", "a")
	command := func(text string) fleet.Call {
		return fleet.Call{Payload: protocol.CommandRun{Command: text}}
	}
	var futures []*fleet.Future
	far.Wait(protocol.CallRef{})
	require.Equal(t, protocol.CallRef{}, b.Record(), "nothing was sent")
	recorded := far.Go(t.Context(), command("sleep 0.2; echo far"))
	a.Wait(far.Record())
	futures = append(futures, recorded, a.Go(t.Context(), command("echo a1 >> log")), a.Go(t.Context(), command("echo a2 >> log")))
	futures = append(futures, b.Go(t.Context(), command("echo b1 >> log")))
	b.Wait(a.Record())
	futures = append(futures, b.Go(t.Context(), command("echo b2 >> log")))
	mustStart(t, client, worker.Options{Driver: "process", Slots: 1})
	requireOK(t, futures...)
	result := mustCall(t, client, fleet.Call{Sandbox: "box", Tool: "bash", Arguments: `{"command":"cat log"}`})
	require.Contains(t, result.Text, "b1\na1\na2\nb2", "what waits is passed by what need not")
}

// Streams of one sandbox run side by side: each of these calls waits for the other to run.
func TestStream_RunsBesideOthersOfItsSandbox(t *testing.T) {
	t.Parallel()
	client := started(t)
	meet := func(name, own, other string) *fleet.Future {
		return client.Stream("box", name).Go(t.Context(), shell("box", "touch "+own+"; until [ -e "+other+" ]; do sleep 0.01; done"))
	}
	requireOK(t, meet("a", "a", "b"), meet("b", "b", "a"))
}

// A call that never ends ok has one outcome for those after it, in time; the stream continues.
func TestStream_AfterACallThatNeverEndsOK(t *testing.T) {
	t.Parallel()
	client := started(t)
	fails := client.Stream("", "fails").Go(t.Context(), fleet.Call{Payload: protocol.FilesRead{Path: "none"}})
	cancelled := client.Go(t.Context(), shell("box", "sleep 600"))
	require.NoError(t, cancelled.Cancel(t.Context()))
	never := protocol.CallRef{SessionID: "box", ID: "never"}
	first, second := shell("x", "true"), shell("y", "true")
	first.ID, second.ID = "first", "second"
	first.After, second.After = []protocol.CallRef{{SessionID: "y", ID: "second"}}, []protocol.CallRef{{SessionID: "x", ID: "first"}}
	first.QueueTimeout, second.Deadline = time.Second, time.Now().Add(time.Second)
	cycle := []*fleet.Future{client.Go(t.Context(), first), client.Go(t.Context(), second)}
	for _, after := range []protocol.CallRef{fails.Ref(), cancelled.Ref(), never} {
		s := client.Stream("box", string(after.ID))
		s.Wait(after)
		unmet := s.Go(t.Context(), fleet.Call{Payload: protocol.CommandRun{Command: "touch ran"}, QueueTimeout: time.Second})
		behind := s.Go(t.Context(), fleet.Call{Payload: protocol.CommandRun{Command: "ls"}})
		cycle = append(cycle, unmet)
		requireOK(t, behind)
	}
	for _, f := range cycle {
		result := mustWait(t, f)
		require.Equal(t, protocol.StatusRejected, result.Status, f.Ref())
		require.Equal(t, protocol.CodeAfterUnmet, result.Error.Code, result.Text)
	}
}

func TestStream_InvalidInput(t *testing.T) {
	t.Parallel()
	client := mustConnect(t, fleet.Options{})
	defer func() { require.NoError(t, client.Close()) }()
	for says, f := range map[string]*fleet.Future{
		"stream name":               client.Stream("box", "a/b").Go(t.Context(), shell("", "true")),
		"that of the stream":        client.Stream("box", "a").Go(t.Context(), shell("other", "true")),
		"uses the stream only":      client.Stream("box", "a").Go(t.Context(), fleet.Call{Tool: "read", Resources: []protocol.Use{{}}}),
		"after[0]: invalid name":    client.Go(t.Context(), fleet.Call{Tool: "read", After: []protocol.CallRef{{}}}),
		"after[0]: s/a is the call": client.Go(t.Context(), fleet.Call{Session: "s", ID: "a", Tool: "read", After: []protocol.CallRef{{SessionID: "s", ID: "a"}}}),
		"after: 65 calls":           client.Go(t.Context(), fleet.Call{Tool: "read", After: make([]protocol.CallRef, 65)}),
	} {
		_, err := f.Wait(t.Context())
		require.ErrorIs(t, err, protocol.ErrInvalidCall)
		require.ErrorContains(t, err, says)
	}
}

// More calls wait than a worker has in hand, in front of the one that they wait for.
func TestStream_ADeepStreamWaits(t *testing.T) {
	t.Parallel()
	client := mustConnect(t, fleet.Options{})
	defer func() { require.NoError(t, client.Close()) }()
	deep, late := client.Stream("box", "deep"), client.Stream("box", "late")
	deep.Wait(protocol.CallRef{SessionID: "box", ID: "late"})
	quick := fleet.Call{Payload: protocol.FilesExists{Path: "a"}}
	var futures []*fleet.Future
	for range 600 {
		futures = append(futures, deep.Go(t.Context(), quick))
	}
	last := quick
	last.ID = "late"
	futures = append(futures, late.Go(t.Context(), last))
	mustStart(t, client, worker.Options{Driver: "process"})
	requireOK(t, futures...)
}

// Law: a stream has one order, whether its calls are sent by Go or by Submit; Record is the last.
func TestStream_GoAndSubmitAreOneQueue(t *testing.T) {
	t.Parallel()
	client := mustConnect(t, fleet.Options{})
	defer func() { require.NoError(t, client.Close()) }()
	s := client.Stream("box", "s")
	var futures []*fleet.Future
	var want []string
	for i := range 20 {
		line := fmt.Sprint(i)
		want = append(want, line)
		call := fleet.Call{Payload: protocol.CommandRun{Command: "echo " + line + " >> log"}}
		if i%5 == 4 {
			ref, err := s.Submit(t.Context(), call)
			require.NoError(t, err)
			require.Equal(t, ref, s.Record())
			f, err := client.Attach(t.Context(), ref)
			require.NoError(t, err)
			futures = append(futures, f)
			continue
		}
		futures = append(futures, s.Go(t.Context(), call))
		require.Equal(t, futures[i].Ref(), s.Record())
	}
	mustStart(t, client, worker.Options{Driver: "process", Slots: 1})
	requireOK(t, futures...)
	result := mustCall(t, client, fleet.Call{Sandbox: "box", Payload: protocol.CommandRun{Command: "cat log"}})
	value, _ := result.Value.(protocol.CommandRunResult)
	require.Equal(t, want, strings.Fields(string(value.Stdout)))
}

// Law: an event is what may have been sent. What was not sent leaves the stream as it was.
func TestStream_RecordOfWhatMayBeStored(t *testing.T) {
	t.Parallel()
	r := natsiotest.New(t, natsio.Topology{})
	nc, link := r.ConnectVia()
	client := mustConnect(t, fleet.Options{Conn: nc, Fleet: r.Name})
	defer func() { require.NoError(t, client.Close()) }()
	none := func(command string) fleet.Call {
		return fleet.Call{Payload: protocol.CommandRun{Command: command}, MinLevel: "none"}
	}
	named, look := none("true"), none("cat log")
	named.ID, look.Sandbox = "event", "box"
	s := client.Stream("box", "s")
	first, err := s.Submit(t.Context(), none("echo first >> log"))
	require.NoError(t, err)
	event := protocol.CallRef{SessionID: "other", ID: "event"}
	s.Wait(event)
	calls := func(fate natsiotest.Fate) func(string) natsiotest.Fate {
		return func(subject string) natsiotest.Fate {
			if strings.HasPrefix(subject, string(r.Name)+".call.") {
				return fate
			}
			return natsiotest.Passes
		}
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = s.Submit(ended, none("echo never >> log"))
	require.ErrorIs(t, err, fleet.ErrNotSent)
	require.Equal(t, first, s.Record())

	link.OnWrite(calls(natsiotest.Unanswered))
	short, stop := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer stop()
	unknown, err := s.Submit(short, none("echo second >> log"))
	require.ErrorIs(t, err, fleet.ErrUnknownOutcome)
	require.Equal(t, unknown, s.Record())
	link.OnWrite(nil)

	mustStart(t, client, worker.Options{Driver: "process"})
	after := client.Stream("box", "after")
	after.Wait(s.Record())
	late := client.Stream("other", "late")
	told, err := late.Submit(t.Context(), named)
	require.NoError(t, err)
	require.Equal(t, event, told)
	requireOK(t, after.Go(t.Context(), none("echo third >> log")))
	result := mustCall(t, client, look)
	value, _ := result.Value.(protocol.CommandRunResult)
	require.Equal(t, "first\nsecond\nthird\n", string(value.Stdout))
}

// bounded is a client of a fleet without workers, whose tenant acme and pool small are full. rules
// replaces the bounds.
func bounded(t *testing.T) (client *fleet.Client, rules *limits.Store) {
	t.Helper()
	server := natsiotest.Serve(t, natsiotest.Alone(t, "", ""))
	client = mustConnect(t, fleet.Options{URL: server.ClientURL()})
	t.Cleanup(func() { require.NoError(t, client.Close()) })
	rules, err := limits.Open(t.Context(), jetStream(t, server.ClientURL()), protocol.DefaultFleet)
	require.NoError(t, err)
	require.NoError(t, rules.Replace(t.Context(), []limits.Rule{
		{Tenant: "acme", Rate: "1/h", Burst: 1}, {Pool: "small", Waiting: 1},
	}))
	for _, call := range []fleet.Call{ofAcme(), ofSmall(time.Millisecond)} {
		require.Eventually(t, func() bool { // the rules are known within a second
			_, err := client.Submit(t.Context(), call)
			return err != nil
		}, time.Minute, 10*time.Millisecond)
	}
	return client, rules
}

func ofAcme() fleet.Call {
	return fleet.Call{Payload: protocol.FilesExists{Path: "a"}, Tenant: "acme"}
}

func ofSmall(queue time.Duration) fleet.Call {
	return fleet.Call{Payload: protocol.FilesExists{Path: "a"}, Pool: "small", QueueTimeout: queue, MinLevel: "none"}
}

// requireUnmet checks the error of a call that waits for one that was not sent.
func requireUnmet(t *testing.T, err error) {
	t.Helper()
	require.ErrorIs(t, err, fleet.ErrNotSent)
	require.ErrorIs(t, err, &protocol.Error{Code: protocol.CodeAfterUnmet})
	require.NotErrorIs(t, err, fleet.ErrUnknownOutcome)
}

// What waits for a call that was refused or never sent is rejected at once, not when its time is
// over, however both are sent.
func TestAfter_ACallThatWasNotSentRejectsThoseThatWaitForIt(t *testing.T) {
	t.Parallel()
	client, _ := bounded(t)
	ended, end := context.WithCancel(t.Context())
	end()
	denies, err := policy.New(policy.Policy{Tools: policy.Names{Deny: []string{"bash"}}})
	require.NoError(t, err)
	var ids atomic.Int64
	ref := func(f *fleet.Future) protocol.CallRef {
		<-f.Done()
		return f.Ref()
	}
	for name, first := range map[string]func() protocol.CallRef{
		"a quota":          func() protocol.CallRef { return ref(client.Go(t.Context(), ofAcme())) },
		"a full pool":      func() protocol.CallRef { return ref(client.Go(t.Context(), ofSmall(100*time.Millisecond))) },
		"an ended context": func() protocol.CallRef { return ref(client.Go(ended, shell("a", "true"))) },
		"invalid":          func() protocol.CallRef { return ref(client.Go(t.Context(), fleet.Call{})) },
		"an invalid stream": func() protocol.CallRef {
			return ref(client.Stream("a", "no stream").Go(t.Context(), shell("a", "true")))
		},
		"a policy denies it": func() protocol.CallRef {
			return ref(client.Go(t.Context(), fleet.Call{Tool: "bash", Arguments: `{"command":"true"}`, Policy: denies}))
		},
		"cancelled before": func() protocol.CallRef {
			f := client.Go(t.Context(), ofSmall(0))
			require.NoError(t, f.Cancel(t.Context()))
			return ref(f)
		},
		"Submit, refused": func() protocol.CallRef {
			ref, err := client.Submit(t.Context(), ofAcme())
			require.ErrorIs(t, err, fleet.ErrQuota)
			return ref
		},
		"Submit, ended context": func() protocol.CallRef {
			ref, err := client.Submit(ended, shell("a", "true"))
			require.ErrorIs(t, err, fleet.ErrNotSent)
			return ref
		},
		"Submit of a stream, refused": func() protocol.CallRef {
			ref, err := client.Stream("a", "b").Submit(t.Context(), ofAcme())
			require.ErrorIs(t, err, fleet.ErrQuota)
			return ref
		},
		"Call, ended context": func() protocol.CallRef {
			call := shell("a", "true")
			call.Session, call.ID = "own", protocol.CallID(fmt.Sprint("call-", ids.Add(1)))
			_, err := client.Call(ended, call)
			require.ErrorIs(t, err, fleet.ErrNotSent)
			return protocol.CallRef{SessionID: call.Session, ID: call.ID}
		},
		"one that waits itself": func() protocol.CallRef {
			call := shell("a", "true")
			call.After = []protocol.CallRef{ref(client.Go(t.Context(), ofAcme()))}
			return ref(client.Go(t.Context(), call))
		},
	} {
		for how, second := range map[string]func(fleet.Call) error{
			"Go": func(c fleet.Call) error {
				result, err := client.Go(t.Context(), c).Wait(t.Context())
				return errors.Join(err, result.Err())
			},
			"Call": func(c fleet.Call) error {
				result, err := client.Call(t.Context(), c)
				return errors.Join(err, result.Err())
			},
			"Submit": func(c fleet.Call) error { return second(client.Submit(t.Context(), c)) },
			"a stream": func(c fleet.Call) error {
				stream := client.Stream("a", "c")
				stream.Wait(c.After[0])
				c.After = nil
				result, err := stream.Go(t.Context(), c).Wait(t.Context())
				return errors.Join(err, result.Err())
			},
		} {
			t.Run(name+", "+how, func(t *testing.T) {
				t.Parallel()
				call := shell("a", "true")
				call.After = []protocol.CallRef{first()}
				requireUnmet(t, second(call))
			})
		}
	}
}

// A call is sent when those before it were. So what waits for one that is held back ends with it.
func TestAfter_ACallThatIsHeldBack(t *testing.T) {
	t.Parallel()
	client, rules := bounded(t)
	after := func(f *fleet.Future) fleet.Call {
		call := shell("a", "true")
		call.After, call.MinLevel = []protocol.CallRef{f.Ref()}, "none"
		return call
	}
	stops, stop := context.WithCancel(t.Context())
	defer stop()
	first := client.Go(stops, ofSmall(0))
	last := shell("a", "true")
	last.MinLevel = "none"
	waits, behind := client.Go(t.Context(), after(first)), client.Go(t.Context(), last)
	called, submitted := make(chan error, 1), make(chan error, 1)
	go func() {
		result, err := client.Call(t.Context(), after(first))
		called <- errors.Join(err, result.Err())
	}()
	go func() { submitted <- second(client.Submit(t.Context(), after(first))) }()
	cancelled, late := client.Go(t.Context(), after(first)), after(first)
	late.Sandbox, late.QueueTimeout = "late", 10*time.Millisecond
	result, err := client.Go(t.Context(), late).Wait(t.Context())
	require.NoError(t, err)
	requireUnmet(t, result.Err())
	ended, end := context.WithCancel(t.Context())
	end()
	require.ErrorIs(t, second(client.Go(ended, after(first)).Wait(t.Context())), fleet.ErrNotSent)
	other := client.Go(t.Context(), after(first))
	require.NoError(t, cancelled.Cancel(t.Context()))
	<-cancelled.Done()
	for _, f := range []*fleet.Future{first, waits, behind, other} {
		select {
		case <-f.Done():
			require.Fail(t, "it has ended")
		default:
		}
	}
	stop()
	for _, f := range []*fleet.Future{waits, other} {
		result = mustWait(t, f)
		requireUnmet(t, result.Err())
	}
	requireUnmet(t, <-called)
	requireUnmet(t, <-submitted)

	first = client.Go(t.Context(), ofSmall(0))
	waits = client.Go(t.Context(), after(first))
	require.NoError(t, rules.Replace(t.Context(), nil))
	for _, pool := range []protocol.Pool{"small", ""} {
		mustStart(t, client, worker.Options{Driver: "process", Pool: pool})
	}
	requireOK(t, first, waits, behind)
}

// A call that this process could not send again is in the fleet all the same.
func TestAfter_ACallThatWasSentBefore(t *testing.T) {
	t.Parallel()
	client := started(t)
	call := shell("a", "sleep 1")
	call.ID = "mine"
	ref, err := client.Submit(t.Context(), call)
	require.NoError(t, err)
	ended, end := context.WithCancel(t.Context())
	end()
	require.ErrorIs(t, second(client.Submit(ended, call)), fleet.ErrNotSent)
	waits := shell("b", "true")
	waits.After = []protocol.CallRef{ref}
	requireOK(t, client.Go(t.Context(), waits))
}
