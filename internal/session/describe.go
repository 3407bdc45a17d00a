package session

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolfleet/toolfleet/internal/fleet"
	"github.com/toolfleet/toolfleet/internal/judge"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/internal/worker/sandboxes"
	"github.com/toolfleet/toolfleet/internal/workspace"
	"github.com/toolfleet/toolfleet/pkg/fleet/report"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// ErrNone says that there is no session of that id: it has no journal.
var ErrNone = codes.As(codes.ErrNotFound, errors.New("there is no such session"))

// errNoTurn is the error of an empty journal, which a session has that only "coordinator call"
// used.
var errNoTurn = fmt.Errorf("%w, or it has had no turn", ErrNone)

// IsOpen reports whether a state says that the journal has a turn that has not ended.
func IsOpen(state string) bool {
	return state == report.StateOpen || state == report.StateWaitsForApproval || state == report.StateWaitsForAnswer
}

// folded is what is known of a session by its events.
type folded struct {
	report.Session

	state   loop.SessionState
	worked  bool                 // it has a turn that no client of another interface made, or is a fork
	last    uint64               // sequence of the last message
	invalid bool                 // a message cannot be read
	copies  protocol.CallID      // the fork or import that is not completed
	removed bool                 // it is being removed
	owned   bool                 // the journal says whose it is
	starts  []uint64             // the messages in which the turns of History begin
	origins []protocol.SessionID // the sessions that it is a fork of
}

// describe describes a session by the events of its journal.
func describe(events []loop.Event) *report.Session {
	var f folded
	for i := range events {
		f.apply(&events[i])
	}
	return f.described()
}

// apply extends what is known by one event of the journal.
func (i *folded) apply(e *loop.Event) {
	if i.CreatedAt == nil {
		created := e.Time
		i.CreatedAt = &created
	}
	i.UpdatedAt = e.Time
	i.state.Apply(e)
	last := len(i.History) - 1
	if e.CallID == i.copies && (e.Type == loop.EventSessionForked || e.Type == loop.EventImported) {
		i.copies = ""
	}
	switch e.Type {
	case loop.EventCopyStarted: // what is before was interrupted
		*i = folded{
			Session: report.Session{SessionID: i.SessionID, CreatedAt: i.CreatedAt, UpdatedAt: e.Time, Parent: e.From, Tenant: e.Tenant, Owner: e.By},
			copies:  e.CallID, owned: e.Tenant != "",
		}
	case loop.EventRemoved:
		if i.removed = true; e.Status == loop.RemovalCompleted { // what is behind it is another session
			*i = folded{Session: report.Session{SessionID: i.SessionID}}
		}
	case loop.EventSessionStarted:
		i.Model, i.Workspace, i.Tenant, i.Owner, i.owned = e.Model, e.Workspace, e.Tenant, e.By, true
		if e.Parent != nil {
			i.Parent = e.Parent.SessionID
		}
	case loop.EventTurnStarted:
		i.worked = i.worked || e.Interface == ""
		if i.Turns, i.State = i.Turns+1, report.StateOpen; i.Turns == 1 {
			i.Prompt, i.By = e.Input, e.By
		}
		i.starts = append(i.starts, i.last)
		i.History = append(i.History, report.Turn{Turn: e.Turn, State: report.StateOpen, StartedAt: e.Time, Input: e.Input, TraceID: e.TraceID})
	case loop.EventModelReply:
		i.Steps, i.ToolCalls = i.Steps+1, i.ToolCalls+len(e.ToolCalls)
		if last >= 0 {
			i.History[last].Steps++
			i.History[last].ToolCalls += len(e.ToolCalls)
		}
	case loop.EventSessionForked:
		i.State, i.Parent, i.worked, i.origins = report.StateForked, e.From, true, append(i.origins, e.From)
	case loop.EventTurnEnded:
		i.State = e.Status
		if last >= 0 {
			i.History[last].State = i.State
		}
	default:
	}
}

