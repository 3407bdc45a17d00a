package lane

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"golang.org/x/sync/singleflight"

	"github.com/toolfleet/toolfleet/internal/lane/core"
	"github.com/toolfleet/toolfleet/internal/lane/limits"
	"github.com/toolfleet/toolfleet/internal/lane/store"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/system/pause"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Bounds and quotas
//
// A caller compares counts with the rules of the fleet before it sends a call: how many calls wait
// in the lane and in the pool, and how many calls of the tenant are in flight. The server counts. A
// count is used for countFor at least, and for longer where counting is slow, so callers together
// may exceed a bound by the calls that they send in that time. The rate of a tenant is exact, see
// [limits.Spending].
//
// What a tenant has stored is counted by the servers too, see [natsio.Stored].
//
// The server can count the calls of a tenant because each has a mark, stored before the call. The
// call's holder deletes the mark after the result. Marks without a call, as of a caller that
// crashed, are deleted by workers. Only tenants with a quota have marks.
//
// All of this is before the acceptance of a call, and no worker looks at it: a program that
// publishes calls by itself is not bounded.

// Errors about calls that met a bound and were not sent. They match each [protocol.Error] with
// their code, which says which bound that is and, with RetryAfter, when it is worth trying again.
var (
	ErrBusy  error = &protocol.Error{Code: protocol.CodeBusy, Message: "a lane or a pool has its maximum number of waiting calls"}
	ErrQuota error = &protocol.Error{Code: protocol.CodeQuota, Message: "the tenant has used a quota"}
)

// boundError is the error of a call that met a bound, such as: tenant acme has 100 of 100 calls in
// flight.
func boundError(code protocol.Code, after time.Duration, format string, args ...any) error {
	err := protocol.Errorf(code, format, args...)
	err.RetryAfter = protocol.MillisOf(after)
	return err
}

// admission is a publisher's view of rules and counts. It is safe for concurrent use.
type admission struct {
	store *store.Store
	now   func(context.Context) (func() time.Time, error) // the server's time

	watch  *limits.Watch
	shared singleflight.Group // what several callers ask for at the same time

	mu     sync.Mutex
	read   time.Time // when the rules were read
	counts map[string]*cachedCount
	rates  map[string]*limits.Spending // of tenants and of models' providers
	stored map[protocol.Tenant]*storedBytes
}

// storedBytes is how much a tenant has stored, as the servers said.
type storedBytes struct {
	mu    sync.Mutex
	n     int64
	after time.Duration // when the oldest result ages out, or the pause until it is worth looking again
	until time.Time     // when it is counted again
}

// cachedCount is how many messages match a filter, as the server said, and what was sent since.
type cachedCount struct {
	mu    sync.Mutex
	n     int
	until time.Time // when it is counted again
}

const (
	// rulesFor is how long rules are used that were read.
	rulesFor = 500 * time.Millisecond
	// rulesPause is for how much longer, when they could not be read.
	rulesPause = 5 * time.Second
	// countFor is how long a count is used at least; countShare is what part of the time is spent
	// with counting at most.
	countFor   = 50 * time.Millisecond
	countShare = 20
	// storedFor is for how long at least a count of stored bytes is used, and storedPause after how
	// long a caller may try again when no result is about to age out.
	storedFor   = time.Second
	storedPause = time.Minute
	// maxCounts bounds the counts that are remembered.
	maxCounts = 10_000
	// busyPause is after how long a caller may try again when too many calls wait or are in flight.
	busyPause = 250 * time.Millisecond
)

func newAdmission(p *Publisher) *admission {
	return &admission{
		store: p.store, watch: limits.NewWatch(p.store.JS, p.store.Fleet, nil, func() {}), now: p.serverTime,
		counts: map[string]*cachedCount{}, rates: map[string]*limits.Spending{}, stored: map[protocol.Tenant]*storedBytes{},
	}
}

