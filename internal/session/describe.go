package session

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolfleet/toolfleet/internal/codes"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/wire"
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

	wrote    map[protocol.CallID]string // arguments of calls without result
	costless bool                       // the price of a reply is unknown
	worked   bool                       // it has a turn that no client of another interface made, or is a fork
	last     uint64                     // sequence of the last message
	invalid  bool                       // a message cannot be read
	copies   protocol.CallID            // the fork or import that is not completed
	removed  bool                       // it is being removed
}

// spend adds what a reply or a summary took. What sub-agents took is that of their own sessions.
func (i *folded) spend(e *loop.Event) {
	if e.Usage != nil {
		i.Usage = i.Usage.Add(*e.Usage)
	}
	switch {
	case e.CostUSD == nil:
		i.CostUSD, i.costless = nil, true
	case i.costless:
	case i.CostUSD == nil:
		i.CostUSD = new(*e.CostUSD)
	default:
		*i.CostUSD += *e.CostUSD
	}
}

// fold is what the events of a journal say.
func fold(events []loop.Event) (f folded) {
	for i := range events {
		f.apply(&events[i])
	}
	return f
}

// apply extends what is known by one event of the journal.
func (i *folded) apply(e *loop.Event) {
	if i.CreatedAt == nil {
		created := e.Time
		i.CreatedAt = &created
	}
	i.UpdatedAt = e.Time
	last := len(i.History) - 1
	if i.Approval != nil && e.Type != loop.EventJobEnded { // any other event comes after the answer
		i.Approval, i.State = nil, report.StateOpen
	}
	i.ask(e)
	i.wonder(e)
	if e.CallID == i.copies && (e.Type == loop.EventSessionForked || e.Type == loop.EventImported) {
		i.copies = ""
	}
	switch e.Type {
	case loop.EventCopyStarted: // what is before was interrupted
		*i = folded{Session: report.Session{SessionID: i.SessionID, CreatedAt: i.CreatedAt, UpdatedAt: e.Time, Parent: e.From}, copies: e.CallID}
	case loop.EventRemoved:
		i.removed = true
	case loop.EventApprovalAsked:
		i.State = report.StateWaitsForApproval
		i.Approval = &report.Question{SessionID: e.SessionID, CallID: e.CallID, Tool: e.Name, Arguments: e.Arguments, Reason: e.Text, AskedAt: e.Time}
	case loop.EventSessionStarted:
		i.Model, i.Workspace, i.Tenant = e.Model, e.Workspace, e.Tenant
		if e.Parent != nil {
			i.Parent = e.Parent.SessionID
		}
	case loop.EventTurnStarted:
		i.worked = i.worked || e.Interface == ""
		if i.Turns, i.State = i.Turns+1, report.StateOpen; i.Turns == 1 {
			i.Prompt, i.By = e.Input, e.By
		}
		i.History = append(i.History, report.Turn{Turn: e.Turn, State: report.StateOpen, StartedAt: e.Time, Input: e.Input, TraceID: e.TraceID})
	case loop.EventModelReply:
		i.Steps, i.ToolCalls = i.Steps+1, i.ToolCalls+len(e.ToolCalls)
		i.spend(e)
		if last >= 0 {
			i.History[last].Steps++
			i.History[last].ToolCalls += len(e.ToolCalls)
		}
	case loop.EventCompacted, loop.EventReplyFailed:
		i.spend(e)
	case loop.EventSessionForked: // what its origin used is the origin's
		i.Usage, i.CostUSD, i.costless = protocol.Usage{}, nil, false
		i.State, i.Parent, i.worked = report.StateForked, e.From, true
	case loop.EventTurnEnded:
		i.State = e.Status
		if last >= 0 {
			i.History[last].State = i.State
		}
	default:
	}
}

// wonder extends what is known of calls of unknown outcome by one event.
func (i *folded) wonder(e *loop.Event) {
	switch {
	case e.Type == loop.EventToolCall, e.Type == loop.EventRevertStarted:
		if i.wrote == nil {
			i.wrote = make(map[protocol.CallID]string)
		}
		i.wrote[e.CallID] = e.Arguments
	case e.Type == loop.EventCallResolved:
		i.Unknown = slices.DeleteFunc(i.Unknown, func(u report.Unknown) bool { return u.CallID == e.CallID })
	case e.Type == loop.EventToolResult && e.Job == "", e.Type == loop.EventJobEnded, e.Type == loop.EventRevertEnded:
		if protocol.Status(e.Status) == protocol.StatusOutcomeUnknown {
			i.Unknown = append(i.Unknown, report.Unknown{CallID: e.CallID, Tool: e.Name, Arguments: i.wrote[e.CallID]})
		}
		delete(i.wrote, e.CallID)
	}
}

