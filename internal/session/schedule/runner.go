package schedule

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/robfig/cron/v3"
	"golang.org/x/sync/errgroup"

	"github.com/toolfleet/toolfleet/internal/calls/channel"
	"github.com/toolfleet/toolfleet/internal/judge"
	"github.com/toolfleet/toolfleet/internal/system/pause"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/internal/worker/sandboxes"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Waiting of a runner.
const (
	maxWait = time.Minute // at most so long: clocks are set, machines sleep, notices are lost
	sendFor = 5 * time.Second
)

// maxStarts bounds the schedules that start at once: one whose pool cannot be reached delays others
// by sendFor at most.
const maxStarts = 64

// forgetAfter is how long the mark of a removed record stays. Until then a tool call that was
// stopped for long does not add its trigger once more.
const forgetAfter = 24 * time.Hour

// Runner starts the calls of a fleet's schedules. Run it once.
type Runner struct {
	Store *Store
	// Send has the fleet accept a call, which it does not follow. It is called again with the same
	// call after an error or a crash, and concurrently.
	Send func(ctx context.Context, call *protocol.Call) error
	// Judge returns why a call of workers, which is no turn, must not start; nil lets all start.
	Judge func(ctx context.Context, call *protocol.Call) error
	// Owner returns the owner of a session, nil if that is not known, and whether the session has a
	// journal; required where the store has a signer. A trigger whose session has none is removed.
	Owner func(ctx context.Context, session protocol.SessionID) (owner *judge.Owner, journaled bool, err error)
	// Channels has the messages that start calls; nil starts none by messages.
	Channels *channel.Store
	Logger   *slog.Logger

	known    map[string]*Schedule
	removed  []jetstream.KeyValueEntry // marks of removed records, the earliest first
	lookedAt time.Time                 // when all channels were looked at
}

// Run starts what is due until ctx ends. Any number of runners may run at once; each time
// starts once.
func (r *Runner) Run(ctx context.Context) {
	for {
		if err := r.run(ctx); ctx.Err() == nil {
			r.Logger.WarnContext(ctx, "schedules cannot be watched", slog.Any("error", err))
		}
		if !pause.For(ctx, pause.Resume) {
			return
		}
	}
}

// run is Run with one subscription. It returns when that ends.
func (r *Runner) run(ctx context.Context) error {
	sent := make(chan *nats.Msg, 256) // more get lost, and are found within maxWait
	if r.Channels != nil {
		subscription, err := r.Channels.Listen("*.*", sent)
		if err != nil {
			return err
		}
		defer func() { _ = subscription.Unsubscribe() }() // fails only when the connection is closed
	}
	before, err := r.Store.last(ctx)
	if err != nil {
		return err
	}
	watch, err := r.Store.bucket.WatchAll(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = watch.Stop() }() // fails only when the connection is closed
	r.known, r.removed = map[string]*Schedule{}, nil
	defer r.Store.index.close()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case entry, open := <-watch.Updates():
			if !open {
				return errors.New("the subscription has ended")
			}
			if entry == nil { // all that were there at first have come
				r.Store.index.open(before)
				break
			}
			r.onRecord(ctx, entry)
		case message := <-sent:
			r.onMessage(message)
		case <-timer.C:
		}
		if len(watch.Updates()) == 0 && len(sent) == 0 {
			timer.Reset(r.startDue(ctx))
			r.forget(ctx)
		}
	}
}

// onRecord stores the latest record of a schedule.
func (r *Runner) onRecord(ctx context.Context, entry jetstream.KeyValueEntry) {
	s, err := (*Schedule)(nil), error(nil)
	if entry.Operation() == jetstream.KeyValuePut {
		s, err = decode(entry.Key(), entry.Value(), entry.Revision())
	}
	r.Store.index.put(entry.Key(), s, entry.Revision())
	if last := r.known[entry.Key()]; last != nil && last.revision >= entry.Revision() {
		return
	}
	delete(r.known, entry.Key())
	if entry.Operation() != jetstream.KeyValuePut {
		r.removed = append(r.removed, entry)
		return
	}
	if err == nil {
		err = r.Store.checkSigned(s)
	}
	if err != nil {
		r.Logger.WarnContext(ctx, "a schedule cannot be started", slog.Any("error", err))
		return
	}
	r.known[s.Name] = s
}

