package fleet_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/natsio/natsiotest"
	"github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/protocol"
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
