package loop

import (
	"context"
	"errors"
	"fmt"

	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Rewind takes the turns after a turn out of the conversation; after 0, all of them. The journal
// keeps them, and so do the sums of what the session has used. Files and other effects stay as they
// are. It is refused while a turn is open.
func (r *Runner) Rewind(ctx context.Context, session protocol.SessionID, turn int) error {
	rec, err := r.settled(ctx, session)
	switch {
	case err != nil:
		return err
	case rec.session.open() != nil:
		return errors.New("a turn of the session is open: continue it first")
	case turn < 0 || turn > len(rec.session.turns):
		return fmt.Errorf("turn %d: the session has turns 1 to %d", turn, len(rec.session.turns))
	case rec.session.visible() <= turn:
		return nil
	}
	return rec.record(ctx, Event{Type: EventRewound, Turn: len(rec.session.turns), NoteFields: NoteFields{KeptTurn: turn}})
}

// rewind folds the event. A summary that has something of what is taken out goes with it: what it
// stood for is shown again.
func (s *session) rewind(e *Event) error {
	if s.open() != nil || e.KeptTurn < 0 || e.KeptTurn > len(s.turns) {
		return fmt.Errorf("the conversation goes back to turn %d of %d, of which one is open: %t", e.KeptTurn, len(s.turns), s.open() != nil)
	}
	for i := range s.turns[e.KeptTurn:] {
		s.turns[e.KeptTurn+i].gone = true
	}
	if s.summary != nil && s.summary.turn >= e.KeptTurn {
		s.summary = nil
	}
	s.lastTokens, s.sinceReply = 0, 0
	return nil
}

// visible is the number of the last turn that the model reads; 0 for none.
func (s *session) visible() int {
	for i := len(s.turns); i > 0; i-- {
		if !s.turns[i-1].gone {
			return i
		}
	}
	return 0
}

// inView are the steps of the turn that the conversation has.
func (t *turn) inView() []step {
	if t.gone {
		return nil
	}
	return t.steps
}