// onMessage notes that a channel has a message.
func (r *Runner) onMessage(message *nats.Msg) {
	name, _, _ := wire.PartsOfMessage(message.Subject)
	for _, s := range r.known {
		if s.Channel == name {
			s.looked, s.wakes = false, time.Time{}
		}
	}
}

// forget deletes marks of removed records that are old.
func (r *Runner) forget(ctx context.Context) {
	for len(r.removed) > 0 && time.Since(r.removed[0].Created()) > forgetAfter {
		if err := r.Store.forget(ctx, r.removed[0]); err != nil {
			r.Logger.DebugContext(ctx, "a removed schedule is not forgotten", slog.Any("error", err))
		}
		r.removed = r.removed[1:]
	}
}

// startDue starts what is due, and returns how long to wait for the next time.
func (r *Runner) startDue(ctx context.Context) time.Duration {
	now, wait, sleeps := time.Now(), maxWait, maxWait
	again := now.Sub(r.lookedAt) >= maxWait
	if again {
		r.lookedAt = now
	}
	var mu sync.Mutex
	var starts errgroup.Group
	starts.SetLimit(maxStarts)
	for name, s := range r.known {
		if s.Paused {
			continue
		}
		if !again && now.Before(s.wakes) {
			sleeps = min(sleeps, s.wakes.Sub(now))
			continue
		}
		s.looked = s.looked && !again
		starts.Go(func() error {
			until := pause.Resume
			if err := r.start(ctx, s); err == nil {
				until = maxWait
				if next := s.Next(time.Now(), 1); len(next) > 0 {
					until = time.Until(next[0])
				}
			} else if !changedMeanwhile(err) { // by another coordinator: its record is on its way
				r.Logger.WarnContext(ctx, "a schedule's call cannot be started", slog.String("schedule", name), slog.Any("error", err))
			}
			s.wakes = now.Add(min(until, maxWait))
			mu.Lock()
			wait = min(wait, until)
			mu.Unlock()
			return nil
		})
	}
	_ = starts.Wait() // they return none
	maps.DeleteFunc(r.known, func(_ string, s *Schedule) bool { return s.ended })
	return max(min(wait, sleeps), 0)
}

// start sends the calls of one schedule that are due, and moves its last time on or removes it.
func (r *Runner) start(ctx context.Context, s *Schedule) error {
	times, last, err := r.due(ctx, s)
	if err != nil || last.IsZero() {
		return err
	}
	if err := r.Store.unchanged(ctx, s); err != nil { // this process may have been stopped or cut off
		return err
	}
	if s.By != "" && r.Owner != nil { // else the coordinator that runs the turn finds that out
		switch _, exists, err := r.Owner(ctx, s.Call.SessionID); {
		case err != nil:
			return err
		case !exists: // a turn of it has set the trigger while the session was removed
			return r.end(ctx, s)
		}
	}
	for _, t := range times {
		call := s.At(t)
		refusal, err := r.judged(ctx, s, &call)
		if err != nil {
			return err
		}
		if refusal != nil { // as at every attempt, while the rules are these
			r.Logger.WarnContext(ctx, "a schedule's call is not allowed and was skipped", slog.String("schedule", s.Name), slog.Time("time", t), slog.Any("error", refusal))
			continue
		}
		about := []any{slog.String("schedule", s.Name), slog.Time("time", t), slog.String("session_id", string(call.SessionID)), slog.String("call_id", string(call.ID))}
		err = r.send(ctx, &call)
		if refused, is := errors.AsType[*protocol.Error](err); is && refused.Code == codes.PayloadTooLarge { // as at every attempt
			r.Logger.WarnContext(ctx, "a schedule's call is too large and was skipped", append(about, slog.Any("error", err))...)
			continue
		}
		if err != nil {
			return err
		}
		r.Logger.InfoContext(ctx, "schedule started a call", about...)
	}
	if s.single() {
		return r.end(ctx, s)
	}
	moved := *s
	moved.Last = last
	if err := r.Store.update(ctx, &moved); err != nil {
		return err
	}
	*s = moved
	return nil
}

