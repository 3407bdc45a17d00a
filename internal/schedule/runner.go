package schedule

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolfleet/toolfleet/internal/pause"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Waiting of a runner.
const (
	maxWait    = time.Minute // at most so long: clocks are set, machines sleep
	retryAfter = time.Second // after a call could not be sent
)

// Runner starts the calls of a fleet's schedules.
type Runner struct {
	Store *Store
	// Send has the fleet accept a call. It is called again with the same call after an error or a
	// crash.
	Send   func(ctx context.Context, call protocol.Call) error
	Logger *slog.Logger
}

// Run starts what is due until ctx ends. Any number of runners may run at once; each time
// starts once.
func (r *Runner) Run(ctx context.Context) {
	for {
		if err := r.run(ctx); ctx.Err() == nil {
			r.Logger.WarnContext(ctx, "schedules cannot be watched", slog.Any("error", err))
		}
		if !pause.For(ctx, retryAfter) {
			return
		}
	}
}

// run is Run with one subscription. It returns when that ends.
func (r *Runner) run(ctx context.Context) error {
	watch, err := r.Store.bucket.WatchAll(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = watch.Stop() }() // fails only when the connection is closed
	known := map[string]*Schedule{}
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
				break
			}
			r.note(ctx, known, entry)
		case <-timer.C:
		}
		if len(watch.Updates()) == 0 {
			timer.Reset(r.startDue(ctx, known))
		}
	}
}

// note keeps the latest record of a schedule.
func (r *Runner) note(ctx context.Context, known map[string]*Schedule, entry jetstream.KeyValueEntry) {
	if last := known[entry.Key()]; last != nil && last.revision >= entry.Revision() {
		return
	}
	delete(known, entry.Key())
	if entry.Operation() != jetstream.KeyValuePut {
		return
	}
	s, err := decode(entry)
	if err != nil {
		r.Logger.WarnContext(ctx, "a schedule cannot be read", slog.Any("error", err))
		return
	}
	known[s.Name] = s
}

// startDue starts what is due, and returns how long to wait for the next time.
func (r *Runner) startDue(ctx context.Context, known map[string]*Schedule) time.Duration {
	wait := maxWait
	for name, s := range known {
		if s.Paused {
			continue
		}
		if err := r.start(ctx, s); err != nil {
			wait = min(wait, retryAfter)
			if changedMeanwhile(err) { // by another coordinator: its record is on its way
				continue
			}
			r.Logger.WarnContext(ctx, "a schedule's call cannot be started", slog.String("schedule", name), slog.Any("error", err))
			continue
		}
		if next := s.Next(time.Now(), 1); len(next) > 0 {
			wait = min(wait, time.Until(next[0]))
		}
	}
	return max(wait, 0)
}

// start sends the calls of one schedule that are due, and moves its last time on.
func (r *Runner) start(ctx context.Context, s *Schedule) error {
	times, last := s.due(time.Now())
	if last.IsZero() {
		return nil
	}
	for _, t := range times {
		call := s.At(t)
		if err := r.Send(ctx, call); err != nil {
			return err
		}
		r.Logger.InfoContext(ctx, "schedule started a call", slog.String("schedule", s.Name), slog.Time("time", t),
			slog.String("session_id", string(call.SessionID)), slog.String("call_id", string(call.ID)))
	}
	moved := *s
	moved.Last = last
	if err := r.Store.update(ctx, &moved); err != nil {
		return err
	}
	*s = moved
	return nil
}
