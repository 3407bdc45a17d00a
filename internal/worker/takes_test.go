package worker_test

import (
	"context"
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/calls"
	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/worker"
	"github.com/toolfleet/toolfleet/internal/worker/kinds"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// A worker without sandboxes takes the calls of its handlers and leaves commands to others; one
// without the handler leaves its calls; and one that has not proven the level leaves those that
// need it. Whoever waits is told who lacks what.
func TestTakes_WhatItCanRun(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	paid := worker.Options{
		Options: lane.Options{Fleet: r.Name, Worker: "paying", AckWait: patience, Logger: r.Logger}, Data: t.TempDir(),
		Capabilities: kinds.Capabilities{Handlers: kinds.Handlers{Calls: map[protocol.Kind]kinds.Handler{
			"refund": func(ctx context.Context, h *kinds.Attempt, _ json.RawMessage) (json.RawMessage, error) {
				_, err := h.Sandbox(ctx)
				return nil, err
			},
		}}},
	}
	var err error
	paid.Driver, paid.Caps, err = worker.OpenDriver(t.Context(), worker.NoSandboxes, nil, paid.Handlers)
	require.NoError(t, err)
	r.work(paid)
	session := protocol.NewSessionID()
	command := newCall(session, protocol.CommandRun{Command: "true"})
	command.MinLevel = isolation.LevelPaths.String()

	waits := make(chan string, 9)
	ran := make(chan *protocol.Result, 1)
	go func() {
		result, err := r.dispatcher.CallWith(t.Context(), &command, calls.CallOptions{Observe: calls.OnWaits(func(why string) { waits <- why })})
		if err != nil {
			t.Errorf("dispatch: %v", err)
		}
		ran <- result
	}()
	require.Equal(t, "1 worker of pool default, none offers a sandbox and level paths", <-waits)
	refund := newCall(session, protocol.UnknownPayload{Name: "refund", Raw: json.RawMessage(`{"type":"refund"}`)})
	refund.Resources = []protocol.Use{{Key: "account/acme", Access: protocol.Exclusive}}
	got := r.dispatch(t.Context(), refund)
	require.Equal(t, protocol.WorkerID("paying"), got.WorkerID)

	weak := r.options()
	weak.Worker = "weak"
	r.work(weak)
	require.Equal(t, "2 workers of pool default, none offers level paths; a sandbox is offered by weak", <-waits)

	strong := r.options()
	strong.Worker, strong.Caps.Level = "strong", isolation.LevelPaths
	r.work(strong)
	got = <-ran
	requireOK(t, got)
	require.Equal(t, protocol.WorkerID("strong"), got.WorkerID)
	require.Equal(t, 1, got.Attempt)
	for range 3 { // whoever is given them first
		refund.ID, refund.IssuedAt = wire.RandomCallID(), command.IssuedAt
		require.Equal(t, protocol.WorkerID("paying"), r.dispatch(t.Context(), refund).WorkerID)
	}
}

func TestOpenDriver_NoneNeedsHandlers(t *testing.T) {
	t.Parallel()
	_, _, err := worker.OpenDriver(t.Context(), worker.NoSandboxes, nil, kinds.Handlers{})
	require.ErrorIs(t, err, worker.ErrNothingToRun)
}