// end removes a schedule that starts nothing any more.
func (r *Runner) end(ctx context.Context, s *Schedule) error {
	err := r.Store.bucket.Delete(ctx, s.Name, jetstream.LastRevision(s.revision))
	s.ended = err == nil
	return err
}

// judged returns why a call must not start: the owner of the schedule may not use the session, or
// the sandbox, or the rules of this coordinator deny it. A turn, and what it does, is judged when
// it runs; but one that is not signed reaches the default tenant alone.
func (r *Runner) judged(ctx context.Context, s *Schedule, call *protocol.Call) (refusal, err error) {
	if s.isTurn() && !s.bound {
		return nil, nil
	}
	who, note := judge.PrincipalOf(judge.Owner{Tenant: call.Tenant, By: call.By}), ""
	if s.bound {
		who = judge.Principal{Tenant: judge.DefaultTenant}
		note = "; the schedule is not signed: add it again with the key of this coordinator (--sign-key)"
	}
	if s.KeepSession && r.Owner != nil {
		for _, id := range slices.Compact([]protocol.SessionID{call.SessionID, protocol.SessionID(sandboxes.ID(call.Lane()))}) {
			if id == "" {
				continue
			}
			owner, _, err := r.Owner(ctx, id)
			if err != nil {
				return nil, err
			}
			if owner == nil { // the session does not exist, or an earlier version has made it
				continue
			}
			if refusal := judge.May(who, judge.Use, judge.Object{Kind: judge.Session, ID: string(id), Owner: *owner}); refusal != nil {
				return fmt.Errorf("%w%s", refusal, note), nil
			}
		}
	}
	if r.Judge == nil || s.isTurn() {
		return nil, nil
	}
	return r.Judge(ctx, call), nil
}

func (r *Runner) send(ctx context.Context, call *protocol.Call) error {
	ctx, cancel := context.WithTimeout(ctx, sendFor)
	defer cancel()
	return r.Send(ctx, call)
}

// due is [Schedule.due], now, also of schedules that wait for a message.
func (r *Runner) due(ctx context.Context, s *Schedule) (start []time.Time, last time.Time, err error) {
	now := time.Now()
	switch {
	case s.Channel == "":
		start, last = s.due(now)
		return start, last, nil
	case s.looked || r.Channels == nil:
		return nil, time.Time{}, nil
	}
	message, err := r.Channels.Next(ctx, s.Channel, s.Call.SessionID, s.After)
	if err != nil || message == nil {
		s.looked = err == nil
		return nil, time.Time{}, err
	}
	return []time.Time{now}, now, nil
}

// every has the times start + n periods, the same ones for every coordinator.
type every struct {
	start  time.Time
	period time.Duration
}

// Next implements [cron.Schedule].
func (e every) Next(after time.Time) time.Time {
	if after.Before(e.start) {
		return e.start.Add(e.period)
	}
	return e.start.Add((after.Sub(e.start)/e.period + 1) * e.period)
}

// once has one time; the zero time is none.
type once struct{ at time.Time }

// Next implements [cron.Schedule].
func (o once) Next(after time.Time) time.Time {
	if after.Before(o.at) {
		return o.at
	}
	return time.Time{}
}

func wholeSeconds(period string) bool {
	d, err := time.ParseDuration(strings.TrimSpace(period))
	return err == nil && d > 0 && d%time.Second == 0
}

// inZone returns the times of a cron text in a time zone. With a "*" for hours they follow the
// elapsed time, so that "*/15 * * * *" has four of them in each hour that passes. Others are local.
func inZone(spec *cron.SpecSchedule, zone *time.Location) cron.Schedule {
	const everyHour = 1<<24 - 1
	if spec.Hour&everyHour == everyHour {
		spec.Location = zone
		return spec
	}
	spec.Location = time.UTC
	return local{spec, zone}
}

