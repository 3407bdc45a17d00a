package main

import (
	"context"
	"sync"
	"time"

	"github.com/toolfleet/toolfleet/internal/pause"
	"github.com/toolfleet/toolfleet/pkg/loop"
)

// liveTurn shows a turn that runs elsewhere by its live events, some of which may be lost: with a
// connection, or with a coordinator that was lost after it had journaled what they tell.
type liveTurn struct {
	show func(loop.Event)

	mu    sync.Mutex // events come from another goroutine
	last  loop.Event // the last one of the turn
	reply string     // the text of the last reply, and of what it goes on with
	cut   bool       // that reply was cut, and asked for nothing
	ended bool

	traceID string
}

// observe shows an event.
func (l *liveTurn) observe(e loop.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.show(e)
	l.last = e
	switch e.Type {
	case loop.EventTurnStarted: // one that was open may have come before
		l.reply, l.cut, l.ended, l.traceID = "", false, false, e.TraceID
	case loop.EventModelReply:
		if !l.cut {
			l.reply = ""
		}
		l.reply += e.Text
		l.cut = e.Finish == loop.FinishLength && len(e.ToolCalls) == 0
	case loop.EventTurnEnded:
		l.ended = true
	default:
	}
}

const (
	// lastEvents is how long the live events of a turn are waited for behind its result.
	lastEvents = time.Second
	// lastLook is the time between two looks whether they have come.
	lastLook = 5 * time.Millisecond
)

// complete waits for the last events, which may come a moment after the result, and shows an answer
// of which none came. It returns the turn's trace.
func (l *liveTurn) complete(ctx context.Context, r loop.TurnResult) (traceID string) {
	ctx, cancel := context.WithTimeout(ctx, lastEvents)
	defer cancel()
	for !l.over() {
		if !pause.For(ctx, lastLook) {
			break
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if r.Outcome == loop.OutcomeAnswered && l.reply != r.Text {
		l.show(loop.Event{Type: loop.EventModelReply, SessionID: l.last.SessionID, Turn: l.last.Turn, Step: r.Steps, Text: r.Text})
	}
	return l.traceID
}

func (l *liveTurn) over() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ended
}