// coalesce runs do for all callers that ask for the same at the same time, in the context of none
// of them: a caller whose context ends has its own error, and takes nothing from the others. do
// bounds its own time.
func (a *admission) coalesce(ctx context.Context, what string, do func(context.Context) error) error {
	done := a.shared.DoChan(what, func() (any, error) { return nil, do(context.WithoutCancel(ctx)) })
	select {
	case r := <-done:
		return r.Err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// rules returns the rules of the fleet. If they cannot be read, the last ones stay in force.
func (a *admission) rules(ctx context.Context) *limits.Rules {
	isDue := func() bool {
		a.mu.Lock()
		defer a.mu.Unlock()
		return time.Since(a.read) >= rulesFor
	}
	if isDue() {
		_ = a.coalesce(ctx, "rules", func(ctx context.Context) error { // see above
			if !isDue() { // the last reading has just ended
				return nil
			}
			err := a.watch.Load(ctx)
			a.mu.Lock()
			defer a.mu.Unlock()
			if a.read = time.Now(); err != nil { // each try may take long
				a.read = a.read.Add(rulesPause)
			}
			return err
		})
	}
	return a.watch.Rules()
}

// admit checks whether a call may be sent, and counts it: then it reports whether the call has a
// mark. A call that may have been sent before is not counted again; if it would be found, it is
// looked for, because any program can say that it was. The error wraps [ErrBusy] or [ErrQuota].
func (a *admission) admit(ctx context.Context, s *sending) (marked bool, err error) {
	call := s.call
	rules := a.rules(ctx)
	if !rules.BoundCallers() || endsSomething(call) || s.again && (!s.findable || !a.isNew(ctx, call)) {
		return false, nil
	}
	fleet, hash := a.store.Fleet, wire.HashLane(call.Lane())
	var taken []*cachedCount
	count := func(filter string, most int) int {
		c, n := a.count(ctx, filter, most)
		if n < most {
			taken = append(taken, c)
		}
		return n
	}
	defer func() {
		for i := 0; err != nil && i < len(taken); i++ { // what another bound refuses is not sent
			taken[i].decrement()
		}
	}()
	if rule := rules.OfPool(call.Pool); rule != nil {
		if n := count(wire.CallSubject(fleet, call.Pool, "*", "*"), rule.Waiting); n >= rule.Waiting {
			return false, busy("pool "+string(call.Pool), n, rule.Waiting)
		}
	}
	if rule := rules.Of(call.Lane()); rule != nil && rule.Waiting > 0 {
		if n := count(wire.CallSubject(fleet, call.Pool, hash, "*"), rule.Waiting); n >= rule.Waiting {
			return false, busy("lane "+string(call.Lane()), n, rule.Waiting)
		}
	}
	tenant := cmp.Or(call.Tenant, wire.DefaultTenant)
	rule := rules.OfTenant(tenant)
	if rule == nil {
		return false, nil
	}
	most, what := rule.Concurrent, "calls"
	if call.Pool == protocol.SessionPool { // calls of this pool are turns
		most, what = rule.Sessions, "sessions"
	}
	if most > 0 {
		if n := count(wire.InFlightSubject(fleet, call.Pool, tenant, "*", "*"), most); n >= most {
			return false, boundError(protocol.CodeQuota, busyPause, "tenant %s has %d of %d %s in flight", tenant, n, most, what)
		}
	}
	if rule.Stored > 0 {
		if n, after := a.storedBytesOf(ctx, tenant); n >= rule.Stored {
			return false, boundError(protocol.CodeQuota, after, "tenant %s has about %s of %s stored: results go after %s, the rest with its sessions (coordinator session rm)",
				tenant, mebibytes(n), mebibytes(rule.Stored), a.store.ResultAge)
		}
	}
	if rule.Rate != "" {
		if err := a.spend(ctx, tenant, rule); err != nil {
			return false, err
		}
	}
	if most == 0 {
		return false, nil
	}
	return true, a.mark(ctx, tenant, call)
}

// isNew reports whether the fleet has neither a call, which would be found, nor its result.
func (a *admission) isNew(ctx context.Context, call *protocol.Call) bool {
	ctx, cancel := context.WithTimeout(ctx, store.OpTimeout)
	defer cancel()
	fleet, hash := a.store.Fleet, wire.HashLane(call.Lane())
	found, err := a.store.Stored(ctx, []string{
		wire.InFlightSubject(fleet, call.Pool, cmp.Or(call.Tenant, wire.DefaultTenant), call.SessionID, call.ID),
		wire.CallSubject(fleet, call.Pool, hash, call.ID), wire.LaterSubject(fleet, call.Pool, hash, call.ID),
	})
	if err != nil || len(found) > 0 {
		return false
	}
	has, err := a.store.HasResult(ctx, call, nil)
	return err == nil && !has
}

// endsSomething reports whether a call only ends what earlier calls left: no bound keeps that from
// ending.
func endsSomething(call *protocol.Call) bool {
	switch wire.KindOf(call.Payload) {
	case wire.KindWorkspaceRemove, wire.KindDialogEnd, wire.KindProcessKill:
		return true
	}
	return false
}

func busy(what string, n, most int) error {
	return boundError(protocol.CodeBusy, busyPause, "%s has %d of %d waiting calls", what, n, most)
}

// mark stores the mark of a call.
func (a *admission) mark(ctx context.Context, tenant protocol.Tenant, call *protocol.Call) error {
	msg := nats.NewMsg(wire.InFlightSubject(a.store.Fleet, call.Pool, tenant, call.SessionID, call.ID))
	msg.Header.Set(wire.HeaderLane, wire.LaneHeader(call.Lane()))
	for {
		_, answer, err := a.store.Publish(ctx, msg)
		if err == nil && answer == store.Full {
			err = ErrFull
		}
		if !store.Retryable(err) || errors.Is(err, ErrFull) || !pause.For(ctx, retryLast) {
			return err
		}
	}
}

// spend takes a token of a tenant's rate.
func (a *admission) spend(ctx context.Context, tenant protocol.Tenant, rule *limits.Rule) error {
	now, err := a.now(ctx)
	if err != nil {
		return err
	}
	rate := limits.RateOf(rule)
	wait, err := a.rate(string(tenant)).Spend(ctx, rate, 1, now)
	if err != nil || wait == 0 {
		return err
	}
	return boundError(protocol.CodeQuota, wait, "tenant %s has used its rate of %s, burst %d", tenant, rule.Rate, rate.Burst)
}

// rate is what was spent of a tenant's rate, or of a provider's.
func (a *admission) rate(of string) *limits.Spending {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.rates[of] == nil {
		a.rates[of] = limits.NewSpending(a.store.JS, a.store.Fleet, of)
	}
	return a.rates[of]
}

// SpendModel takes a request to a model's provider, and as many tokens as it is expected to use,
// from what the limits of model/PROVIDER leave to all processes of the fleet. It returns 0, or how
// long it takes until there is some; then nothing was taken.
func (p *Publisher) SpendModel(ctx context.Context, provider string, tokens int64) (wait time.Duration, err error) {
	a := p.bounds
	requests, budget := a.rules(ctx).OfModel(provider)
	if requests.Rate == 0 && budget.Rate == 0 {
		return 0, nil
	}
	now, err := a.now(ctx)
	if err != nil {
		return 0, err
	}
	if requests.Rate > 0 {
		if wait, err = a.rate(limits.ModelLanes+provider).Spend(ctx, requests, 1, now); wait > 0 || err != nil {
			return wait, err
		}
	}
	if budget.Rate > 0 {
		wait, err = a.rate(limits.ModelLanes+provider+"/tokens").Spend(ctx, budget, float64(tokens), now)
	}
	if wait > 0 && requests.Rate > 0 { // the request is not made now; what cannot be given back fills up again
		_ = a.rate(limits.ModelLanes+provider).Correct(ctx, requests, -1, now)
	}
	return wait, err
}

// CorrectModel says by how many tokens a request used more than expected; less if negative.
func (p *Publisher) CorrectModel(ctx context.Context, provider string, tokens int64) error {
	_, budget := p.bounds.rules(ctx).OfModel(provider)
	if budget.Rate == 0 || tokens == 0 {
		return nil
	}
	now, err := p.bounds.now(ctx)
	if err != nil {
		return err
	}
	return p.bounds.rate(limits.ModelLanes+provider+"/tokens").Correct(ctx, budget, float64(tokens), now)
}

// count returns how many messages match a filter, and counts one more if there are fewer than most.
// A count that the server does not answer refuses nothing.
func (a *admission) count(ctx context.Context, filter string, most int) (c *cachedCount, n int) {
	a.mu.Lock()
	c = a.counts[filter]
	if c == nil {
		if len(a.counts) >= maxCounts {
			clear(a.counts)
		}
		c = &cachedCount{}
		a.counts[filter] = c
	}
	a.mu.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	if !time.Now().Before(c.until) {
		c.mu.Unlock()
		err := a.coalesce(ctx, filter, func(ctx context.Context) error { return a.recount(ctx, filter, c) })
		c.mu.Lock()
		if err != nil {
			return c, 0
		}
	}
	if n = c.n; n < most {
		c.n++
	}
	return c, n
}

// recount has the server count, unless it has just done so.
func (a *admission) recount(ctx context.Context, filter string, c *cachedCount) error {
	began := time.Now()
	c.mu.Lock()
	counted := began.Before(c.until)
	c.mu.Unlock()
	if counted {
		return nil
	}
	n, err := a.store.Count(ctx, filter)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	c.n, c.until = n, now.Add(max(countFor, countShare*now.Sub(began)))
	return nil
}

// storedBytesOf returns how many bytes a tenant has stored, and when there may be fewer. If the
// servers do not answer, nothing is refused.
func (a *admission) storedBytesOf(ctx context.Context, tenant protocol.Tenant) (n int64, after time.Duration) {
	a.mu.Lock()
	s := a.stored[tenant]
	if s == nil { // a rule names each of them, so they are bounded
		s = &storedBytes{}
		a.stored[tenant] = s
	}
	a.mu.Unlock()
	if n, after, known := s.get(); known {
		return n, after
	}
	if err := a.coalesce(ctx, "stored."+string(tenant), func(ctx context.Context) error { return a.countStored(ctx, tenant, s) }); err != nil {
		return 0, 0
	}
	n, after, _ = s.get()
	return n, after
}

// get returns the last count, and whether it is new enough.
func (s *storedBytes) get() (n int64, after time.Duration, known bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.n, s.after, time.Now().Before(s.until)
}

// countStored has the servers count, unless they have just done so.
func (a *admission) countStored(ctx context.Context, tenant protocol.Tenant, s *storedBytes) error {
	if _, _, known := s.get(); known {
		return nil
	}
	began := time.Now()
	counting, cancel := context.WithTimeout(ctx, store.ShortTimeout)
	defer cancel()
	n, oldest, err := natsio.Stored(counting, a.store.NC, a.store.Fleet, tenant)
	after := storedPause
	if err != nil {
		n, after = 0, 0 // nothing is refused until they are asked again
	} else if now, err := a.now(counting); err == nil && !oldest.IsZero() {
		after = max(oldest.Add(a.store.ResultAge).Sub(now()), storedPause)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.n, s.after, s.until = n, after, time.Now().Add(max(storedFor, countShare*time.Since(began)))
	return nil
}

// mebibytes writes a size.
func mebibytes(n int64) string { return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20)) }

// decrement removes a call from the count again.
func (c *cachedCount) decrement() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n = max(c.n-1, 0)
}

