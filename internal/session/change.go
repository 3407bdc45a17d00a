package session

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/toolfleet/toolfleet/internal/fleet"
	"github.com/toolfleet/toolfleet/internal/judge"
	"github.com/toolfleet/toolfleet/internal/modeltext/render"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/pkg/fleet/report"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Merge brings what a fork of a session has changed in its workspace since it began, or since it
// was merged last, into the session, and adds its answer to the conversation, as one message. A
// merge that was interrupted is completed by the same merge, or by the session's next turn,
// whichever comes first; see [loop.CompleteChanges]. The error wraps [ErrBusy] when one of the two
// has an open turn or unfinished calls, or the session is extended meanwhile; then nothing was
// changed.
func Merge(ctx context.Context, f *fleet.Fleet, from, into protocol.SessionID, pool protocol.Pool) (report.Merged, error) {
	merged, err := merge(ctx, f, f.Journal, from, into, pool)
	if err != nil {
		return merged, fmt.Errorf("merge session %s into %s: %w", from, into, err)
	}
	return merged, nil
}

func merge(ctx context.Context, f *fleet.Fleet, journal loop.Journal, from, into protocol.SessionID, pool protocol.Pool) (merged report.Merged, err error) {
	if from == into {
		return merged, codes.As(codes.ErrInvalid, errors.New("a session cannot be merged into itself: name the fork, and then the session that gets its changes"))
	}
	var r *remover
	if _, err = idle(ctx, f, journal, from, pool, judge.See); err == nil {
		r, err = idle(ctx, f, journal, into, pool, judge.Change)
	}
	if err != nil {
		return merged, err
	}
	fork, err := journal.Load(ctx, from)
	if err != nil {
		return merged, err
	}
	if len(r.history.Events) == 0 { // its workspace may belong to single calls
		if there, err := HasWorkspace(ctx, f.At(pool), into); err != nil || !there {
			return merged, cmp.Or(err, ErrNone)
		}
	}
	answer := answerOf(fork.Events)
	text := fmt.Sprintf("[Session %s, a fork of this one or of its origin, was merged.]", from)
	if answer != "" {
		text += "\nIts answer:\n" + answer
	}
	about := loop.Event{Text: text + "\n\n", NoteFields: loop.NoteFields{From: from}}
	value, err := r.merge(ctx, about, fork.Last)
	if err != nil {
		return merged, err
	}
	result, is := value.(wire.WorkspaceMergeResult)
	if !is {
		return merged, errors.New("the worker returned no result of a merge")
	}
	return report.Merged{MergedFiles: result, Answer: answer, Text: render.MergeText(result)}, nil
}

// merge has a worker merge a fork whose journal ends at forkLast, unless that is what the
// interrupted merge has done which was just completed.
func (r *remover) merge(ctx context.Context, about loop.Event, forkLast uint64) (protocol.Value, error) {
	payload := wire.WorkspaceMerge{From: string(about.From), After: MergedUpTo(r.history.Events, about.From)}
	var ended uint64 // merges of the fork
	for i := range r.history.Events {
		if e := &r.history.Events[i]; e.From == about.From && e.Type == loop.EventChangeEnded {
			ended++
		}
	}
	if len(r.history.Events) == 0 { // no conversation: the workspace says what was merged
		return r.call(ctx, wire.RandomCallID(), payload)
	}
	if ended > 0 {
		same := wire.MergeCallID(r.id, ended-1, about.From, forkLast)
		if slices.ContainsFunc(r.completed, func(c protocol.Result) bool { return c.CallID == same && c.Error == nil }) {
			return r.outcome(ctx, &protocol.Call{ID: same, SessionID: r.id}, r.completed)
		}
	}
	return r.change(ctx, wire.MergeCallID(r.id, ended, about.From, forkLast), about, payload)
}

// MergedUpTo is the checkpoint of a fork that a session has merged last; 0 without one.
func MergedUpTo(events []loop.Event, fork protocol.SessionID) (after uint64) {
	for i := range events {
		if e := &events[i]; e.From == fork && e.Type == loop.EventSessionMerged {
			after = e.Checkpoint
		}
	}
	return after
}

// answerOf is the answer of the last turn of its own that a session has; "" without one.
func answerOf(events []loop.Event) (answer string) {
	for i := range events {
		switch e := &events[i]; e.Type {
		case loop.EventSessionForked:
			answer = ""
		case loop.EventTurnEnded:
			answer = e.Text
		default:
		}
	}
	return answer
}

// Effect is a call that reaches outside of the workspace, and how it is undone.
type Effect struct {
	report.Effect

	session  protocol.SessionID // whose call it is
	call     *loop.RevertCall
	attempts int             // to undo it that have failed
	unknown  protocol.CallID // the attempt that may have happened
}

// The statuses of a [loop.EventCallResolved].
const (
	resolvedHappened = "happened"
	resolvedDidNot   = "did_not"
)

