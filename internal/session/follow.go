package session

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolfleet/toolfleet/internal/fleet"
	"github.com/toolfleet/toolfleet/internal/judge"
	"github.com/toolfleet/toolfleet/internal/lane/operator"
	"github.com/toolfleet/toolfleet/internal/session/serve"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Load reads the journal of a session. The error wraps [ErrNone] when there is none.
func Load(ctx context.Context, f *fleet.Fleet, id protocol.SessionID) (loop.History, error) {
	if err := May(ctx, f, judge.See, id); err != nil {
		return loop.History{}, err
	}
	history, err := f.Journal.Load(ctx, id)
	if err == nil && len(history.Events) == 0 {
		err = fmt.Errorf("session %s: %w", id, errNoTurn)
	}
	return history, err
}

// Follow shows the running or waiting turn of a session until it ends, or else the last turn: each
// event once, from the journal, and what is live only. asked gets questions that a person may
// answer, and the events that may end such questions. Ending ctx stops nothing but Follow.
func (t *Tails) Follow(ctx context.Context, id protocol.SessionID, show, asked func(loop.Event)) (loop.TurnResult, error) {
	if err := May(ctx, t.fleet, judge.See, id); err != nil {
		return loop.TurnResult{}, err
	}
	a := &follower{tails: t, id: id, show: show, asked: asked, seen: map[string]bool{}}
	for {
		waits, err := a.waits(ctx) // before the journal, which then has its turn or its end
		if err != nil {
			return loop.TurnResult{}, err
		}
		history, err := Load(ctx, a.tails.fleet, id)
		if err != nil && (!waits || !errors.Is(err, ErrNone)) {
			return loop.TurnResult{}, err
		}
		a.journaled(history.Events, waits)
		if a.result == nil {
			err = a.tail(ctx, history)
		}
		if err != nil {
			return loop.TurnResult{}, err
		}
		if a.result != nil {
			return *a.result, nil
		}
	}
}

// lookAgain is how often it is looked whether a turn that waits is still to begin.
const lookAgain = time.Second

// lookTimeout bounds the look at lanes; it may lack the rights.
const lookTimeout = 2 * time.Second

// follower shows the last turn of a session: each event once.
type follower struct {
	tails *Tails
	id    protocol.SessionID
	show  func(loop.Event)
	asked func(loop.Event)

	turn   int  // 0 until it is known
	looked bool // which calls run already
	seen   map[string]bool
	result *loop.TurnResult // nil until the turn has ended
}

// tail shows the turn as it continues. While it is not known, tail ends when it begins, or after
// some time.
func (a *follower) tail(ctx context.Context, history loop.History) error {
	reading, stop := ctx, context.CancelFunc(func() {})
	if a.turn == 0 {
		reading, stop = context.WithTimeout(ctx, lookAgain)
	}
	defer stop()
	for p, err := range a.tails.Tail(reading, a.id, Position{Sequence: history.Last}) {
		switch {
		case err != nil && a.turn == 0 && ctx.Err() == nil && reading.Err() != nil:
			return nil
		case err != nil:
			return err
		case p == (Passed{}): // it is followed from here
			a.running(ctx, history.Events)
		case p.Event == nil:
		case a.turn == 0 && p.Event.Type == loop.EventTurnStarted:
			return nil
		case a.turn != 0 && p.Event.Turn == a.turn:
			a.ask(*p.Event)
			a.showOnce(*p.Event)
		}
		if a.result != nil {
			return nil
		}
	}
	return nil
}

// waits reports whether a call asks for a turn that has not ended.
func (a *follower) waits(ctx context.Context) (bool, error) {
	o, err := operator.New(ctx, a.tails.fleet.NC, a.tails.fleet.Name)
	if err != nil {
		return false, err
	}
	view, err := o.Show(ctx, protocol.SessionPool, serve.Key(a.id).Lane(), 1)
	if errors.Is(err, operator.ErrNoLane) {
		return false, nil
	}
	return err == nil && len(view.Calls) > 0, err
}

// journaled shows what is new of the turn.
func (a *follower) journaled(events []loop.Event, waits bool) {
	begin := -1
	for i := range events {
		if events[i].Type == loop.EventTurnStarted && (a.turn == 0 || events[i].Turn == a.turn) {
			begin = i
		}
	}
	if begin < 0 {
		return
	}
	turn := events[begin:]
	end := slices.IndexFunc(turn, func(e loop.Event) bool { return e.Type == loop.EventTurnEnded })
	if end >= 0 && waits && a.turn == 0 {
		return // another turn is about to begin
	}
	if end >= 0 {
		turn = turn[:end+1]
	}
	a.turn = turn[0].Turn
	if begin == 1 {
		a.showOnce(events[0])
	}
	for _, e := range turn {
		a.showOnce(e)
	}
	state := loop.StateOf(turn)
	if state.Approval != nil {
		a.ask(*state.Approval)
	}
	for _, e := range state.Questions {
		a.ask(*e)
	}
}

