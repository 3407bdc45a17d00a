package mcpserver

import (
	"context"
	"errors"
	"sync"

	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// callLog journals the calls of clients, each as a turn of its own. It is safe for concurrent use,
// also of one session by several processes.
type callLog struct {
	journal loop.Journal // nil journals nothing

	mu   sync.Mutex
	ends map[protocol.SessionID]*sessionEnd
}

// sessionEnd is the end of a session's journal, as far as it is known here.
type sessionEnd struct {
	mu    sync.Mutex
	known bool
	last  uint64
	turns int
}

// maxEnds is how many sessions' ends are kept; one that is not is read again.
const maxEnds = 10_000

// append journals a call that a client asked for in some words, and its outcome.
func (l *callLog) append(ctx context.Context, session protocol.SessionID, input, tool, arguments string, o *loop.Single) error {
	end := l.end(session)
	end.mu.Lock()
	defer end.mu.Unlock()
	for {
		if err := end.find(ctx, l.journal, session); err != nil {
			return err
		}
		last, err := l.journal.Append(ctx, session, end.last, o.Turn(session, end.turns+1, input, tool, arguments)...)
		if err == nil {
			end.last, end.turns = last, end.turns+1
			return nil
		}
		end.known = false // also when some of it may have been stored
		if !errors.Is(err, loop.ErrJournalConflict) {
			return err
		}
	}
}

func (l *callLog) end(session protocol.SessionID) *sessionEnd {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ends == nil || len(l.ends) >= maxEnds {
		l.ends = map[protocol.SessionID]*sessionEnd{}
	}
	if l.ends[session] == nil {
		l.ends[session] = &sessionEnd{}
	}
	return l.ends[session]
}

// errTurnOpen says that a model has the session.
var errTurnOpen = errors.New("a turn of the session is open: its calls are not journaled")

// find reads where the journal ends, unless that is known.
func (e *sessionEnd) find(ctx context.Context, journal loop.Journal, session protocol.SessionID) error {
	if e.known {
		return nil
	}
	history, err := journal.Load(ctx, session)
	if err != nil {
		return err
	}
	turns, open, err := history.Turns()
	if err != nil {
		return err
	}
	if open {
		return errTurnOpen
	}
	e.known, e.last, e.turns = true, history.Last, turns
	return nil
}