// Effects are the effects of a session and its sub-agents behind a point, the last first. Those of
// calls that did not happen, as a person found out, are left out.
func Effects(ctx context.Context, journal loop.Journal, id protocol.SessionID, at At) ([]Effect, error) {
	history, err := journal.Load(ctx, id)
	if err != nil {
		return nil, fmt.Errorf("session %s: %w", id, err)
	}
	events, err := withAgents(ctx, journal, history.Events)
	if err != nil {
		return nil, fmt.Errorf("session %s: %w", id, err)
	}
	cut := at.in(events)
	if cut < 0 && at.Turn >= 0 {
		return nil, nil // the point is none of the conversation, as that of a single call
	}
	var effects []Effect
	resolved := map[protocol.CallID]string{}
	for i := range events {
		if events[i].Type == loop.EventCallResolved {
			resolved[events[i].CallID] = events[i].Status
		}
	}
	for i := range events {
		e := &events[i]
		status := protocol.Status(e.Status)
		if !e.EndsCall() || i <= cut || e.Effect == nil && status != protocol.StatusOutcomeUnknown || resolved[e.CallID] == resolvedDidNot {
			continue
		}
		effect := Effect{Effect: report.Effect{CallID: e.CallID, Tool: e.Name, Status: status}, session: e.SessionID}
		if e.Effect != nil {
			effect.Reaches = e.Effect.Reaches
			if effect.call = e.Effect.Revert; effect.call != nil {
				effect.Revert = effect.call.Tool
			}
		}
		effects = append(effects, effect)
	}
	for i := range events {
		at := slices.IndexFunc(effects, func(effect Effect) bool { return effect.CallID == events[i].Reverts })
		if at < 0 {
			continue
		}
		effects[at].attempted(&events[i], resolved[events[i].CallID])
	}
	slices.Reverse(effects)
	return effects, nil
}

// attempted notes an event of an attempt to undo an effect, and what a person found out about it.
func (e *Effect) attempted(event *loop.Event, resolved string) {
	if event.Type == loop.EventRevertStarted {
		return
	}
	e.unknown = ""
	switch status := protocol.Status(event.Status); {
	case status == protocol.StatusOK, resolved == resolvedHappened:
		e.Reverted = true
	case status == protocol.StatusOutcomeUnknown && resolved == "":
		e.unknown = event.CallID
	default:
		e.attempts++
	}
}

