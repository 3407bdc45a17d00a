package loop

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Refused is a turn that was accepted and never began: no coordinator could run it as it was asked
// for, or its call ended while it waited.
type Refused struct {
	Input   Input  // ID is required
	Model   string // that the turn asked for
	Outcome Outcome
	Error   *protocol.Error
}

// refusedInput bounds the input of a refused turn that the journal does not take whole.
const refusedInput = 4096

// Record journals the turn as begun and ended, and reports whether it did: it does nothing when the
// session has a turn of that input, or an open one. The caller holds the session.
func (r Refused) Record(ctx context.Context, journal Journal, session protocol.SessionID) (bool, error) {
	history, err := journal.Load(ctx, session)
	if err != nil {
		return false, fmt.Errorf("load session %s: %w", session, err)
	}
	s, err := fold(history.Events)
	if err != nil {
		return false, fmt.Errorf("load session %s: %w", session, err)
	}
	if s.open() != nil || slices.ContainsFunc(s.turns, func(t turn) bool { return t.input.ID == r.Input.ID }) {
		return false, nil
	}
	_, err = journal.Append(ctx, session, history.Last, r.events(session, s, r.Input.Text)...)
	if text := []rune(r.Input.Text); errors.Is(err, ErrEventTooLarge) && len(text) > refusedInput {
		_, err = journal.Append(ctx, session, history.Last, r.events(session, s, string(text[:refusedInput])+"...")...)
	}
	return err == nil, err
}

func (r Refused) events(session protocol.SessionID, s *session, input string) []Event {
	number := len(s.turns) + 1
	var events []Event
	if number == 1 {
		events = append(events, Event{Type: EventSessionStarted, SessionFields: SessionFields{Model: r.Model}})
	}
	events = append(events,
		Event{
			Type: EventTurnStarted, Turn: number,
			TurnFields: TurnFields{Input: validText(input)}, CallFields: CallFields{CallID: r.Input.ID},
		},
		Event{Type: EventTurnEnded, Turn: number, Status: string(r.Outcome), Usage: &protocol.Usage{}, ResultFields: ResultFields{Error: r.Error}})
	for i := range events {
		events[i].SessionID, events[i].Time = session, time.Now().UTC()
	}
	return events
}
