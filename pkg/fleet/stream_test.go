package fleet_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/worker"
)

func requireOK(t *testing.T, futures ...*fleet.Future) {
	t.Helper()
	for _, f := range futures {
		result, err := f.Wait(t.Context())
		require.NoError(t, err)
		require.Equal(t, protocol.StatusOK, result.Status, result.Text)
	}
}

// Each stream keeps its order, and After orders streams, also across sandboxes and on a worker with
// one slot.
func TestStream_OrdersItsCallsAndAfterOrdersStreams(t *testing.T) {
	t.Parallel()
	client, err := fleet.Connect(t.Context(), fleet.Options{})
	require.NoError(t, err)
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
	_, err = client.StartWorker(t.Context(), worker.Options{Driver: "process", Slots: 1})
	require.NoError(t, err)
	requireOK(t, futures...)
	result, err := client.Call(t.Context(), fleet.Call{Sandbox: "box", Tool: "bash", Arguments: `{"command":"cat log"}`})
	require.NoError(t, err)
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
		result, err := f.Wait(t.Context())
		require.NoError(t, err)
		require.Equal(t, protocol.StatusRejected, result.Status, f.Ref())
		require.Equal(t, protocol.CodeAfterUnmet, result.Error.Code, result.Text)
	}
}

func TestStream_InvalidInput(t *testing.T) {
	t.Parallel()
	client, err := fleet.Connect(t.Context(), fleet.Options{})
	require.NoError(t, err)
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
	client, err := fleet.Connect(t.Context(), fleet.Options{})
	require.NoError(t, err)
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
	_, err = client.StartWorker(t.Context(), worker.Options{Driver: "process"})
	require.NoError(t, err)
	requireOK(t, futures...)
}