// local has fixed local times. Each starts once, at the first moment at which the clocks show
// that time or a later one: a time that they show twice starts at first, and times that they skip
// start together at the change.
type local struct {
	clock *cron.SpecSchedule // as if local time were UTC
	zone  *time.Location
}

// Next implements [cron.Schedule].
func (l local) Next(after time.Time) time.Time {
	shown := asUTC(after.In(l.zone))
	for {
		if shown = l.clock.Next(shown); shown.IsZero() {
			return shown
		}
		if t := l.first(shown); t.After(after) {
			return t
		}
	}
}

// asUTC is the time in UTC whose clocks show what those of t show.
func asUTC(t time.Time) time.Time {
	_, offset := t.Zone()
	return t.Add(time.Duration(offset) * time.Second).UTC()
}

// first is the first moment at which the clocks of the zone show a time or a later one.
func (l local) first(shown time.Time) time.Time {
	const change = 26 * time.Hour // is more than clocks differ from UTC, and has one change at most
	before := shown.Add(-change).In(l.zone)
	_, offset := before.Zone()
	t := shown.Add(-time.Duration(offset) * time.Second)
	if _, changes := before.ZoneBounds(); !changes.IsZero() && !t.Before(changes) {
		_, offset := changes.Zone()
		t = shown.Add(-time.Duration(offset) * time.Second)
		if t.Before(changes) {
			t = changes
		}
	}
	return t.In(l.zone)
}

// index is the triggers of sessions, kept by the [Runner] of the store, which reads each record
// once. It is safe for concurrent use.
type index struct {
	mu       sync.Mutex
	kept     bool          // a runner keeps it
	seen     uint64        // the sequence up to which it is complete
	changed  chan struct{} // closed when seen changes; nil without a waiter
	sessions map[protocol.SessionID]map[string]*Schedule
	owners   map[string]protocol.SessionID // of the triggers, by name
}

// put changes one record; a nil schedule is one that was removed or cannot be read.
func (x *index) put(name string, s *Schedule, revision uint64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if owner, known := x.owners[name]; known {
		delete(x.owners, name)
		if delete(x.sessions[owner], name); len(x.sessions[owner]) == 0 {
			delete(x.sessions, owner)
		}
	}
	if s != nil && s.By != "" {
		owner, own := s.Call.SessionID, *s // the runner changes its own copy
		if x.owners == nil {
			x.owners, x.sessions = map[string]protocol.SessionID{}, map[protocol.SessionID]map[string]*Schedule{}
		}
		if x.owners[name] = owner; x.sessions[owner] == nil {
			x.sessions[owner] = map[string]*Schedule{}
		}
		x.sessions[owner][name] = &own
	}
	x.advance(revision)
}

// advance notes that the index is complete up to a sequence; the lock is held.
func (x *index) advance(revision uint64) {
	if x.seen = max(x.seen, revision); x.changed != nil {
		close(x.changed)
		x.changed = nil
	}
}

// open says that all records up to a sequence are noted, and that a runner notes the others.
func (x *index) open(seen uint64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.kept = true
	x.advance(seen)
}

// close empties the index: its runner has ended, or begins again.
func (x *index) close() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.kept, x.seen, x.owners, x.sessions = false, 0, nil, nil
	x.advance(0)
}

// indexWait is how long the index may take to have what is stored.
const indexWait = time.Second

// of returns copies of the triggers of a session once the index has all up to a sequence; it
// reports false when it does not have them in time.
func (x *index) of(ctx context.Context, session protocol.SessionID, last uint64) (all []*Schedule, current bool) {
	late := time.NewTimer(indexWait)
	defer late.Stop()
	for {
		x.mu.Lock()
		if !x.kept {
			x.mu.Unlock()
			return nil, false
		}
		if x.seen >= last {
			for _, s := range x.sessions[session] {
				own := *s
				all = append(all, &own)
			}
			x.mu.Unlock()
			return all, true
		}
		if x.changed == nil {
			x.changed = make(chan struct{})
		}
		changed := x.changed
		x.mu.Unlock()
		select {
		case <-changed:
		case <-late.C:
			return nil, false
		case <-ctx.Done():
			return nil, false
		}
	}
}