// unmark deletes the mark of a call that has its result. A worker that sweeps marks deletes it if
// that fails.
func (l *heldLane) unmark(e *core.Entry) {
	if nats.Header(e.Header).Get(wire.HeaderInFlight) == "" {
		return
	}
	s, pool, call := l.holder.store, l.holder.options.Pool, e.Call
	subject := wire.InFlightSubject(s.Fleet, pool, cmp.Or(call.Tenant, wire.DefaultTenant), call.SessionID, call.ID)
	if mark, err := s.Next(l.ctx, subject, 0); err == nil && mark != nil {
		s.DeleteAsync(mark.Sequence)
	}
}

const (
	// marksPeriod is how often marks without a call are looked for, and markAfter the age from
	// which a mark has to have a call.
	marksPeriod = 5 * time.Second
	markAfter   = 10 * time.Second
	// maxMarks bounds the marks that are looked at in a round.
	maxMarks = 256
)

// removeMarks deletes marks whose call is not stored, until ctx ends. Every worker does.
func (h *Holder) removeMarks(ctx context.Context) {
	for next := uint64(0); pause.For(ctx, marksPeriod); {
		if h.limits.Rules().BoundInFlight() {
			next = h.sweepMarks(ctx, next)
		}
	}
}

// sweepMarks deletes marks without a stored call, from a sequence on, and returns the next
// sequence.
func (h *Holder) sweepMarks(ctx context.Context, from uint64) (next uint64) {
	s, pool := h.store, h.options.Pool
	for range maxMarks {
		mark, err := s.Next(ctx, wire.InFlightSubject(s.Fleet, pool, "*", "*", "*"), from)
		if err != nil {
			return from
		}
		if mark == nil || h.clock.Age(mark.Time) < markAfter { // all later ones are younger
			return 0
		}
		from = mark.Sequence + 1
		_, id := wire.CallOfInFlight(mark.Subject)
		lane := wire.LaneOfHeader(mark.Header.Get(wire.HeaderLane))
		if stored, err := isStored(ctx, s, pool, lane, id); err == nil && !stored {
			s.DeleteAsync(mark.Sequence)
		}
	}
	return from
}

// isStored reports whether a call waits: for its time, in its mailbox, or as a ready message.
func isStored(ctx context.Context, s *store.Store, pool protocol.Pool, lane protocol.Lane, id protocol.CallID) (bool, error) {
	hash := wire.HashLane(lane)
	if ready, err := s.Ready(ctx, pool, hash); err != nil || ready != nil && ready.Header.Get(wire.HeaderCall) == string(id) {
		return true, err
	}
	for _, subject := range []string{wire.LaterSubject(s.Fleet, pool, hash, id), wire.CallSubject(s.Fleet, pool, hash, id)} { // in the order in which it moves
		if entry, err := s.Next(ctx, subject, 0); err != nil || entry != nil {
			return true, err
		}
	}
	return false, nil
}
