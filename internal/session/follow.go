package session

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolfleet/toolfleet/internal/calls"
	"github.com/toolfleet/toolfleet/internal/fleet"
	"github.com/toolfleet/toolfleet/internal/judge"
	"github.com/toolfleet/toolfleet/internal/lane/operator"
	"github.com/toolfleet/toolfleet/internal/session/serve"
	"github.com/toolfleet/toolfleet/internal/system/pause"
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
// event once, live or from the journal. asked gets questions that a person may answer, and the live
// events that may end such questions. Ending ctx stops nothing but Follow.
func Follow(ctx context.Context, f *fleet.Fleet, id protocol.SessionID, show, asked func(loop.Event)) (loop.TurnResult, error) {
	if err := May(ctx, f, judge.See, id); err != nil {
		return loop.TurnResult{}, err
	}
	a := &follower{fleet: f, id: id, show: show, asked: asked, seen: map[string]bool{}, known: !judge.Bounded(ctx)}
	return a.follow(ctx)
}

// lookAgain is how often the journal is read for events that did not come live.
const lookAgain = time.Second

// lookTimeout bounds the look at lanes; it may lack the rights.
const lookTimeout = 2 * time.Second

// follower shows the last turn of a session: each event once, live or from the journal, whichever
// comes first.
type follower struct {
	fleet *fleet.Fleet
	id    protocol.SessionID
	show  func(loop.Event)
	asked func(loop.Event)

	mu     sync.Mutex // live events come from another goroutine
	known  bool       // the principal may see the session, which exists
	turn   int        // 0 until it is known
	looked bool       // which calls run already
	seen   map[string]bool
	result *loop.TurnResult // nil until the turn has ended
}

// follow shows the turn until it has ended.
func (a *follower) follow(ctx context.Context) (loop.TurnResult, error) {
	watch, err := calls.NewResults(a.fleet.NC, a.fleet.Name, nil).Watch(ctx, a.id, func(*protocol.Result) {}, func(f *wire.Frame) {
		var e loop.Event
		if f.Kind == wire.FrameEvent && json.Unmarshal(f.Data, &e) == nil {
			a.live(e)
		}
	})
	if err != nil {
		return loop.TurnResult{}, err
	}
	defer watch.Stop()
	for {
		waits, err := a.waits(ctx) // before the journal, which then has its turn or its end
		if err != nil {
			return loop.TurnResult{}, err
		}
		history, err := Load(ctx, a.fleet, a.id)
		if err != nil && (!waits || !errors.Is(err, ErrNone)) {
			return loop.TurnResult{}, err
		}
		if !a.known && len(history.Events) > 0 { // it may have been made meanwhile
			if err := May(ctx, a.fleet, judge.See, a.id); err != nil {
				return loop.TurnResult{}, err
			}
		}
		if result := a.journaled(history.Events, waits); result != nil {
			return *result, nil
		}
		a.running(ctx, history.Events)
		if !pause.For(ctx, lookAgain) {
			return loop.TurnResult{}, ctx.Err()
		}
	}
}

// waits reports whether a call asks for a turn that has not ended.
func (a *follower) waits(ctx context.Context) (bool, error) {
	o, err := operator.New(ctx, a.fleet.NC, a.fleet.Name)
	if err != nil {
		return false, err
	}
	view, err := o.Show(ctx, protocol.SessionPool, serve.Key(a.id).Lane(), 1)
	if errors.Is(err, operator.ErrNoLane) {
		return false, nil
	}
	return err == nil && len(view.Calls) > 0, err
}

// journaled shows what is new of the turn, and returns how it has ended.
func (a *follower) journaled(events []loop.Event, waits bool) *loop.TurnResult {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.known = a.known || len(events) > 0
	begin := -1
	for i := range events {
		if events[i].Type == loop.EventTurnStarted && (a.turn == 0 || events[i].Turn == a.turn) {
			begin = i
		}
	}
	if begin < 0 {
		return nil
	}
	turn := events[begin:]
	end := slices.IndexFunc(turn, func(e loop.Event) bool { return e.Type == loop.EventTurnEnded })
	if end >= 0 && waits && a.turn == 0 {
		return nil // another turn is about to begin
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
	return a.result
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
	a.mu.Lock()
	defer a.mu.Unlock()
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
		o, err := operator.New(ctx, a.fleet.Conn(protocol.Pool(pool)), a.fleet.Name)
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

// live shows a live event of the turn.
func (a *follower) live(e loop.Event) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.turn == 0 && e.Type == loop.EventTurnStarted && a.known {
		a.turn = e.Turn
	}
	if e.Turn != a.turn || a.turn == 0 {
		return
	}
	a.ask(e)
	a.showOnce(e)
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
