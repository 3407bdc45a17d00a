package lane_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// What the server does that is easy to get wrong, shown on a real server, and for each the
// guard that the engine has for it.

const factFleet = protocol.DefaultFleet

// succeeds is an executor that does nothing.
var succeeds = hostFunc(func(_ context.Context, run *lane.Run) protocol.Result { return succeed(run) })

// readyOf is the subject of a lane's ready message in the default pool.
func readyOf(l protocol.Lane) string {
	return wire.ReadySubject(factFleet, protocol.DefaultPool, wire.HashLane(l))
}

// refusedBySubject reports whether a publish was refused because its subject has its one message.
func refusedBySubject(err error) bool {
	api, answered := errors.AsType[*jetstream.APIError](err)
	return answered && api.ErrorCode == 10077 && strings.Contains(api.Description, "per subject")
}

// pool makes the default pool's consumer, as a worker would. A server that is still deleting the
// files of one before may fail to.
func (f *fleet) pool(ackWait time.Duration) jetstream.Consumer {
	f.t.Helper()
	var c jetstream.Consumer
	require.EventuallyWithT(f.t, func(t *assert.CollectT) {
		var err error
		c, _, err = natsio.EnsurePool(f.t.Context(), f.js, factFleet, protocol.DefaultPool, ackWait)
		require.NoError(t, err)
	}, patience, 10*time.Millisecond)
	return c
}

// take claims the next ready message by hand.
func (f *fleet) take(c jetstream.Consumer) jetstream.Msg {
	f.t.Helper()
	msg, err := c.Next(jetstream.FetchMaxWait(patience))
	require.NoError(f.t, err)
	return msg
}

// deleteMsg removes a message the way that the engine does.
func (f *fleet) deleteMsg(seq uint64) {
	f.t.Helper()
	s, err := f.js.Stream(f.t.Context(), wire.CallsStream(factFleet))
	require.NoError(f.t, err)
	require.NoError(f.t, s.DeleteMsg(f.t.Context(), seq))
}

// overheard is what is sent on a subject.
type overheard struct {
	f            *fleet
	subscription *nats.Subscription
	msgs         []*nats.Msg
}

func (f *fleet) overhear(subject string) *overheard {
	f.t.Helper()
	subscription, err := f.nc.SubscribeSync(subject)
	require.NoError(f.t, err)
	require.NoError(f.t, f.nc.Flush())
	return &overheard{f: f, subscription: subscription}
}

// all is everything that the server took before now, but for what only tries the rights to publish
// it.
func (o *overheard) all() []*nats.Msg {
	o.f.t.Helper()
	require.NoError(o.f.t, o.f.nc.Flush())
	n, _, err := o.subscription.Pending()
	require.NoError(o.f.t, err)
	for range n {
		msg, err := o.subscription.NextMsg(patience)
		require.NoError(o.f.t, err)
		if msg.Header.Get(jetstream.ExpectedStreamHeader) == "" {
			o.msgs = append(o.msgs, msg)
		}
	}
	return o.msgs
}

// lives is how often each life of a worker was stored or renewed, of overheard heartbeats.
func (o *overheard) lives(t *testing.T, worker protocol.WorkerID) map[string]int {
	t.Helper()
	renewals := map[string]int{}
	for _, msg := range o.all() {
		beat, err := wire.Decode[wire.Heartbeat](msg.Data)
		require.NoError(t, err)
		if beat.WorkerID == worker {
			renewals[msg.Subject]++
		}
	}
	return renewals
}

// requireHeldPaused waits until the holder of a lane says that it has found it paused.
func (f *fleet) requireHeldPaused(l protocol.Lane) {
	f.t.Helper()
	require.Eventually(f.t, func() bool {
		reply, err := f.nc.Request(wire.AskSubject(factFleet, protocol.DefaultPool, wire.HashLane(l)), nil, time.Second)
		var answer lane.Report
		return err == nil && json.Unmarshal(reply.Data, &answer) == nil && len(answer.Lanes) == 1 && answer.Lanes[0].Paused
	}, patience, 10*time.Millisecond, "nobody holds lane %s as a paused one", l)
}

// loseAt has a worker start a call and vanish in the middle of it.
func (f *fleet) loseAt(ackWait time.Duration) {
	f.t.Helper()
	nc := f.connect()
	started := make(chan struct{}, 1)
	h, err := lane.NewHolder(f.t.Context(), nc, hostFunc(func(ctx context.Context, run *lane.Run) protocol.Result {
		nc.Close()
		started <- struct{}{}
		<-ctx.Done()
		return interrupted(ctx, run)
	}), lane.Options{AckWait: ackWait})
	require.NoError(f.t, err)
	ctx, cancel := context.WithCancel(f.t.Context())
	done := make(chan error)
	go func() { done <- h.Run(ctx, ctx) }()
	select {
	case <-started:
	case <-time.After(patience):
		f.t.Error("the call did not start")
	}
	cancel()
	require.NoError(f.t, <-done)
}
