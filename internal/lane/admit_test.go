package lane_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/internal/lane/limits"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

func ofTenant(tenant protocol.Tenant, n int) []*protocol.Call {
	calls := make([]*protocol.Call, n)
	for i := range calls {
		calls[i] = newCall("s", exclusive(fmt.Sprint("account/", tenant, i)))
		calls[i].Tenant = tenant
	}
	return calls
}

// send enqueues calls one after the other, and returns how many were accepted and the last refusal.
func send(t *testing.T, p *lane.Publisher, calls ...*protocol.Call) (accepted int, refusal error) {
	t.Helper()
	for _, c := range calls {
		err := p.Enqueue(t.Context(), lane.Outgoing{Call: c})
		if err == nil {
			accepted++
			continue
		}
		require.ErrorIs(t, err, lane.ErrNotSent)
		refusal = err
	}
	return accepted, refusal
}

// marks is how many calls of a tenant are in flight, as the server counts them.
func (f *fleet) marks(tenant protocol.Tenant) int {
	f.t.Helper()
	s, err := f.js.Stream(f.t.Context(), wire.CallsStream(factFleet))
	require.NoError(f.t, err)
	info, err := s.Info(f.t.Context(), jetstream.WithSubjectFilter(wire.InFlightSubject(factFleet, protocol.DefaultPool, tenant, "*", "*")))
	require.NoError(f.t, err)
	return len(info.State.Subjects)
}

// Law: a tenant with a quota of calls in flight has no more of them, and gets further ones accepted
// as soon as results are stored. Other tenants are not refused.
func TestQuota_InFlight(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.setLimit(limits.Rule{Tenant: "acme", Concurrent: 3})
	p := f.publisher()
	calls := ofTenant("acme", 5)
	accepted, refusal := send(t, p, calls...)
	require.Equal(t, 3, accepted)
	require.ErrorIs(t, refusal, lane.ErrQuota)
	require.ErrorContains(t, refusal, "tenant acme has 3 of 3 calls in flight")
	bound, ok := errors.AsType[*protocol.Error](refusal)
	require.True(t, ok)
	require.Equal(t, 250*time.Millisecond, bound.RetryAfter.Duration())
	cleanup := ofTenant("acme", 1)[0]
	cleanup.ID, cleanup.Payload = "cleanup", wire.WorkspaceRemove{}
	put(t, p, cleanup) // no quota keeps what was begun from ending
	others, refusal := send(t, p, ofTenant("other", 5)...)
	require.NoError(t, refusal)
	require.Equal(t, 5, others)
	again := *calls[0]
	again.Again = true
	put(t, p, &again) // a call that was sent before is not refused
	again = *calls[4]
	again.Again = true
	require.ErrorIs(t, p.Enqueue(t.Context(), lane.Outgoing{Call: &again, Findable: true}), lane.ErrQuota, "it only says that it was")

	f.hold(succeeds, lane.Options{Slots: 4})
	for _, c := range calls[:3] {
		f.await(p, c)
	}
	require.Eventually(t, func() bool { return f.marks("acme") == 0 }, patience, 10*time.Millisecond, "marks are deleted")
	require.Eventually(t, func() bool {
		accepted, _ := send(t, p, calls[3:]...)
		return accepted == 2
	}, patience, 10*time.Millisecond)
	for _, c := range calls[3:] {
		f.await(p, c)
	}
	f.requireQuiet()
}

// Law: the mark of a call that was never accepted, as of a caller that crashed, is deleted; that of
// a call that waits is not.
func TestQuota_AMarkWithoutACallIsDeleted(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.setLimit(limits.Rule{Tenant: "acme", Concurrent: 10})
	p := f.publisher()
	waits := ofTenant("acme", 1)[0]
	waits.IssuedAt = time.Now()
	waits.NotBefore = waits.IssuedAt.Add(time.Hour)
	put(t, p, waits)
	msg := nats.NewMsg(wire.InFlightSubject(factFleet, protocol.DefaultPool, "acme", "s", "lost"))
	msg.Header.Set(wire.HeaderLane, "account/a")
	f.publish(msg.Subject, msg.Header, nil)
	require.Equal(t, 2, f.marks("acme"))
	f.hold(succeeds, lane.Options{Slots: 4})
	require.Eventually(t, func() bool { return f.marks("acme") == 1 }, patience, 100*time.Millisecond)
}