// described is the session with what is open, unknown and used.
func (i *folded) described() *report.Session {
	info, s := i.Session, &i.state
	info.Usage, info.CostUSD = s.Bill.Usage, s.Bill.CostUSD
	if a := s.Approval; a != nil {
		info.Approval = &report.Question{
			SessionID: a.SessionID, CallID: a.CallID, Tool: a.Name, Arguments: a.Arguments, Reason: a.Text,
			Rule: a.Rule, Source: a.Source, Scope: a.Scope, AskedAt: a.Time,
		}
	}
	for _, q := range s.Questions {
		info.Questions = append(info.Questions, report.Question{
			SessionID: q.SessionID, CallID: q.CallID, Tool: q.Name, Reason: q.Question.Message, AskedAt: q.Time, Question: q.Question, Lane: q.Lane,
		})
	}
	for _, u := range s.Unknown {
		info.Unknown = append(info.Unknown, report.Unknown{CallID: u.CallID, Tool: u.Name, Arguments: u.Arguments})
	}
	switch {
	case i.removed:
		info.State = report.StateRemoving
	case i.invalid:
		info.State = report.StateInvalid
	case i.copies != "":
		info.State = report.StateUncompleted
	case info.Approval != nil:
		info.State = report.StateWaitsForApproval
	case len(info.Questions) > 0:
		info.State = report.StateWaitsForAnswer
	}
	return &info
}

// Owner returns the owner of a session, and whether the session has a journal. The owner is in the
// journal, or else in the workspace, or else in the call of the first turn, which waits. It is nil
// if nothing says who the owner is: the session does not exist, or an earlier version has stored
// single calls of it alone.
func Owner(ctx context.Context, f *fleet.Fleet, id protocol.SessionID) (owner *judge.Owner, journaled bool, err error) {
	history, err := f.Journal.Begin(ctx, id)
	journaled = err == nil && len(history.Events) > 0
	if err != nil && !errors.Is(err, loop.ErrRemoved) && !errors.Is(err, loop.ErrUncompleted) {
		return nil, false, err
	}
	if history.Owned() {
		own := judge.OwnerOf(history)
		return &own, journaled, nil
	}
	for _, part := range f.Parts() {
		switch own, _, err := workspace.OwnerOf(ctx, part.NC, f.Name, sandboxHash(id)); {
		case err == nil:
			return &own, journaled, nil
		case !errors.Is(err, workspace.ErrNone):
			return nil, journaled, err
		}
	}
	if journaled || f.CheckRights(ctx, natsio.LaneRights(f.Name, protocol.SessionPool)) != nil {
		return nil, journaled, nil //nolint:nilerr // without rights nothing more is known
	}
	turns, err := (&Reader{Lanes: true, main: f, fleet: f.Name}).turn(ctx, id)
	if turns == nil || err != nil {
		return nil, false, err
	}
	return &judge.Owner{Tenant: turns.Calls[0].Tenant, By: turns.Calls[0].Owner}, false, nil
}

// May judges an act on a session. One that does not exist has no owner: the act itself finds that
// out.
func May(ctx context.Context, f *fleet.Fleet, act judge.Act, id protocol.SessionID) error {
	_, err := may(ctx, f, act, id, false)
	return err
}

// MayFollow judges whether what calls of a session write and return may be seen. If nothing says
// who the owner is, it is the operator, in the default tenant.
func MayFollow(ctx context.Context, f *fleet.Fleet, id protocol.SessionID) error {
	_, err := may(ctx, f, judge.See, id, true)
	return err
}

// may also reports whether that holds for what is journaled from now on: the session has a journal,
// or the principal may do everything.
func may(ctx context.Context, f *fleet.Fleet, act judge.Act, id protocol.SessionID, unknown bool) (lasts bool, err error) {
	if !judge.Bounded(ctx) {
		return true, nil
	}
	owner, journaled, err := Owner(ctx, f, id)
	if err != nil || owner == nil && !journaled && !unknown {
		return false, err
	}
	return journaled, judge.Judge(ctx, act, judge.Object{Kind: judge.Session, ID: string(id), Owner: *cmp.Or(owner, &judge.Owner{})})
}

