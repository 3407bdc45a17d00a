package serve

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/toolfleet/toolfleet/internal/modeltext/prose"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// refused is a turn that was accepted and never began: no coordinator could run it as it was asked
// for, or its call ended while it waited.
type refused struct {
	id        protocol.CallID // of the input
	madeAfter uint64          // see [loop.Input]
	madeAt    time.Time
	tenant    protocol.Tenant
	input     string
	model     string // that the turn asked for
	outcome   loop.Outcome
	err       *protocol.Error
}

// maxRefusedInput bounds the input of a refused turn that the journal does not take whole.
const maxRefusedInput = 4096

// record journals the turn as begun and ended, and reports whether it did: it does nothing when the
// session has a turn of that input, or an open one, or was removed since. The caller holds the
// session.
func (r refused) record(ctx context.Context, journal loop.Journal, session protocol.SessionID) (bool, error) {
	history, err := journal.Load(ctx, session)
	if err != nil {
		return false, fmt.Errorf("load session %s: %w", session, err)
	}
	turns, open, err := history.Turns()
	if err != nil {
		return false, fmt.Errorf("load session %s: %w", session, err)
	}
	if open || history.Removed.Outlived(r.madeAfter, r.madeAt) || slices.ContainsFunc(history.Events, func(e loop.Event) bool { return e.Type == loop.EventTurnStarted && e.CallID == r.id }) {
		return false, nil
	}
	_, err = journal.Append(ctx, session, history.Last, r.events(session, turns+1)...)
	if errors.Is(err, loop.ErrEventTooLarge) {
		r.input = prose.Short(r.input, maxRefusedInput)
		_, err = journal.Append(ctx, session, history.Last, r.events(session, turns+1)...)
	}
	return err == nil, err
}

func (r refused) events(session protocol.SessionID, turn int) []loop.Event {
	at := loop.Event{SessionID: session, Time: time.Now().UTC()}
	var events []loop.Event
	if turn == 1 {
		started := at
		started.Type, started.Model = loop.EventSessionStarted, r.model
		started.Tenant = r.tenant
		events = append(events, started)
	}
	at.Turn = turn
	started, ended := at, at
	started.Type, started.Input, started.CallID = loop.EventTurnStarted, prose.Valid(r.input), r.id
	ended.Type, ended.Status, ended.Usage, ended.Error = loop.EventTurnEnded, string(r.outcome), &protocol.Usage{}, r.err
	return append(events, started, ended)
}