// ask extends what the calls of the open turn ask by one event.
func (i *folded) ask(e *loop.Event) {
	before := len(i.Questions)
	i.Questions = slices.DeleteFunc(i.Questions, func(q report.Question) bool {
		switch e.Type {
		case loop.EventTurnEnded:
			return true
		case loop.EventToolResult, loop.EventQuestionAsked: // a call asks one after another
			return q.CallID == e.CallID
		case loop.EventAnswered:
			return q.CallID == e.CallID && e.Question != nil && q.Question.ID == e.Question.ID
		default:
			return false
		}
	})
	if e.Type == loop.EventQuestionAsked && e.Question != nil {
		i.Questions = append(i.Questions, report.Question{
			SessionID: e.SessionID, CallID: e.CallID, Tool: e.Name, Reason: e.Question.Message, AskedAt: e.Time, Question: e.Question, Lane: e.Lane,
		})
		i.State = report.StateWaitsForAnswer
	}
	if before > 0 && len(i.Questions) == 0 {
		i.Questions, i.State = nil, report.StateOpen
	}
}

// Show describes a session. The error wraps [ErrNone] when there is none.
func (r *Reader) Show(ctx context.Context, id protocol.SessionID) (*report.Session, error) {
	turn, err := r.turn(ctx, id) // before the journal, which then has a turn that began meanwhile
	if err != nil {
		return nil, fmt.Errorf("session %s: %w", id, err)
	}
	var info *report.Session
	read, err := r.journal(ctx, id)
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
	if err != nil {
		return nil, fmt.Errorf("session %s: %w", id, err)
	}
	asked := askedOf(id, turn)
	asked.see(info)
	if err := r.seeWorkers(ctx, info); err != nil {
		return nil, fmt.Errorf("session %s: %w", id, err)
	}
	kept, err := r.bodies(ctx, map[protocol.SessionID]bool{id: true})
	if err != nil {
		return nil, fmt.Errorf("session %s: %w", id, err)
	}
	return info, r.sizes(ctx, info, kept)
}

// journal reads the journal.
func (r *Reader) journal(ctx context.Context, id protocol.SessionID) (*folded, error) {
	info := &folded{Session: report.Session{SessionID: id}}
	for next := uint64(1); ; next = info.last + 1 {
		msg, err := r.events.GetMsg(ctx, next, jetstream.WithGetMsgSubject(wire.EventSubject(r.fleet, id)))
		switch {
		case errors.Is(err, jetstream.ErrMsgNotFound) && info.Messages == 0:
			return nil, ErrNone
		case errors.Is(err, jetstream.ErrMsgNotFound):
			return info, nil
		case err != nil:
			return nil, fmt.Errorf("read the journal: %w", err)
		}
		info.read(msg.Data, msg.Sequence, msg.Time)
	}
}

// journals reads the journals of many sessions, which come in few answers. One that the server does
// not have up to its last message is read by itself. Sessions that were removed meanwhile are left
// out.
func (r *Reader) journals(ctx context.Context, of []change) (map[protocol.SessionID]*folded, error) {
	var subjects []string
	all := make(map[protocol.SessionID]*folded, len(of))
	for _, c := range of {
		if c.accepted == nil && c.only == nil {
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
	found := make(map[protocol.SessionID]*folded, len(all))
	for _, c := range of {
		info := all[c.id]
		switch {
		case err != nil || info == nil:
		case info.last >= c.last && info.Messages > 0:
			found[c.id] = info
		default:
			var alone *folded
			if alone, err = r.journal(ctx, c.id); err == nil {
				found[c.id] = alone
			}
			if err = gone(err); err != nil {
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
	if json.Unmarshal(body, &events) != nil {
		i.invalid, events, i.UpdatedAt = true, nil, at
	}
	for n := range events {
		i.apply(&events[n])
	}
	i.JournalBytes, i.last = size+int64(len(body)), seq
	i.Messages = messages + 1
}

func (i *folded) described() *report.Session {
	switch {
	case i.removed:
		i.State = report.StateRemoving
	case i.invalid:
		i.State = report.StateInvalid
	case i.copies != "":
		i.State = report.StateUncompleted
	}
	return &i.Session
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