// withAgents are the events of a session with those of its sub-agents, each before its result, or
// behind all others if it has not ended.
func withAgents(ctx context.Context, journal loop.Journal, events []loop.Event) ([]loop.Event, error) {
	var all []loop.Event
	var open []protocol.CallID // sub-agents that have not ended
	add := func(agent protocol.CallID) error {
		child, err := loop.LoadAgent(ctx, journal, events, agent)
		if err != nil {
			return err
		}
		inner, err := withAgents(ctx, journal, child.Events)
		for i := range inner { // its turns are not those of this session
			if inner[i].Type != loop.EventTurnEnded {
				all = append(all, inner[i])
			}
		}
		return err
	}
	for i := range events {
		e := &events[i]
		switch {
		case e.Name != wire.AgentTool:
		case e.Type == loop.EventToolCall:
			open = append(open, e.CallID)
		case e.EndsCall():
			open = slices.DeleteFunc(open, func(id protocol.CallID) bool { return id == e.CallID })
			if err := add(e.CallID); err != nil {
				return nil, err
			}
		}
		all = append(all, *e)
	}
	for _, agent := range open {
		if err := add(agent); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// Revert undoes effects in the order given, and stops at the first that cannot be undone. Each is
// undone by a change, whose call has an id that derives from the call that it undoes, so it runs
// once however often Revert is interrupted and repeated; see [loop.CompleteChanges]. One that
// failed is attempted again by the next Revert; of one that was killed the outcome is unknown,
// unless it is idempotent. The error wraps [ErrBusy] when the session has an open turn or
// unfinished calls; then nothing was undone.
func Revert(ctx context.Context, f *fleet.Fleet, id protocol.SessionID, pool protocol.Pool, effects []Effect) error {
	return revert(ctx, f, f.Journal, id, pool, effects)
}

func revert(ctx context.Context, f *fleet.Fleet, journal loop.Journal, id protocol.SessionID, pool protocol.Pool, effects []Effect) error {
	r, err := idle(ctx, f, journal, id, pool, judge.Change)
	if err != nil {
		return fmt.Errorf("revert calls of session %s: %w", id, err)
	}
	for i := range effects {
		e := &effects[i]
		if e.call == nil || e.Reverted {
			continue
		}
		if err := r.revert(ctx, e); err != nil {
			return fmt.Errorf("revert call %s of %s by %s: %w", e.CallID, e.Tool, e.Revert, err)
		}
	}
	return nil
}

// revert undoes an effect, unless an earlier attempt, or another process, has done so.
func (r *remover) revert(ctx context.Context, e *Effect) error {
	if e.unknown != "" {
		return fmt.Errorf("the outcome of an earlier revert, call %s, is unknown: run session resolve for it first", e.unknown)
	}
	call, err := wire.DecodeCall(e.call.Call)
	if err != nil {
		return err
	}
	if call.SessionID != e.session { // as of what a fork has from before
		return fmt.Errorf("it is a call of session %s, and only that session can revert it", call.SessionID)
	}
	call.ID, call.IssuedAt = wire.RevertCallID(e.CallID, e.attempts), time.Now().UTC()
	ended := func(event loop.Event) bool { return event.Type == loop.EventRevertEnded && event.CallID == call.ID }
	at := slices.IndexFunc(r.history.Events, ended)
	if at < 0 {
		_, err := r.completes(ctx, call, loop.Event{
			Type: loop.EventRevertStarted, Text: "was to undo a call of " + e.Tool, NoteFields: loop.NoteFields{Reverts: e.CallID},
			CallFields: loop.CallFields{Name: e.Revert, Arguments: e.call.Arguments},
		})
		if err == nil {
			r.history, err = r.journals.Load(ctx, r.id)
		}
		if err != nil {
			return err
		}
		if at = slices.IndexFunc(r.history.Events, ended); at < 0 {
			return fmt.Errorf("the journal has no end of call %s", call.ID)
		}
	}
	end := &r.history.Events[at]
	e.attempted(end, "")
	if end.Error != nil {
		return end.Error
	}
	return nil
}

// Resolve notes what a person found out about a call of unknown outcome, which the model reads. The
// error wraps [ErrBusy] as that of [Revert].
func Resolve(ctx context.Context, f *fleet.Fleet, id protocol.SessionID, pool protocol.Pool, call protocol.CallID, happened bool, by string) error {
	_, err := idle(ctx, f, f.Journal, id, pool, judge.Change)
	if err == nil {
		err = resolve(ctx, f.Journal, id, call, happened, by)
	}
	if err != nil {
		return fmt.Errorf("resolve call %s of session %s: %w", call, id, err)
	}
	return nil
}

func resolve(ctx context.Context, journal loop.Journal, id protocol.SessionID, call protocol.CallID, happened bool, by string) error {
	history, err := journal.Load(ctx, id)
	if err != nil {
		return err
	}
	info := describe(history.Events)
	at := slices.IndexFunc(info.Unknown, func(u report.Unknown) bool { return u.CallID == call })
	if at < 0 {
		return codes.As(codes.ErrNotFound, fmt.Errorf("the session has no call of this id whose outcome is unknown (session show %s lists them)", id))
	}
	status, what := resolvedHappened, "did happen"
	if !happened {
		status, what = resolvedDidNot, "did not happen"
	}
	return appendEvent(ctx, journal, history, id, loop.Event{
		Type: loop.EventCallResolved, CallFields: loop.CallFields{CallID: call, Name: info.Unknown[at].Tool}, Status: status,
		NoteFields: loop.NoteFields{By: by},
		Text:       fmt.Sprintf("[A person looked at the call of %s %s whose outcome was unknown: it %s.]", info.Unknown[at].Tool, info.Unknown[at].Arguments, what),
	})
}

// appendEvent adds an event of the last turn to the journal of a session, which ends as it was
// read: else the error is [loop.ErrJournalConflict].
func appendEvent(ctx context.Context, journal loop.Journal, history loop.History, id protocol.SessionID, e loop.Event) error {
	if len(history.Events) == 0 {
		return ErrNone
	}
	if IsOpen(describe(history.Events).State) { // the process of the turn extends the journal
		return fmt.Errorf("%w: a turn has begun meanwhile; repeat the command when that has ended", ErrBusy)
	}
	e.SessionID, e.Time, e.Turn = id, time.Now().UTC(), history.Events[len(history.Events)-1].Turn
	_, err := journal.Append(ctx, id, history.Last, e)
	return err
}

// idle returns an error that wraps [ErrBusy] for a session that does something. A change of it that
// was interrupted is completed first.
func idle(ctx context.Context, f *fleet.Fleet, journal loop.Journal, id protocol.SessionID, pool protocol.Pool, act judge.Act) (*remover, error) {
	if err := May(ctx, f, act, id); err != nil {
		return nil, err
	}
	r, err := newRemover(ctx, f, id, Options{Pool: pool})
	if err != nil {
		return nil, err
	}
	r.journals = journal
	if r.completed, err = loop.CompleteChanges(ctx, journal, f.Dispatcher, id); err != nil && !errors.Is(err, loop.ErrJournalInvalid) {
		return nil, err
	}
	return r, r.refuseBusy(ctx, "continue it (--session), or end it (session cancel)")
}