// ask shows the question of an event, once.
func (a *follower) ask(e loop.Event) {
	key := "asks " + string(e.CallID) + ofQuestion(e)
	if e.Type == loop.EventApprovalAsked || e.Type == loop.EventQuestionAsked {
		if a.seen[key] {
			return
		}
		a.seen[key] = true
	}
	a.asked(e)
}

// running shows which calls of the turn ran before this process listened, if it has the rights to
// look at lanes. It looks once.
func (a *follower) running(ctx context.Context, events []loop.Event) {
	if a.turn == 0 || a.looked {
		return
	}
	a.looked = true
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	for _, e := range events {
		pool, name, _ := strings.Cut(e.Lane, "/")
		if e.Type != loop.EventToolCall || e.Turn != a.turn || a.seen[eventKey(loop.EventToolResult, e)] || a.seen[eventKey(loop.EventToolRunning, e)] {
			continue
		}
		o, err := operator.New(ctx, a.tails.fleet.Conn(protocol.Pool(pool)), a.tails.fleet.Name)
		if err != nil {
			continue
		}
		view, err := o.Show(ctx, protocol.Pool(pool), protocol.Lane(name), 1)
		if err != nil {
			continue // it has ended, or the rights are missing
		}
		for _, r := range view.Running {
			if r.CallID == e.CallID {
				e.Type, e.WorkerID, e.Attempt = loop.EventToolRunning, view.Holder, r.Attempt
				e.Time = time.Now().Add(-time.Duration(r.RunningMS) * time.Millisecond)
				a.showOnce(e)
			}
		}
	}
}

// ofQuestion identifies one of a call's questions; "" for events without one.
func ofQuestion(e loop.Event) string {
	if e.Question == nil {
		return ""
	}
	return fmt.Sprintf(" %s %d", e.Question.ID, e.Time.UnixNano())
}

// eventKey identifies the event of type t, within its turn, about the same thing as e.
func eventKey(t loop.EventType, e loop.Event) string {
	return fmt.Sprintf("%s %d.%d.%d %s", t, e.Turn, e.Step, e.Index, e.Job)
}

// showOnce shows an event, unless it, or the reply that it is a piece of, has been shown.
func (a *follower) showOnce(e loop.Event) {
	key := func(t loop.EventType) string { return eventKey(t, e) }
	switch {
	case isPieceOfReply(e.Type):
		if !a.seen[key(loop.EventModelReply)] {
			a.show(e)
		}
		return
	case slices.Contains(liveOnly, e.Type):
		if !a.seen[key(loop.EventToolResult)] {
			a.seen[key(e.Type)] = true
			a.show(e)
		}
		return
	}
	once := key(e.Type) + ofQuestion(e)
	if a.seen[once] {
		return
	}
	a.seen[once] = true
	a.show(e)
	if e.Type == loop.EventTurnEnded {
		a.result = &loop.TurnResult{Turn: e.Turn, Outcome: loop.Outcome(e.Status), Text: e.Text, Steps: e.Step, Error: e.Error, TraceID: e.TraceID}
		if e.Usage != nil {
			a.result.Usage = *e.Usage
		}
	}
}

// Output passes frames of output of a session's running calls to show, until stop. Whether they may
// be seen is judged again each second: a session may be made, or removed and made again, meanwhile.
func Output(ctx context.Context, f *fleet.Fleet, id protocol.SessionID, show func(*wire.Frame)) (stop func(), err error) {
	if err := May(ctx, f, judge.See, id); err != nil {
		return nil, err
	}
	var mu sync.Mutex
	var judged time.Time
	may := !judge.Bounded(ctx)
	seen := func() bool {
		if !judge.Bounded(ctx) {
			return true
		}
		mu.Lock()
		defer mu.Unlock()
		if time.Since(judged) >= lookAgain {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lookTimeout)
			defer cancel()
			may, judged = MayFollow(ctx, f, id) == nil, time.Now()
		}
		return may
	}
	var all []*nats.Subscription
	stop = func() {
		for _, frames := range all {
			_ = frames.Unsubscribe() // fails only when the connection is closed
		}
	}
	for _, part := range f.Parts() {
		frames, err := part.NC.Subscribe(wire.OutputSubject(f.Name, id, "*"), func(message *nats.Msg) {
			frame, err := wire.Decode[wire.Frame](message.Data)
			if err == nil && message.Subject == wire.OutputSubject(f.Name, id, frame.CallID) && (frame.Kind == wire.FrameStdout || frame.Kind == wire.FrameStderr) && seen() {
				show(frame)
			} // others are lost; the result has it all
		})
		if err != nil {
			stop()
			return nil, fmt.Errorf("listen to output of session %s: %w", id, err)
		}
		all = append(all, frames)
	}
	return stop, nil
}
