package serve

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/toolfleet/toolfleet/internal/calls/ports"
	"github.com/toolfleet/toolfleet/internal/judge"
	"github.com/toolfleet/toolfleet/internal/session/schedule"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// triggers are those of the session whose turn runs. A turn that one of them begins is as that
// turn, but for its prompt.
type triggers struct {
	store   *schedule.Store
	call    *protocol.Call // that asked for the turn
	journal loop.Journal
}

// withTriggers gives the run of a turn the triggers of its session, unless no coordinator starts
// schedules.
func (s *Server) withTriggers(ctx context.Context, call *protocol.Call) context.Context {
	if s.options.Schedules == nil {
		return ctx
	}
	return ports.WithTriggers(ctx, triggers{s.options.Schedules, call, s.options.Journal})
}

// orphaned refuses the turn of a trigger that another session of that name has set, which was
// removed.
func (s *Server) orphaned(ctx context.Context, call *protocol.Call, trigger *wire.TurnTrigger) *protocol.Error {
	if trigger == nil || trigger.By == "" {
		return nil
	}
	history, err := s.options.Journal.Load(ctx, call.SessionID)
	if err != nil {
		return nil //nolint:nilerr // the turn reads it again, and says so
	}
	set := false
	for i := range history.Events {
		switch e := &history.Events[i]; e.Type {
		case loop.EventToolCall:
			set = set || e.CallID == trigger.By
		case loop.EventSessionForked, loop.EventImported: // which have no triggers of their origin
			set = false
		default:
		}
	}
	if set {
		return nil
	}
	return protocol.Errorf(codes.TurnPostponed, "the turn of trigger %s is left out: the session in which it was set was removed", trigger.Name)
}

// unattended gives the run of a turn the bounds of what its session does without a person, and what
// has begun it instead of one.
func (s *Server) unattended(ctx context.Context, call *protocol.Call) context.Context {
	bounds := s.options.Unattended
	if turn, _ := call.Payload.(wire.TurnRun); turn.Trigger != nil {
		bounds.Firing = &ports.Firing{Name: turn.Trigger.Name, By: turn.Trigger.By, Channel: turn.Trigger.Channel}
	}
	return ports.WithUnattended(ctx, &bounds)
}

// Add implements [ports.Triggers].
func (t triggers) Add(ctx context.Context, trigger ports.Trigger) error {
	turn, _ := t.call.Payload.(wire.TurnRun)
	turn.Prompt, turn.Attachments = trigger.Prompt, nil
	turn.System, turn.Project, turn.Budget, turn.Compact = "", nil, nil, false // as in the turn before
	turn.Trigger = &wire.TurnTrigger{Name: trigger.Firing.Name, By: trigger.Firing.By, Channel: trigger.Firing.Channel}
	call := NewCall(t.call.SessionID, turn, t.call.RunFor())
	call.Tenant, call.Priority, call.MadeAfter = cmp.Or(wire.TenantOf(ctx), t.call.Tenant), t.call.Priority, t.call.MadeAfter
	call.By = judge.Of(ctx).By()
	record := schedule.Schedule{
		Name: trigger.ID, Cron: trigger.Cron, TimeZone: trigger.TimeZone, Call: call, KeepSession: true,
		Trigger: schedule.Trigger{Channel: trigger.Channel, After: trigger.After, By: trigger.Call}, Secret: trigger.Secret,
	}
	if trigger.Cron == "" {
		record.Once = trigger.At
	}
	err := t.store.AddTrigger(ctx, record)
	if errors.Is(err, schedule.ErrInvalid) {
		return protocol.Errorf(protocol.CodeInvalidArguments, "%s", strings.TrimPrefix(err.Error(), schedule.ErrInvalid.Error()+": "))
	}
	if err != nil {
		return err
	}
	// A removal marks the journal before it removes triggers: it has found this one, or is found.
	history, err := t.journal.Load(ctx, t.call.SessionID)
	if err == nil && history.Removed.Outlived(t.call.MadeAfter, t.call.IssuedAt) {
		err = loop.ErrRemoved
	}
	if errors.Is(err, loop.ErrRemoved) {
		return errors.Join(err, t.Remove(ctx, trigger.ID))
	}
	return nil
}

// List implements [ports.Triggers]. The trigger whose only turn runs has fired, although its record
// may be there for a moment, or until another coordinator removes it.
func (t triggers) List(ctx context.Context) ([]ports.Trigger, error) {
	stored, err := t.store.Triggers(ctx, t.call.SessionID)
	if err != nil {
		return nil, err
	}
	stored = slices.DeleteFunc(stored, func(s *schedule.Schedule) bool { return s.Cron == "" && s.At(time.Time{}).ID == t.call.ID })
	all := make([]ports.Trigger, len(stored))
	for i, s := range stored {
		turn, _ := s.Call.Payload.(wire.TurnRun)
		all[i] = ports.Trigger{ID: s.Name, Call: s.By, At: s.Once, Cron: s.Cron, TimeZone: s.TimeZone, Channel: s.Channel, After: s.After, Prompt: turn.Prompt}
		if next := s.Next(time.Now(), 1); s.Cron != "" && len(next) > 0 {
			all[i].At = next[0]
		}
	}
	return all, nil
}

// Remove implements [ports.Triggers].
func (t triggers) Remove(ctx context.Context, id string) error {
	stored, err := t.store.Get(ctx, id)
	switch {
	case err != nil && !errors.Is(err, schedule.ErrUnknown):
		return err
	case err != nil, stored.By == "", stored.Call.SessionID != t.call.SessionID:
		return protocol.Errorf(protocol.CodeNotFound,
			"The session has no trigger %q: it may have fired, or may have been removed. list_triggers lists the triggers of the session.",
			id)
	}
	if err := t.store.Remove(ctx, id); !errors.Is(err, schedule.ErrUnknown) {
		return err
	}
	return nil
}
