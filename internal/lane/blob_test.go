package lane_test

import (
	"bytes"
	"context"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/calls"
	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/natsio/natsiotest"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// newFleetOfSmallMessages is newFleet for clients that believe in messages of 128 KiB, so that what
// no message can carry is small, too.
func newFleetOfSmallMessages(t *testing.T) *fleet {
	t.Helper()
	nf := natsiotest.New(t, natsio.Topology{})
	nf.MaxPayload = 128 << 10
	f := around(t, nf)
	f.dial = func() *nats.Conn {
		nc, _ := nf.ConnectVia()
		return nc
	}
	f.nc = f.dial()
	return f
}

// A payload and a value that no message can carry go through the object store,
// inline and through the mailbox, and leave nothing of the call behind.
func TestLane_LargePayloadsAndValues(t *testing.T) {
	t.Parallel()
	f := newFleetOfSmallMessages(t)
	p := f.publisher()
	large := strings.Repeat("0123456789abcdef", int(f.nc.MaxPayload())/16+1)
	started := make(chan int, 4)
	f.hold(hostFunc(func(_ context.Context, run *lane.Run) protocol.Result {
		payload, ok := run.Call.Payload.(protocol.CommandRun)
		if !ok {
			return wire.NewResult(run.Call, protocol.StatusFailed, protocol.Errorf(protocol.CodeInternal, "payload is %T", run.Call.Payload))
		}
		started <- len(payload.Command)
		r := wire.NewResult(run.Call, protocol.StatusOK, nil)
		r.Value = wire.TurnRunResult{Text: payload.Command}
		return r
	}), lane.Options{})

	told := make(chan *protocol.Result, 4)
	watch, err := calls.NewResults(f.nc, protocol.DefaultFleet, func(err error) { t.Error(err) }).Watch(t.Context(), "s",
		func(r *protocol.Result) { told <- r }, nil)
	require.NoError(t, err)
	defer watch.Stop()
	calls := []*protocol.Call{newCall("s", exclusive("account/a")), newCall("s", exclusive("account/a"))}
	for _, call := range calls {
		call.Payload = protocol.CommandRun{Command: large}
	}
	put(t, p, calls...)
	for _, call := range calls {
		require.Equal(t, len(large), <-started)
		want := wire.TurnRunResult{Text: large}
		r := f.await(p, call)
		require.Nil(t, r.Error)
		require.Equal(t, want, r.Value, "looked up")
		require.Equal(t, want, (<-told).Value, "told")
	}
	f.requireQuiet()
	store, err := f.js.ObjectStore(t.Context(), wire.BlobsBucket(protocol.DefaultFleet))
	require.NoError(t, err)
	objects, err := store.List(t.Context())
	require.NoError(t, err)
	require.Len(t, objects, 2, "the values stay as long as the results, the payloads are gone")
}

func TestLane_PayloadThatIsGoneIsRejected(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	p := f.publisher()
	call := newCall("s", exclusive("account/a"))
	call.Payload = wire.Stored{Blob: "call/s/nothing", Bytes: 1}
	put(t, p, call)
	f.hold(succeeds, lane.Options{})
	r := f.await(p, call)
	require.Equal(t, protocol.StatusRejected, r.Status)
	require.Equal(t, codes.InvalidPayload, r.Error.Code)
	f.requireQuiet()
}

func TestLane_TooLargeForTheFleet(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	call := newCall("s", exclusive("account/a"))
	call.Payload = protocol.CommandRun{Command: strings.Repeat("x", 64<<20)}
	require.ErrorIs(t, f.publisher().Enqueue(t.Context(), lane.Outgoing{Call: call}), lane.ErrTooLarge)
	require.Zero(t, f.stored())
}

// What the fleet's object store is in trouble with keeps no lane busy for ever.
func TestLane_TroubleWithTheObjectStore(t *testing.T) {
	t.Parallel()
	t.Run("a call whose payload cannot be read can be cancelled", func(t *testing.T) {
		t.Parallel()
		f := newFleet(t)
		p := f.publisher()
		call := newCall("s", exclusive("account/a"))
		call.Payload = protocol.CommandRun{Command: strings.Repeat("x", int(f.nc.MaxPayload()))}
		put(t, p, call)
		f.spoilObjects()
		tried, err := f.nc.SubscribeSync("$JS.API.STREAM.INFO." + natsio.ObjectStream(wire.BlobsBucket(protocol.DefaultFleet)))
		require.NoError(t, err)
		f.hold(newHistory(), lane.Options{})
		_, err = tried.NextMsgWithContext(t.Context())
		require.NoError(t, err)
		require.NoError(t, p.Cancel(t.Context(), call))
		require.Equal(t, protocol.StatusCancelled, f.await(p, call).Status)
		f.requireQuiet()
	})
	t.Run("a value for which there is no room is left out", func(t *testing.T) {
		t.Parallel()
		f := newFleetOfSmallMessages(t)
		f.fillObjects()
		p := f.publisher()
		call := newCall("s", exclusive("account/a"))
		put(t, p, call)
		f.hold(hostFunc(func(_ context.Context, run *lane.Run) protocol.Result {
			r := wire.NewResult(run.Call, protocol.StatusOK, nil)
			r.Value = wire.TurnRunResult{Text: strings.Repeat("x", int(f.nc.MaxPayload()))}
			return r
		}), lane.Options{})
		r := f.await(p, call)
		require.Equal(t, protocol.StatusFailed, r.Status)
		require.Equal(t, codes.PayloadTooLarge, r.Error.Code)
		f.requireQuiet()
	})
	t.Run("a payload for which there is no room is refused", func(t *testing.T) {
		t.Parallel()
		f := newFleetOfSmallMessages(t)
		f.fillObjects()
		call := newCall("s", exclusive("account/a"))
		call.Payload = protocol.CommandRun{Command: strings.Repeat("x", int(f.nc.MaxPayload()))}
		require.ErrorIs(t, f.publisher().Enqueue(t.Context(), lane.Outgoing{Call: call}), lane.ErrFull)
	})
	t.Run("a result counts without its value", func(t *testing.T) {
		t.Parallel()
		f := newFleet(t)
		p := f.publisher()
		call := newCall("s", exclusive("account/a"))
		call.Again = true
		r := wire.NewResult(call, protocol.StatusOK, nil)
		r.Value = wire.Stored{Blob: "result/s/x", Bytes: 1}
		body, err := wire.EncodeResult(&r)
		require.NoError(t, err)
		_, err = f.js.Publish(t.Context(), wire.ResultSubject(protocol.DefaultFleet, call.SessionID, call.ID), body)
		require.NoError(t, err)
		require.NoError(t, f.js.DeleteObjectStore(t.Context(), wire.BlobsBucket(protocol.DefaultFleet)))
		ran := make(chan protocol.CallID, 1)
		f.hold(tells(ran), lane.Options{})
		put(t, p, call)
		f.requireQuiet()
		require.Empty(t, ran)
	})
}

// spoilObjects has the one object of the fleet's object store not be what it says it is.
func (f *fleet) spoilObjects() {
	f.t.Helper()
	bucket := wire.BlobsBucket(protocol.DefaultFleet)
	stream, err := f.js.Stream(f.t.Context(), natsio.ObjectStream(bucket))
	require.NoError(f.t, err)
	meta, err := stream.GetLastMsgForSubject(f.t.Context(), "$O."+bucket+".M.*")
	require.NoError(f.t, err)
	msg := nats.NewMsg(meta.Subject)
	msg.Header.Set(jetstream.MsgRollup, jetstream.MsgRollupSubject)
	msg.Data = bytes.Replace(meta.Data, []byte("SHA-256="), []byte("SHA-256=x"), 1)
	require.NotEqual(f.t, meta.Data, msg.Data)
	_, err = f.js.PublishMsg(f.t.Context(), msg)
	require.NoError(f.t, err)
}

// fillObjects leaves no room in the fleet's object store.
func (f *fleet) fillObjects() {
	f.t.Helper()
	objects, err := f.js.Stream(f.t.Context(), natsio.ObjectStream(wire.BlobsBucket(protocol.DefaultFleet)))
	require.NoError(f.t, err)
	config := objects.CachedInfo().Config
	config.MaxBytes = 1 << 10
	_, err = f.js.UpdateStream(f.t.Context(), config)
	require.NoError(f.t, err)
}

// putAtOnce puts calls of one lane side by side, as many callers do.
func putAtOnce(t *testing.T, p *lane.Publisher, calls []*protocol.Call) {
	t.Helper()
	var group sync.WaitGroup
	for part := range slices.Chunk(calls, 1+len(calls)/32) {
		group.Go(func() {
			for _, call := range part {
				if err := p.Enqueue(t.Context(), lane.Outgoing{Call: call}); err != nil {
					t.Errorf("put: %v", err)
				}
			}
		})
	}
	group.Wait()
}

// drain has so many calls run that wait in one lane, while calls of another lane come one after the
// other. It returns how long each call took of the former, and the median of how long those of the
// latter took.
func drain(t *testing.T, waiting int) (each, other time.Duration) {
	t.Helper()
	f := newFleet(t)
	p := f.publisher()
	f.ensurePool(steadyLease)
	calls := newCalls(waiting, exclusive("account/deep"))
	putAtOnce(t, p, calls)
	done := make(chan struct{})
	var ran atomic.Int32
	begun := time.Now()
	f.hold(hostFunc(func(_ context.Context, run *lane.Run) protocol.Result {
		if run.Call.Lane() == "account/deep" && int(ran.Add(1)) == waiting {
			close(done)
		}
		return succeed(run)
	}), lane.Options{Slots: 4})
	var took []time.Duration
	for finished := false; !finished; {
		call, begun := newCall("other", exclusive("account/other")), time.Now()
		put(t, p, call)
		f.await(p, call)
		took = append(took, time.Since(begun))
		select {
		case <-done:
			finished = true
		default:
		}
	}
	each = time.Since(begun) / time.Duration(waiting)
	slices.Sort(took)
	return each, took[len(took)/2]
}

// How long a call takes does not depend on how many wait behind it, in its lane or in another one.
func TestLane_ADeepLaneIsAsFastAsAShallowOne(t *testing.T) {
	t.Parallel()
	for range 5 { // a machine that is busy for one of the two measures them again
		shallow, beside := drain(t, 150)
		deep, besideDeep := drain(t, 1500)
		t.Logf("a call in a shallow lane takes %s, one beside it %s; in a deep one %s, and %s", shallow, beside, deep, besideDeep)
		if deep < 2*shallow && besideDeep < 2*beside {
			return
		}
	}
	require.Fail(t, "what waits in a lane makes its calls slower, or those of another one")
}

// Whoever runs what waits in a lane rarely has the server go through all of it, also when more is
// put meanwhile than the server can tell in time.
func TestLane_ADeepLaneIsRarelyGoneThrough(t *testing.T) {
	t.Parallel()
	const waiting = 1300 // more than the server tells at once
	for name, held := range map[string]bool{"while the lane is held": true, "before it is claimed": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFleet(t)
			p := f.publisher()
			f.ensurePool(steadyLease)
			begun := time.Now()
			first, calls := newCall("s", exclusive("account/deep")), newCalls(waiting, exclusive("account/deep"))
			filter := wire.MailboxFilter(protocol.DefaultFleet, protocol.DefaultPool, wire.HashLane(first.Lane()))
			var through, listed atomic.Int32
			heard, err := f.connect().Subscribe("$JS.API.>", func(msg *nats.Msg) {
				all := bytes.Contains(msg.Data, []byte(`"batch"`)) || bytes.Contains(msg.Data, []byte("multi_last")) ||
					bytes.Contains(msg.Data, []byte("subjects_filter"))
				if all && bytes.Contains(msg.Data, []byte(filter[:len(filter)-1])) {
					through.Add(1)
				}
				if bytes.Contains(msg.Data, []byte(filter)) && bytes.Contains(msg.Data, []byte("subjects_filter")) {
					listed.Add(1)
				}
			})
			require.NoError(t, err)
			defer func() { require.NoError(t, heard.Unsubscribe()) }()
			started, release := make(chan struct{}), make(chan struct{})
			ran := make(chan protocol.CallID, waiting+1)
			hold := func() {
				f.hold(hostFunc(func(_ context.Context, run *lane.Run) protocol.Result {
					if run.Call.ID == first.ID {
						close(started)
						<-release
					}
					ran <- run.Call.ID
					return succeed(run)
				}), lane.Options{})
			}
			put(t, p, first)
			if held {
				hold()
				<-started
			}
			put(t, p, calls...)
			if !held {
				hold()
				<-started
			}
			close(release)
			for _, call := range append([]*protocol.Call{first}, calls...) {
				require.Equal(t, call.ID, <-ran)
			}
			looks := int(time.Since(begun) / time.Second) // a held lane is looked through once a second
			require.Less(t, int(through.Load()), waiting/50+looks)
			require.Zero(t, listed.Load(), "what is settled is swept without")
		})
	}
}

