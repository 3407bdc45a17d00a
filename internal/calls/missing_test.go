package calls_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// A stream is deleted while a call waits: its caller is told.
func TestDispatch_SaysThatAStreamIsGone(t *testing.T) {
	t.Parallel()
	for _, stream := range []string{wire.CallsStream(protocol.DefaultFleet), wire.ResultsStream(protocol.DefaultFleet)} {
		t.Run(stream, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, natsio.Topology{})
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			err := r.dispatcher.Dispatch(ctx, newCalls(1), func(u loop.Update) {
				if u.State == loop.StateQueued && u.Waits == "" {
					require.NoError(t, r.JS.DeleteStream(t.Context(), stream))
				}
			})
			require.NoError(t, ctx.Err())
			require.ErrorIs(t, err, natsio.ErrNoStream)
			require.ErrorContains(t, err, stream)
		})
	}
}

// A stream is deleted and made again while calls wait. Those that were in it are lost, and their
// callers hear it; the others go on.
func TestDispatch_WhatIsLostWithAStreamIsUnknown(t *testing.T) {
	t.Parallel()
	r := newRig(t, natsio.Topology{})
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	remake := func(stream string) {
		require.NoError(t, r.JS.DeleteStream(t.Context(), stream))
		require.NoError(t, natsio.Ensure(t.Context(), r.JS, natsio.Topology{}))
	}
	beyond, err := r.NC.SubscribeSync("$JS.API.DIRECT.GET." + wire.ResultsStream(r.Name))
	require.NoError(t, err)
	calls := newCalls(1)
	o := &told{t: t}
	require.NoError(t, r.dispatcher.Dispatch(ctx, calls, func(u loop.Update) {
		if o.observe(u); u.State == loop.StateQueued && u.Waits == "" {
			remake(wire.CallsStream(r.Name))
		}
	}))
	require.NoError(t, ctx.Err())
	result := requireDone(t, o, calls[0], protocol.StatusOutcomeUnknown, protocol.CodeOutcomeUnknown)
	require.Contains(t, result.Error.Message, "made again")
	require.NoError(t, r.NC.Flush())
	asked, _, err := beyond.Pending()
	require.NoError(t, err)
	require.Zero(t, asked, "callers need not have the right to ask so: natsio.CallRights")

	calls = newCalls(1)
	o = &told{t: t}
	require.NoError(t, r.dispatcher.Dispatch(ctx, calls, func(u loop.Update) {
		if o.observe(u); u.State == loop.StateQueued && u.Waits == "" {
			remake(wire.ResultsStream(r.Name))
			r.hold(func(_ context.Context, run *lane.Run) protocol.Result { return succeed(run) })
		}
	}))
	requireDone(t, o, calls[0], protocol.StatusOK, "")
}