// MayCall judges a call from outside of turns before it is planned: its tenant, its session, the
// sandboxes that it uses, and the calls that it waits for.
func MayCall(ctx context.Context, f *fleet.Fleet, call *protocol.Call) error {
	if !judge.Bounded(ctx) {
		return nil
	}
	made := judge.Object{Kind: judge.Call, ID: string(call.ID), Owner: judge.Owner{Tenant: cmp.Or(call.Tenant, wire.TenantOf(ctx)), By: judge.Of(ctx).By()}}
	if err := judge.Judge(ctx, judge.Make, made); err != nil {
		return err
	}
	uses := []protocol.SessionID{call.SessionID}
	for _, use := range call.Resources {
		uses = append(uses, protocol.SessionID(sandboxes.ID(use.Key.Lane())))
	}
	slices.Sort(uses)
	for _, id := range slices.Compact(uses) {
		if id == "" {
			continue
		}
		if err := May(ctx, f, judge.Use, id); err != nil {
			return err
		}
	}
	for _, ref := range call.After {
		if err := MayFollow(ctx, f, ref.SessionID); err != nil {
			return err
		}
	}
	return nil
}

// seen reports whether a session may be seen.
func seen(ctx context.Context, info *report.Session) bool {
	return judge.Judge(ctx, judge.See, judge.Object{Kind: judge.Session, Owner: judge.Owner{Tenant: info.Tenant, By: info.Owner}}) == nil
}

// own says in the description of a session whose it is if its journal does not: the owner of its
// workspace. The operator may see all, so it is not looked up for the operator.
func (r *Reader) own(ctx context.Context, info *folded) error {
	if info.owned || !judge.Bounded(ctx) {
		return nil
	}
	only, err := r.onlyWorkspace(ctx, info.SessionID, sandboxHash(info.SessionID))
	if err == nil {
		info.Tenant, info.Owner = only.Tenant, only.Owner
	}
	return ignoreRemoved(err)
}

// Show describes a session. The error wraps [ErrNone] when there is none.
func (r *Reader) Show(ctx context.Context, id protocol.SessionID) (*report.Session, error) {
	turn, err := r.turn(ctx, id) // before the journal, which then has a turn that began meanwhile
	if err != nil {
		return nil, fmt.Errorf("session %s: %w", id, err)
	}
	var info *report.Session
	read, err := r.known(ctx, id)
	if err == nil {
		err = r.own(ctx, read)
	}
	if err == nil {
		info = read.described()
	}
	if errors.Is(err, ErrNone) {
		info, err = accepted(id, turn)
	}
	if errors.Is(err, ErrNone) && r.Workspaces {
		if only, found := r.onlyWorkspace(ctx, id, sandboxHash(id)); !errors.Is(found, ErrNone) {
			info, err = only, found
		}
	}
	if err == nil && !seen(ctx, info) {
		err = ErrNone
	}
	if err != nil {
		return nil, fmt.Errorf("session %s: %w", id, err)
	}
	asked := askedOf(id, turn)
	asked.applyLanes(info)
	if err := r.addWorkers(ctx, info); err != nil {
		return nil, fmt.Errorf("session %s: %w", id, err)
	}
	kept, err := r.bodies(ctx, map[protocol.SessionID]bool{id: true})
	if err != nil {
		return nil, fmt.Errorf("session %s: %w", id, err)
	}
	return info, r.sizes(ctx, info, kept)
}

// journal reads the journal, or only so much of it as says who owns the session.
func (r *Reader) journal(ctx context.Context, id protocol.SessionID, owner bool) (*folded, error) {
	return r.extended(ctx, &folded{Session: report.Session{SessionID: id}}, owner)
}