// A lane in which much waits when its worker starts has the only slot. A worker that was lost may
// have settled some of it, so that it cannot be given up; it makes way for others all the same.
func TestLane_WhatWaitedForItsWorkerMakesWay(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	p := f.publisher()
	f.ensurePool(steadyLease)
	const waiting = 600
	calls, other := newCalls(waiting, exclusive("account/busy")), newCall("s", exclusive("account/other"))
	put(t, p, calls...)
	put(t, p, other)
	var ran atomic.Int32
	before := make(chan int32, 1)
	f.hold(hostFunc(func(ctx context.Context, run *lane.Run) protocol.Result {
		if run.Call.ID == other.ID {
			before <- ran.Load()
			return succeed(run)
		}
		ran.Add(1)
		select {
		case <-time.After(5 * time.Millisecond):
		case <-ctx.Done():
		}
		return succeed(run)
	}), lane.Options{})
	require.Less(t, <-before, int32(waiting/2))
}

// More calls wait in a lane than its holder has in hand at once. One of them is cancelled that it
// has not read yet: once the request is accepted the call does not start, although the request is
// stored behind all of them.
func TestCancel_BeyondWhatIsInHand(t *testing.T) {
	t.Parallel()
	const waiting, at = 400, 350
	for name, held := range map[string]bool{"while the lane is held": true, "before it is claimed": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFleet(t)
			p := f.publisher()
			x := exclusive("account/x")
			first := newCall("s", x)
			started, release := make(chan struct{}), make(chan struct{})
			ran := make(chan protocol.CallID, 2*waiting)
			hold := func() {
				f.hold(hostFunc(func(_ context.Context, run *lane.Run) protocol.Result {
					if run.Call.ID == first.ID {
						close(started)
						<-release
					}
					ran <- run.Call.ID
					return succeed(run)
				}), lane.Options{})
			}
			put(t, p, first)
			if held {
				hold()
				<-started
			}
			calls := make([]*protocol.Call, waiting)
			for i := range calls {
				calls[i] = newCall("s", x)
			}
			put(t, p, calls...)
			require.NoError(t, p.Cancel(t.Context(), calls[at]))
			if !held {
				hold()
				<-started
			}
			close(release)
			result := f.await(p, calls[at])
			require.Equal(t, protocol.StatusCancelled, result.Status, "%v", result.Error)
			f.await(p, calls[waiting-1])
			for range waiting {
				require.NotEqual(t, calls[at].ID, <-ran)
			}
		})
	}
}
