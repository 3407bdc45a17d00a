package loop

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/toolfleet/toolfleet/internal/modeltext/prose"
)

// Additions pass what a person says while a turn runs to that turn ([Options].Additions). The model
// reads it at its next step, and answers once more if it has just answered. The zero value is ready
// to use, by one run at a time.
type Additions struct {
	mu  sync.Mutex
	rec *recorder // nil while no turn runs
}

// Add journals a text and passes it to the turn that runs. It reports false, and has done nothing,
// if no turn runs that takes more. After an error it is unknown whether the text was journaled,
// unless the error wraps [ErrEventTooLarge]: then it was not.
func (a *Additions) Add(ctx context.Context, text string) (bool, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.rec == nil {
		return false, nil
	}
	return a.rec.add(ctx, text)
}

// during has additions come to a run until the function that it returns is called.
func (a *Additions) during(rec *recorder) (end func()) {
	set := func(rec *recorder) {
		if a != nil {
			a.mu.Lock()
			defer a.mu.Unlock()
			a.rec = rec
		}
	}
	set(rec)
	return func() { set(nil) }
}

// addition is what a person said while the turn ran.
type addition struct {
	step int // behind which the model reads it; 0 is before its first reply
	text string
}

// additions are those that the journal has and the turn has not folded yet: it reads the session
// without a lock while its model replies. An addition names its position, so it does not matter
// that it is folded later than in another run.
type additions struct {
	added  []Event
	asked  int  // the last step for which the model was asked, without what comes from then on
	sealed bool // the turn takes no more
}

// add journals an addition to the open turn.
func (r *recorder) add(ctx context.Context, text string) (bool, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	turn := r.session.open()
	if turn == nil || r.sealed || r.lost != nil {
		return false, r.lost
	}
	events, err := r.store(ctx, []Event{{
		Type: EventInputAdded, Turn: turn.number, Step: max(len(turn.steps), r.asked), StartFields: StartFields{Input: prose.Valid(text)},
		NoteFields: NoteFields{By: r.author},
	}})
	if err != nil {
		return false, err
	}
	r.added = append(r.added, events...)
	r.observe(events[0])
	return true, nil
}

// collect folds the additions so far. With asks the model is asked next: what comes from then on is
// behind the reply.
func (r *recorder) collect(asks bool) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range r.added {
		if err := r.session.apply(&r.added[i]); err != nil {
			r.lost = err
			return err
		}
	}
	r.added = nil
	if asks {
		r.asked = len(r.session.open().steps) + 1
	}
	return nil
}

// seal reports whether the turn can end so, and then takes no more additions: an answer is no end
// while there is one that the model has not read.
func (r *recorder) seal(end *ending) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sealed = end.outcome != OutcomeAnswered || len(r.added) == 0
	return r.sealed
}

// addInput folds an addition.
func (s *session) addInput(e *Event) error {
	t := s.open()
	if t == nil || e.Turn != t.number || e.Step < len(t.steps) || e.Step > len(t.steps)+1 {
		return errors.New("step is not the last")
	}
	t.added = append(t.added, addition{e.Step, e.Input})
	if e.Step == len(t.steps) {
		s.sinceReply += len(e.Input)
	}
	return nil
}

// addedBehind is what a person said behind a step. Behind the last step of a turn that has ended,
// it is also what the model would have read behind the next one.
func (t *turn) addedBehind(step int) []string {
	var texts []string
	for _, a := range t.added {
		if a.step == step || t.result != nil && step == len(t.steps) && a.step > step {
			texts = append(texts, a.text)
		}
	}
	return texts
}

// appendAdded adds what a person said behind a step, each as a message of its own.
func (t *turn) appendAdded(messages []Message, step int) []Message {
	for _, text := range t.addedBehind(step) {
		messages = append(messages, Message{Role: RoleUser, Text: text})
	}
	return messages
}

// unread reports whether a person said something that no reply so far could answer.
func (t *turn) unread() bool {
	return slices.ContainsFunc(t.added, func(a addition) bool { return a.step >= len(t.steps) })
}

// recordedAdditions are the additions that a replay has behind the last step and the turn has not.
func (t *turnRun) recordedAdditions() []Event {
	r, turn := t.opts.Replay, t.session.open()
	if r == nil {
		return nil
	}
	recorded := r.added[position{turn.number, len(turn.steps)}]
	return slices.Clone(recorded[min(len(turn.addedBehind(len(turn.steps))), len(recorded)):])
}
