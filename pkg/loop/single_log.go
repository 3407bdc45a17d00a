package loop

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"time"

	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
)

// SingleLog journals tool calls that belong to no turn of a model, each as a turn of its own: so
// the session of a client that brings its own model is looked at as any other. It is safe for
// concurrent use, also of one session by several processes.
type SingleLog struct {
	// Journal is required.
	Journal Journal

	mu   sync.Mutex
	ends map[protocol.SessionID]*singleEnd
}

// singleEnd is the end of a session's journal, as far as it is known here.
type singleEnd struct {
	mu    sync.Mutex
	known bool
	last  uint64
	turns int
}

// maxEnds is how many sessions' ends are kept; one that is not is read again.
const maxEnds = 10_000

// Append journals a call that a client asked for in some words, and what became of it. An error is
// one of the journal; the call has been made all the same.
func (l *SingleLog) Append(ctx context.Context, session protocol.SessionID, input, tool, arguments string, o *SingleOutcome) error {
	end := l.end(session)
	end.mu.Lock()
	defer end.mu.Unlock()
	for {
		if err := end.find(ctx, l.Journal, session); err != nil {
			return err
		}
		last, err := l.Journal.Append(ctx, session, end.last, singleTurn(session, end.turns+1, input, tool, arguments, o)...)
		if err == nil {
			end.last, end.turns = last, end.turns+1
			return nil
		}
		end.known = false // also when some of it may have been stored
		if !errors.Is(err, ErrJournalConflict) {
			return err
		}
	}
}

func (l *SingleLog) end(session protocol.SessionID) *singleEnd {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ends == nil || len(l.ends) >= maxEnds {
		l.ends = map[protocol.SessionID]*singleEnd{}
	}
	if l.ends[session] == nil {
		l.ends[session] = &singleEnd{}
	}
	return l.ends[session]
}

// errTurnOpen says that a model has the session.
var errTurnOpen = errors.New("a turn of the session is open: its calls are not journaled")

// find reads where the journal ends, unless that is known.
func (e *singleEnd) find(ctx context.Context, journal Journal, session protocol.SessionID) error {
	if e.known {
		return nil
	}
	history, err := journal.Load(ctx, session)
	if err != nil {
		return err
	}
	folded, err := fold(history.Events)
	if err != nil {
		return err
	}
	if folded.open() != nil {
		return errTurnOpen
	}
	e.known, e.last, e.turns = true, history.Last, len(folded.turns)
	return nil
}

// singleTurn are the events of a turn that is one call.
func singleTurn(session protocol.SessionID, turn int, input, tool, arguments string, o *SingleOutcome) []Event {
	r := o.Result
	if r == nil {
		r = &protocol.Result{}
	}
	id := cmp.Or(r.CallID, wire.RandomCallID())
	at := Event{SessionID: session, Time: time.Now().UTC(), Turn: turn}
	of := func(kind EventType, set func(*Event)) Event {
		e := at
		e.Type = kind
		set(&e)
		return e
	}
	call := func(e *Event) { e.Step, e.CallID, e.ToolCallID, e.Name = 1, id, string(id), tool }
	events := []Event{
		of(EventTurnStarted, func(e *Event) { e.Input = input }),
		of(EventModelReply, func(e *Event) {
			e.Step, e.ToolCalls = 1, []ToolCall{{ID: string(id), Name: tool, Arguments: arguments}}
		}),
		of(EventToolCall, func(e *Event) { call(e); e.Arguments = arguments }),
		of(EventToolResult, func(e *Event) {
			call(e)
			e.Status, e.Content, e.Error, e.Diff = string(o.Status), o.Text, o.Error, tools.Diff(r)
			if r.CallID != "" {
				e.WorkerID, e.Attempt, e.QueueMS, e.RunMS = r.WorkerID, r.Attempt, &r.QueueMS, &r.RunMS
			}
		}),
		of(EventTurnEnded, func(e *Event) { e.Step, e.Status = 1, string(OutcomeAnswered) }),
	}
	return events
}
