package fleet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolfleet/toolfleet/internal/calls"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/session"
	"github.com/toolfleet/toolfleet/internal/session/schedule"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/internal/workspace"
	"github.com/toolfleet/toolfleet/internal/workspace/transfer"
	"github.com/toolfleet/toolfleet/pkg/fleet/report"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Schedule starts a turn or a call at set times. [Schedules.Add] and [Schedules.AddCall] take Name,
// Cron, TimeZone and Missed, and set the other fields.
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
	// SessionID is the session of the last turn, or of every turn; of calls it is that of all.
	SessionID protocol.SessionID `json:"session_id,omitempty"`
	// Outcome is set in lists: how the last turn ended, such as answered, failed or limit_reached,
	// or the status of the last call; "" while it waits or runs, and when its result has aged out.
	Outcome string `json:"outcome,omitempty"`
	Model   string `json:"model,omitempty"`
	Prompt  string `json:"prompt,omitempty"`
	// Tool is the tool or handler of a call, and Payload what a worker executes.
	Tool    string           `json:"tool,omitempty"`
	Payload protocol.Payload `json:"payload,omitempty"`
}

// Schedules are the schedules of a fleet. Coordinators start each time once, however many run, as
// [Client.Submit] and [Sessions.Submit] do.
type Schedules struct{ client *Client }

// Schedules returns the schedules of the fleet.
func (c *Client) Schedules() Schedules { return Schedules{c} }

// List returns the schedules, sorted by name. With an error that is about single schedules it
// returns the others.
func (s Schedules) List(ctx context.Context) ([]Schedule, error) {
	list, _, err := s.Page(ctx, "", math.MaxInt)
	return list, err
}