// Law: a tenant that has stored its quota gets no further call accepted until something of it is
// removed. Results count without any process that adds them up.
func TestQuota_Stored(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.setLimit(limits.Rule{Tenant: "acme", Stored: 2 << 20})
	p := f.publisher()
	large := protocol.Bytes(`"` + strings.Repeat("x", 512<<10) + `"`)
	f.hold(hostFunc(func(_ context.Context, run *lane.Run) protocol.Result {
		r := succeed(run)
		r.Value = protocol.FilesJSONReadResult{Value: large}
		return r
	}), lane.Options{Slots: 4})
	var refusal error
	var bound *protocol.Error
	for limit := time.Now().Add(patience); ; { // a server that has much to do may not say in time how much is stored, or since when
		require.True(t, time.Now().Before(limit), "%v", refusal)
		call := ofTenant("acme", 1)[0]
		if refusal = p.Enqueue(t.Context(), lane.Outgoing{Call: call}); refusal == nil {
			f.await(p, call)
			continue
		}
		is := errors.Is(refusal, lane.ErrQuota)
		if bound, _ = errors.AsType[*protocol.Error](refusal); is && bound.RetryAfter.Duration() > time.Hour {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	require.ErrorIs(t, refusal, lane.ErrNotSent)
	require.ErrorContains(t, refusal, " of 2.0 MiB stored: results go after 168h0m0s, the rest with its sessions")
	require.InDelta(t, 7*24, bound.RetryAfter.Duration().Hours(), 1, "when the oldest result ages out")
	accepts := func(tenant protocol.Tenant) {
		t.Helper()
		require.Eventually(t, func() bool { return p.Enqueue(t.Context(), lane.Outgoing{Call: ofTenant(tenant, 1)[0]}) == nil }, patience, 50*time.Millisecond)
	}
	accepts("other")
	marks, err := f.js.Stream(t.Context(), natsio.ObjectStream(wire.BlobsBucket(factFleet)))
	require.NoError(t, err)
	require.NoError(t, marks.Purge(t.Context())) // as their age does
	accepts("acme")
}

// Law: no period has more accepted calls of a tenant than its rate and burst allow, also when
// several processes send them, and the refusal says when there is room.
func TestQuota_Rate(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	const rate, burst = 40, 5
	f.setLimit(limits.Rule{Tenant: "acme", Rate: perSecond(rate), Burst: burst})
	var mu sync.Mutex
	var seen []accepted
	var callers sync.WaitGroup
	// A slow machine takes longer to reach the rate, and may.
	reached := func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(seen) > rate+burst || t.Context().Err() != nil
	}
	for range 3 {
		p := f.publisher()
		callers.Go(func() {
			for !reached() {
				began := time.Now()
				err := p.Enqueue(t.Context(), lane.Outgoing{Call: ofTenant("acme", 1)[0]})
				if bound, ok := errors.AsType[*protocol.Error](err); ok {
					if !errors.Is(bound, lane.ErrQuota) || bound.RetryAfter.Duration() > time.Second {
						t.Errorf("refusal %v", err)
					}
					continue
				}
				if err != nil {
					t.Errorf("enqueue: %v", err)
				}
				mu.Lock()
				seen = append(seen, accepted{began, time.Now()})
				mu.Unlock()
			}
		})
	}
	callers.Wait()
	for _, first := range seen {
		for _, last := range seen {
			n := 0
			for _, one := range seen {
				if !one.began.Before(first.began) && !one.ended.After(last.ended) {
					n++
				}
			}
			w := last.ended.Sub(first.began)
			// A busy machine knows the clock of the server to some 100 ms. A bucket for each
			// process would allow three times as much.
			require.LessOrEqual(t, float64(n), max(burst+rate*(w.Seconds()+0.5), 0), "in %s", w)
		}
	}
}

// accepted is when a call was sent and acknowledged: its token was spent in between.
type accepted struct{ began, ended time.Time }

// Law: a lane and a pool have at most as many waiting calls as their rules say.
func TestBound_WaitingCalls(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.setLimit(limits.Rule{Lane: "account/*", Waiting: 4})
	f.setLimit(limits.Rule{Pool: protocol.DefaultPool, Waiting: 10})
	p := f.publisher()
	calls := sharedCalls(7, "account/a")
	accepted := 0
	for _, c := range calls {
		err := p.Enqueue(t.Context(), lane.Outgoing{Call: c})
		if err == nil {
			accepted++
			continue
		}
		require.ErrorIs(t, err, lane.ErrBusy)
		require.ErrorContains(t, err, "lane account/a has 4 of 4 waiting calls")
	}
	require.Contains(t, []int{4, 5}, accepted, "one of them may be the ready message, which is not counted")
	_, refusal := send(t, p, sharedCalls(20, "other/b")...)
	require.ErrorIs(t, refusal, lane.ErrBusy)
	require.ErrorContains(t, refusal, "pool default has 10 of 10 waiting calls")
	require.NoError(t, f.limits().Remove(t.Context(), limits.Rule{Pool: protocol.DefaultPool}))
	require.Eventually(t, func() bool {
		accepted, _ := send(t, p, newCall("s", shared("other/b")))
		return accepted == 1
	}, patience, 10*time.Millisecond, "a change is in force within a second")
}

// Law: a model's provider gets no more requests and tokens than its limit, from all processes
// together, and what a request used more or less than expected counts for the next.
func TestModelLimit_HoldsForAllProcesses(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.setLimit(limits.Rule{Lane: "*/*", Rate: "1/h"}) // is about calls
	wait, err := f.publisher().SpendModel(t.Context(), "openai", 1)
	require.NoError(t, err)
	require.Zero(t, wait)
	f.setLimit(limits.Rule{Lane: "model/openai", Rate: "60/h", Burst: 5})
	f.setLimit(limits.Rule{Lane: "model/goo*", Tokens: "600/min"})
	var began sync.WaitGroup
	var mu sync.Mutex
	taken := 0
	for range 4 {
		p := f.publisher()
		began.Go(func() {
			for range 5 {
				wait, err := p.SpendModel(t.Context(), "openai", 1_000_000)
				if err != nil {
					t.Error(err)
				}
				mu.Lock()
				if wait == 0 {
					taken++
				} else if wait > 90*time.Second { // until the next one, and not for two
					t.Error(wait)
				}
				mu.Unlock()
			}
		})
	}
	began.Wait()
	require.Equal(t, 5, taken)

	one, other := f.publisher(), f.publisher()
	wait, err = one.SpendModel(t.Context(), "google", 900) // more than a minute's worth
	require.NoError(t, err)
	require.Zero(t, wait)
	wait, err = other.SpendModel(t.Context(), "google", 1)
	require.NoError(t, err)
	require.InDelta(t, 30, wait.Seconds(), 5)
	require.NoError(t, one.CorrectModel(t.Context(), "google", -600))
	wait, err = other.SpendModel(t.Context(), "google", 1)
	require.NoError(t, err)
	require.Zero(t, wait)
	require.NoError(t, other.CorrectModel(t.Context(), "google", 600))
	wait, err = one.SpendModel(t.Context(), "google", 1)
	require.NoError(t, err)
	require.Positive(t, wait)
}

// A call that one bound refuses is not counted by another.
func TestBound_ARefusedCallIsNotCounted(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.setLimit(limits.Rule{Lane: "account/*", Waiting: 1})
	f.setLimit(limits.Rule{Pool: protocol.DefaultPool, Waiting: 8})
	p := f.publisher()
	for range 20 {
		_, _ = send(t, p, newCall("s", shared("account/a")))
	}
	accepted, refusal := send(t, p, sharedCalls(4, "other/b")...)
	require.NoError(t, refusal)
	require.Equal(t, 4, accepted)
}
