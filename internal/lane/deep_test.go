package lane_test

import (
	"bytes"
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// putAtOnce puts calls of one lane side by side, as many callers do.
func putAtOnce(t *testing.T, p *lane.Publisher, calls []*protocol.Call) {
	t.Helper()
	var group sync.WaitGroup
	for part := range slices.Chunk(calls, 1+len(calls)/32) {
		group.Go(func() {
			for _, call := range part {
				if err := p.Enqueue(t.Context(), []lane.Outgoing{{Call: call}})[0]; err != nil {
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