// Page is List for the first schedules whose names come after one, at most limit of them; a limit
// of 0 means 100. leftOut is how many more come after these.
func (s Schedules) Page(ctx context.Context, after string, limit int) (list []Schedule, leftOut int, err error) {
	list = []Schedule{}
	f := s.client.inner
	err = act(ctx, s.client, natsio.ScheduleListRights(f.Name), func(ctx context.Context) error {
		store, err := schedule.OpenExisting(ctx, f.JS, f.Name)
		if errors.Is(err, jetstream.ErrBucketNotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		all, more, err := store.Page(ctx, after, cmp.Or(limit, defaultSchedules))
		leftOut = more
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
	return list, leftOut, err
}

// defaultSchedules is the limit of a page without one.
const defaultSchedules = 100

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

// Add stores a schedule, which starts a turn at each of its times, in a new session unless the turn
// names one; its ID and NotBefore do not count. The error wraps [ErrExists], or [ErrInvalid] also
// for a model that no coordinator serves. Nothing is stored then.
func (s Schedules) Add(ctx context.Context, request Schedule, turn Turn) (added Schedule, err error) {
	if len(turn.Attachments) > 0 {
		return added, invalid(errors.New("attachments: a scheduled turn has none"))
	}
	turn.NotBefore = time.Time{}
	return s.add(ctx, request, turn.call(), turn.Session != "", func(ctx context.Context) error {
		return s.client.Sessions("").CheckModel(ctx, turn.Model)
	})
}

// AddCall stores a schedule, which starts a call at each of its times. The call is planned, and its
// Policy judges it, now. All times have one session and sandbox: a new one, unless the call names
// some. The call must have no ID, NotBefore, Deadline and After, and no tool that runs in this
// process. Coordinators that sign calls start it only if this process has their key, see
// [Options].SignKey. The error wraps [ErrExists], or [ErrInvalid] also for a call that Policy does
// not allow or that coordinators would not start. Nothing is stored then.
func (s Schedules) AddCall(ctx context.Context, request Schedule, call Call) (added Schedule, err error) {
	planned, err := do(ctx, s.client, nil, func(ctx context.Context) (protocol.Call, error) {
		planned, err := s.planned(ctx, call)
		if err == nil {
			return planned, nil
		}
		return planned, cmp.Or(context.Cause(ctx), invalid(fmt.Errorf("call: %w", err)))
	})
	if err != nil {
		return added, err
	}
	return s.add(ctx, request, planned, true, func(ctx context.Context) error {
		f := s.client.inner
		return errors.Join(f.CheckRights(ctx, natsio.CallRights(f.Name, planned.Pool)), s.keys(ctx))
	})
}

// add stores a schedule after a check.
func (s Schedules) add(ctx context.Context, request Schedule, call protocol.Call, keepSession bool, check func(context.Context) error) (added Schedule, err error) {
	err = s.with(ctx, func(ctx context.Context, store *schedule.Store) error {
		call.MadeAfter = s.client.inner.Journal.Now(ctx)
		if err := session.MayCall(ctx, s.client.inner, &call); err != nil {
			return err
		}
		if err := check(ctx); err != nil {
			return err
		}
		stored, err := store.Add(ctx, schedule.Schedule{
			Name: request.Name, Cron: request.Cron, TimeZone: request.TimeZone, Missed: schedule.Missed(request.Missed),
			Call: call, KeepSession: keepSession,
		})
		if err == nil {
			added = described(stored)
		}
		return err
	})
	return added, err
}

// planned returns the call of a schedule, which this process may send itself.
func (s Schedules) planned(ctx context.Context, call Call) (planned protocol.Call, err error) {
	if call.ID != "" {
		return planned, errors.New("id: must not be set: each time has its own call")
	}
	if call.Sandbox == "" {
		call.Session = cmp.Or(call.Session, protocol.NewSessionID())
	}
	f, err := s.client.prepare(ctx, call)
	switch {
	case err != nil:
		return planned, err
	case f.plan.call != nil:
		return *f.plan.call, nil
	case f.plan.single.Error != nil:
		return planned, f.plan.single.Error
	}
	return planned, fmt.Errorf("tool %q: runs in this process, and cannot be scheduled", call.Tool)
}

// keys returns an error unless all coordinators that answer have the key of this process: they
// would not start its calls, or workers would not run them. It is nil if the user may not ask them.
func (s Schedules) keys(ctx context.Context) error {
	f := s.client.inner
	err := act(ctx, s.client, []natsio.Rights{natsio.WorkersRights(f.Name, protocol.SessionPool)}, func(ctx context.Context) error {
		coordinators, err := calls.Workers(ctx, f.NC, f.Name, protocol.SessionPool, answersWait)
		if errors.Is(err, nats.ErrNoResponders) {
			return nil
		}
		for _, c := range coordinators {
			if own := f.Signer.ID(); c.SignKey != own {
				return invalid(fmt.Errorf("call: coordinator %s signs calls with key %q, and this process with %q: both need the same key (--sign-key)", c.WorkerID, c.SignKey, own))
			}
		}
		return err
	})
	if errors.Is(err, ErrRights) {
		return nil
	}
	return err
}

// answersWait is how long coordinators may take to answer.
const answersWait = 500 * time.Millisecond

// startsNext says when a schedule starts.
func startsNext(s Schedule) string {
	switch {
	case s.Paused:
		return ": it is paused"
	case len(s.Next) > 0:
		return ": it starts at " + s.Next[0].Format(time.RFC3339)
	default:
		return ""
	}
}

// Ref names the turn or the call of a time of a schedule, for [Client.Attach]; the zero time means
// the last one. The error wraps [ErrInvalid] for a time that is none of the schedule, and
// [ErrNotFound] if it has not started anything yet.
func (s Schedules) Ref(ctx context.Context, name string, at time.Time) (ref protocol.CallRef, err error) {
	err = s.with(ctx, func(ctx context.Context, store *schedule.Store) error {
		stored, err := store.Get(ctx, name)
		if err != nil {
			return err
		}
		if at.IsZero() {
			if at = stored.Last; at.IsZero() {
				return codes.As(ErrNotFound, fmt.Errorf("schedule %s has not started anything yet%s", name, startsNext(described(stored))))
			}
		}
		next := stored.Next(at.Add(-1), 1)
		if at.Before(stored.Created) || at.After(stored.Last) || len(next) == 0 || !next[0].Equal(at) {
			return invalid(fmt.Errorf("time %s: schedule %s started nothing at that time (schedule ls shows when it did last)", at.Format(time.RFC3339), name))
		}
		call := stored.At(at)
		ref = protocol.CallRef{SessionID: call.SessionID, ID: call.ID}
		return nil
	})
	return ref, err
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

// Remove removes a schedule. Turns and calls that have started continue.
func (s Schedules) Remove(ctx context.Context, name string) error {
	return s.with(ctx, func(ctx context.Context, store *schedule.Store) error { return store.Remove(ctx, name) })
}

func (s Schedules) with(ctx context.Context, method func(context.Context, *schedule.Store) error) error {
	f := s.client.inner
	return act(ctx, s.client, []natsio.Rights{natsio.CallRights(f.Name, protocol.SessionPool)}, func(ctx context.Context) error {
		store, err := f.Schedules(ctx)
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
	turn, is := s.Call.Payload.(wire.TurnRun)
	d := Schedule{
		Name: s.Name, Cron: s.Cron, TimeZone: cmp.Or(s.TimeZone, "UTC"), Missed: string(cmp.Or(s.Missed, schedule.MissedOnce)), Paused: s.Paused,
		Created: s.Created, Last: s.Last, Model: turn.Model, Prompt: turn.Prompt,
	}
	if !is {
		d.Tool, d.Payload = s.Call.Tool, s.Call.Payload
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

// Templates are the templates of a fleet. A name has 1 to 63 lower case letters, digits, '-' and
// '_', and begins with a letter or digit.
type Templates struct{ client *Client }

// Templates returns the templates of the fleet.
func (c *Client) Templates() Templates { return Templates{c} }

// List returns the templates, sorted by name.
func (t Templates) List(ctx context.Context) (list []report.Template, err error) {
	err = t.with(ctx, natsio.TemplateListRights(t.client.inner.Name), func(ctx context.Context, store *workspace.Store) error {
		list, err = store.Templates(ctx)
		return err
	})
	return list, err
}

// Create stores a directory of this machine as a template, without what [Sessions.Push] leaves out.
// The error wraps [ErrExists] if there is a template of that name.
func (t Templates) Create(ctx context.Context, name, dir string, options Copy) (err error) {
	if err := checkTemplate(name); err != nil {
		return err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return invalid(err)
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	return t.change(ctx, func(ctx context.Context, store *workspace.Store) error {
		ignore, err := transfer.Ignoring(ctx, root, options.IncludeIgnored)
		if err != nil {
			return err
		}
		if err := store.TemplateFrom(ctx, name, root, ignore.Skip); err != nil {
			return err
		}
		if left := ignore.LeftOut(); left != "" && options.Warn != nil {
			options.Warn(transfer.LeftOut("not copied", left))
		}
		return nil
	})
}

// CreateFromSession stores the workspace of a session as a template, with errors as Create. The
// error wraps [ErrNotFound] if the session has no stored workspace.
func (t Templates) CreateFromSession(ctx context.Context, name string, session protocol.SessionID) error {
	_, err := protocol.ParseSessionID(string(session))
	if err := errors.Join(checkTemplate(name), invalid(err)); err != nil {
		return err
	}
	return t.change(ctx, func(ctx context.Context, store *workspace.Store) error {
		return store.TemplateOf(ctx, name, wire.HashLane(protocol.SandboxKey(string(session)).Lane()))
	})
}

// Remove removes a template. Sessions that began with it stay as they are.
func (t Templates) Remove(ctx context.Context, name string) error {
	if err := checkTemplate(name); err != nil {
		return err
	}
	return t.change(ctx, func(ctx context.Context, store *workspace.Store) error { return store.RemoveTemplate(ctx, name) })
}

func checkTemplate(name string) error {
	if err := workspace.CheckTemplate(name); err != nil {
		return invalid(fmt.Errorf("name %w", err))
	}
	return nil
}

// change is with for a method that changes templates.
func (t Templates) change(ctx context.Context, method func(context.Context, *workspace.Store) error) error {
	return t.with(ctx, natsio.WorkspaceRights(t.client.inner.Name), method)
}

func (t Templates) with(ctx context.Context, rights natsio.Rights, method func(context.Context, *workspace.Store) error) error {
	f := t.client.inner
	return act(ctx, t.client, []natsio.Rights{rights}, func(ctx context.Context) error {
		store, err := workspace.Open(ctx, f.Conn(protocol.DefaultPool), f.Name, f.Bodies)
		if err == nil {
			err = method(ctx, store)
		}
		return err
	})
}