// extended is a description with what the journal has behind it: the same one if that is nothing,
// and else a copy of it.
func (r *Reader) extended(ctx context.Context, before *folded, owner bool) (*folded, error) {
	info := before
	if owner && info.owned {
		return info, nil
	}
	for msg, err := range natsio.Messages(ctx, r.main.NC, r.events, wire.EventSubject(r.fleet, info.SessionID), info.last+1) {
		if err != nil {
			return info, fmt.Errorf("read the journal: %w", err)
		}
		if info == before {
			info = before.copied()
		}
		if info.read(msg.Data, msg.Sequence, msg.Time); owner && info.owned {
			return info, nil
		}
	}
	if info.Messages == 0 {
		return info, ErrNone
	}
	return info, nil
}

// journals reads the journals of many sessions, which come in few answers. One that the server does
// not have up to its last message is read by itself. Sessions that were removed meanwhile are left
// out.
func (r *Reader) journals(ctx context.Context, of []change) (map[protocol.SessionID]*folded, error) {
	var subjects []string
	all := make(map[protocol.SessionID]*folded, len(of))
	found := make(map[protocol.SessionID]*folded, len(of))
	for _, c := range of {
		if info, is := r.Known.Get(c.id); is && info.last == c.last {
			found[c.id] = info.shown() // callers add to it
		} else if c.accepted == nil && c.only == nil {
			subjects = append(subjects, wire.EventSubject(r.fleet, c.id))
			all[c.id] = &folded{Session: report.Session{SessionID: c.id}}
		}
	}
	err := natsio.EachFrom(ctx, r.events, subjects, 0, false, func(msg jetstream.Msg) error {
		about, err := msg.Metadata()
		if info := all[r.owner(msg.Subject())]; err == nil && about.Sequence.Stream > info.last {
			info.read(msg.Data(), about.Sequence.Stream, about.Timestamp)
		}
		return err
	})
	for _, c := range of {
		info := all[c.id]
		switch {
		case err != nil || info == nil:
		case info.last >= c.last && info.Messages > 0:
			r.Known.put(c.id, info)
			found[c.id] = info.shown()
		case info.last >= c.last: // removed
		default:
			var alone *folded
			if alone, err = r.journal(ctx, c.id, false); err == nil {
				found[c.id] = alone
			}
			if err = ignoreRemoved(err); err != nil {
				err = fmt.Errorf("session %s: %w", c.id, err)
			}
		}
	}
	return found, err
}

// read extends what is known by one message of the journal.
func (i *folded) read(body []byte, seq uint64, at time.Time) {
	var events []loop.Event
	messages, size := i.Messages, i.JournalBytes
	i.last = seq
	if json.Unmarshal(body, &events) != nil {
		i.invalid, events, i.UpdatedAt = true, nil, at
	}
	for n := range events {
		i.apply(light(&events[n]))
		i.last = seq
	}
	if i.CreatedAt == nil && !i.invalid { // the record of a session that was removed
		return
	}
	i.JournalBytes, i.Messages = size+int64(len(body)), messages+1
}

// sizes adds the size of what is stored of a session outside of its journal.
func (r *Reader) sizes(ctx context.Context, info *report.Session, all map[protocol.SessionID]body) error {
	for _, results := range r.results {
		n, err := messagesOf(ctx, results, wire.ResultSubject(r.fleet, info.SessionID, "*"))
		if err != nil {
			return fmt.Errorf("session %s: %w", info.SessionID, err)
		}
		info.Results += n
	}
	kept := all[info.SessionID]
	info.Bodies, info.BodyBytes = kept.objects, kept.bytes
	return nil
}

// messagesOf counts the messages of a stream on a subject, which may have wildcards.
func messagesOf(ctx context.Context, stream jetstream.Stream, subject wire.Subject) (messages uint64, err error) {
	info, err := stream.Info(ctx, jetstream.WithSubjectFilter(subject))
	if err != nil {
		return 0, fmt.Errorf("look for %s: %w", subject, err)
	}
	for _, n := range info.State.Subjects {
		messages += n
	}
	return messages, nil
}
