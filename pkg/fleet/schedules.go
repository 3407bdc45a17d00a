package fleet

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/toolfleet/toolfleet/internal/codes"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/schedule"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Schedule starts a turn at set times. [Schedules.Add] takes Name, Cron, TimeZone and Missed, and
// sets the other fields.
type Schedule struct {
	// Name has 1 to 64 letters, digits, '-' and '_'.
	Name string `json:"name"`
	// Cron is when: the five fields of crontab, @hourly, @daily, @weekly, @monthly, @yearly or
	// "@every 10m".
	Cron string `json:"cron"`
	// TimeZone is a name of the IANA database, such as Europe/Berlin; "" means UTC.
	TimeZone string `json:"time_zone"`
	// Missed is what becomes of times at which no coordinator ran: "once" starts the latest one,
	// "skip" none, "all" each of the last 100; "" means once.
	Missed  string      `json:"missed"`
	Paused  bool        `json:"paused"`
	Created time.Time   `json:"created"`
	Last    time.Time   `json:"last,omitzero"`  // the latest time that was started or skipped
	Next    []time.Time `json:"next,omitempty"` // the next three times
	// SessionID is the session of the last turn, or of every turn.
	SessionID protocol.SessionID `json:"session_id,omitempty"`
	// Outcome is set in lists: how the last turn ended, such as answered, failed or limit_reached;
	// "" while it waits or runs, and when its result has aged out.
	Outcome string `json:"outcome,omitempty"`
	Model   string `json:"model,omitempty"`
	Prompt  string `json:"prompt"`
}

// Schedules are the schedules of a fleet. Coordinators start each time once, however many run.
type Schedules struct{ client *Client }

// Schedules returns the schedules of the fleet.
func (c *Client) Schedules() Schedules { return Schedules{c} }

// List returns the schedules, sorted by name. With an error that is about single schedules it
// returns the others.
func (s Schedules) List(ctx context.Context) ([]Schedule, error) {
	list := []Schedule{}
	err := s.with(ctx, func(ctx context.Context, store *schedule.Store) error {
		all, err := store.List(ctx)
		for _, one := range all {
			d := described(one)
			if !d.Last.IsZero() {
				var unread error
				d.Outcome, unread = s.outcome(ctx, one)
				err = errors.Join(err, unread)
			}
			list = append(list, d)
		}
		return err
	})
	return list, err
}

// outcome is how the last turn of a schedule ended.
func (s Schedules) outcome(ctx context.Context, of *schedule.Schedule) (string, error) {
	call := of.At(of.Last)
	r, err := s.client.inner.Dispatcher.Result(ctx, &call)
	if err != nil || r == nil {
		return "", err
	}
	if turn, ended := r.Value.(wire.TurnRunResult); ended {
		return turn.Outcome, nil
	}
	return string(r.Status), nil
}

// Add stores a schedule. At each of its times the turn starts, in a new session unless it names
// one; its ID, NotBefore, Tenant and Priority do not count. The error wraps [ErrInvalid], also for
// a model that no coordinator serves, or [ErrExists].
func (s Schedules) Add(ctx context.Context, request Schedule, turn Turn) (added Schedule, err error) {
	if len(turn.Attachments) > 0 {
		return added, codes.As(ErrInvalid, errors.New("attachments: a scheduled turn has none"))
	}
	err = s.with(ctx, func(ctx context.Context, store *schedule.Store) error {
		if err := s.client.Sessions("").Serves(ctx, turn.Model); err != nil {
			return err
		}
		stored, err := store.Add(ctx, schedule.Schedule{
			Name: request.Name, Cron: request.Cron, TimeZone: request.TimeZone, Missed: schedule.Missed(request.Missed),
			Call: turn.call(), KeepSession: turn.Session != "",
		})
		if err == nil {
			added = described(stored)
		}
		return err
	})
	return added, err
}

// Pause stops a schedule until Resume. Times that pass meanwhile are skipped.
func (s Schedules) Pause(ctx context.Context, name string) (Schedule, error) {
	return s.pause(ctx, name, true)
}

// Resume ends a pause.
func (s Schedules) Resume(ctx context.Context, name string) (Schedule, error) {
	return s.pause(ctx, name, false)
}

func (s Schedules) pause(ctx context.Context, name string, paused bool) (changed Schedule, err error) {
	err = s.with(ctx, func(ctx context.Context, store *schedule.Store) error {
		stored, err := store.Pause(ctx, name, paused)
		if err == nil {
			changed = described(stored)
		}
		return err
	})
	return changed, err
}

// Remove removes a schedule. Turns that have started continue.
func (s Schedules) Remove(ctx context.Context, name string) error {
	return s.with(ctx, func(ctx context.Context, store *schedule.Store) error { return store.Remove(ctx, name) })
}

func (s Schedules) with(ctx context.Context, method func(context.Context, *schedule.Store) error) error {
	f := s.client.inner
	return act(ctx, s.client, []natsio.Rights{natsio.CallRights(f.Name, protocol.SessionPool)}, func(ctx context.Context) error {
		store, err := schedule.Open(ctx, f.JS, f.Name)
		if err == nil {
			err = f.CheckRights(ctx, natsio.ScheduleRights(f.Name))
		}
		if err == nil {
			err = method(ctx, store)
		}
		return err
	})
}

// nextTimes is the number of next times of a [Schedule].
const nextTimes = 3

// described is a stored schedule as the client returns it.
func described(s *schedule.Schedule) Schedule {
	turn, _ := s.Call.Payload.(wire.TurnRun)
	d := Schedule{
		Name: s.Name, Cron: s.Cron, TimeZone: cmp.Or(s.TimeZone, "UTC"), Missed: string(s.Missed), Paused: s.Paused,
		Created: s.Created, Last: s.Last, Model: turn.Model, Prompt: turn.Prompt,
	}
	switch {
	case s.Channel != "":
		d.Cron = "message in " + s.Channel
	case !s.Once.IsZero():
		d.Cron = "once"
	}
	if s.KeepSession || !s.Last.IsZero() {
		d.SessionID = s.At(s.Last).SessionID
	}
	if !s.Paused {
		d.Next = s.Next(time.Now(), nextTimes)
	}
	return d
}
