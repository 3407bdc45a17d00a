package calls

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/system/pause"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Results passes on results and live frames of sessions as they come. Some may be missing, because
// NATS may lose messages: the results stream is authoritative, and [lane.Publisher.Result] reads
// it. The subscriptions of all sessions share two goroutines.
type Results struct {
	nc    *nats.Conn
	fleet protocol.Fleet
	fault func(error)

	loads chan struct{} // large values that are being loaded

	mu       sync.Mutex
	sessions map[protocol.SessionID]*sessionWatch
	inbound  *inbound // nil while there are no sessions
}

// inbound is what the subscriptions have received and is not passed on yet. Results and frames are
// apart, so that much output does not delay a result.
type inbound struct {
	results, frames chan *nats.Msg
	stop            chan struct{} // closed when the last session is forgotten
}

const (
	// inboundSize is how many results, or frames, may wait to be passed on; more are lost.
	inboundSize = 1 << 16
	// maxBefore is how many waiting frames are passed on before a result.
	maxBefore = 64
	// maxLoads bounds the large values that are loaded at the same time.
	maxLoads = 8
)

// sessionWatch is the subscriptions of a session with a waiting caller, or one that
// waited a moment ago.
type sessionWatch struct {
	subscriptions []*nats.Subscription
	watches       map[protocol.CallID][]*Watch // by the calls that they are for; "" is all calls
	idle          *time.Timer                  // ends them when no caller waits any more
	known         atomic.Bool                  // the server has confirmed the subscriptions
}

// keepIdle is how long the subscriptions of a session outlive their last watch: a
// session dispatches one step after the other.
const keepIdle = 10 * time.Second

const (
	// subscribeTimeout is how long the server may take to confirm the subscriptions of a session.
	subscribeTimeout = 5 * time.Second
	// flushAgain is the pause before it is asked again, after the connection was lost meanwhile.
	flushAgain = 10 * time.Millisecond
)

// NewResults watches a fleet. Malformed messages go to fault, which may be nil.
func NewResults(nc *nats.Conn, fleet protocol.Fleet, fault func(error)) *Results {
	if fault == nil {
		fault = func(error) {}
	}
	return &Results{nc: nc, fleet: fleet, fault: fault, sessions: map[protocol.SessionID]*sessionWatch{}, loads: make(chan struct{}, maxLoads)}
}

// Watch is one listener of a session. Its functions are called from NATS's
// goroutines, must not block, and may be called once more while Stop runs.
type Watch struct {
	results *Results
	session protocol.SessionID
	state   *sessionWatch
	call    protocol.CallID // "" is all calls
	result  func(*protocol.Result)
	frame   func(*wire.Frame)
}

// Watch starts to listen to all calls of a session: every result stored and every frame sent after
// Watch returned is passed on, unless NATS loses it. frame may be nil.
func (r *Results) Watch(ctx context.Context, session protocol.SessionID, result func(*protocol.Result), frame func(*wire.Frame)) (*Watch, error) {
	w, err := r.open(session, "", result, frame) //nolint:contextcheck // what it subscribes outlives the caller
	if err != nil {
		return nil, err
	}
	if err := w.confirm(ctx); err != nil {
		w.Stop()
		return nil, err
	}
	return w, nil
}

// open is [Results.Watch] for one call, or all calls if that is "". It does not wait for the
// server, see [Watch.confirm].
func (r *Results) open(session protocol.SessionID, call protocol.CallID, result func(*protocol.Result), frame func(*wire.Frame)) (*Watch, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	state, known := r.sessions[session]
	if !known {
		state = &sessionWatch{watches: map[protocol.CallID][]*Watch{}}
		if err := r.subscribe(state, session); err != nil {
			return nil, err
		}
		r.sessions[session] = state
		state.idle = time.AfterFunc(keepIdle, func() { r.forget(session, state) })
	}
	w := &Watch{results: r, session: session, state: state, call: call, result: result, frame: frame}
	state.watches[call] = append(state.watches[call], w)
	state.idle.Stop()
	return w, nil
}

// confirm returns when the server knows the subscriptions of the session. Each caller asks the
// server itself until it is known, so that no caller depends on the context of another one.
func (w *Watch) confirm(ctx context.Context) error {
	if w.state.known.Load() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, subscribeTimeout)
	defer cancel()
	err := w.results.nc.FlushWithContext(ctx)
	for errors.Is(err, nats.ErrConnectionClosed) && !w.results.nc.IsClosed() && pause.For(ctx, flushAgain) {
		err = w.results.nc.FlushWithContext(ctx) // a connection that was lost does not end the call
	}
	if err != nil {
		return fmt.Errorf("listen to session %s: %w", w.session, err)
	}
	w.state.known.Store(true)
	return nil
}

// Stop ends the watch.
func (w *Watch) Stop() {
	w.results.mu.Lock()
	defer w.results.mu.Unlock()
	state, known := w.results.sessions[w.session]
	if !known {
		return
	}
	left := slices.DeleteFunc(slices.Clone(state.watches[w.call]), func(other *Watch) bool { return other == w }) // each may be passing on
	if state.watches[w.call] = left; len(left) == 0 {
		delete(state.watches, w.call)
	}
	if len(state.watches) == 0 {
		state.idle.Reset(keepIdle)
	}
}

// forget ends the subscriptions of a session, unless a caller waits again.
func (r *Results) forget(session protocol.SessionID, state *sessionWatch) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(state.watches) > 0 || r.sessions[session] != state {
		return
	}
	delete(r.sessions, session)
	for _, subscription := range state.subscriptions {
		_ = subscription.Unsubscribe() // fails only when the connection is closed
	}
	r.endIfIdle()
}

// endIfIdle ends the goroutines if there is no session; the lock is held.
func (r *Results) endIfIdle() {
	if len(r.sessions) == 0 && r.inbound != nil {
		close(r.inbound.stop)
		r.inbound = nil
	}
}

// subscribe subscribes to a session; the lock is held.
func (r *Results) subscribe(state *sessionWatch, session protocol.SessionID) error {
	if r.inbound == nil {
		r.inbound = &inbound{results: make(chan *nats.Msg, inboundSize), frames: make(chan *nats.Msg, inboundSize), stop: make(chan struct{})}
		go r.deliver(r.inbound, r.nc.StatusChanged(nats.CLOSED))
	}
	for _, to := range []struct {
		subject wire.Subject
		channel chan *nats.Msg
	}{
		{wire.DoneSubject(r.fleet, session, "*"), r.inbound.results},
		{wire.OutputSubject(r.fleet, session, "*"), r.inbound.frames},
		{wire.LiveSubject(r.fleet, session, "*"), r.inbound.frames},
	} {
		subscription, err := r.nc.ChanSubscribe(to.subject, to.channel)
		if err != nil {
			for _, begun := range state.subscriptions {
				_ = begun.Unsubscribe() // fails only when the connection is closed
			}
			r.endIfIdle()
			return fmt.Errorf("listen to session %s: %w", session, err)
		}
		state.subscriptions = append(state.subscriptions, subscription)
	}
	return nil
}

// deliver passes on what is received until the last session is forgotten or the connection is
// closed.
func (r *Results) deliver(in *inbound, closed chan nats.Status) {
	defer r.nc.RemoveStatusListener(closed)
	for {
		select {
		case msg := <-in.frames:
			r.frame(msg)
		case msg := <-in.results:
			for range min(len(in.frames), maxBefore) { // what the call wrote before it ended
				r.frame(<-in.frames)
			}
			r.result(msg)
		case <-in.stop:
			return
		case <-closed:
			return
		}
	}
}

// result passes a result on. A large value is loaded concurrently.
func (r *Results) result(msg *nats.Msg) {
	result, err := wire.DecodeResult(msg.Data)
	if err == nil && msg.Subject != wire.DoneSubject(r.fleet, result.SessionID, result.CallID) {
		err = fmt.Errorf("%w: it is of call %s", wire.ErrInvalidResult, result.CallID)
	}
	if err != nil {
		r.fault(fmt.Errorf("%s: %w", msg.Subject, err))
		return
	}
	pass := func() {
		r.each(result.SessionID, result.CallID, func(w *Watch) { w.result(result) })
	}
	if !isLarge(result) {
		pass()
		return
	}
	watched := false
	r.each(result.SessionID, result.CallID, func(*Watch) { watched = true })
	if !watched {
		return
	}
	go func() { // as many as callers wait for; small results do not wait for them
		if err := r.load(context.Background(), result); err != nil { //nolint:forbidigo // a callback of NATS has no context
			r.fault(fmt.Errorf("%s: %w", msg.Subject, err))
			return
		}
		pass()
	}()
}

// isLarge reports whether a result has a value that is to be loaded.
func isLarge(r *protocol.Result) bool {
	if r == nil {
		return false
	}
	_, large := r.Value.(wire.Stored)
	return large
}

// load puts a large value back into its result; a few are loaded at the same time.
func (r *Results) load(ctx context.Context, result *protocol.Result) error {
	b, err := natsio.NewBlobs(r.nc, r.fleet)
	if err != nil {
		return err
	}
	select {
	case r.loads <- struct{}{}:
		defer func() { <-r.loads }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	ctx, cancel := context.WithTimeout(ctx, natsio.BlobTimeout)
	defer cancel()
	return b.Value(ctx, result)
}

var errMalformedFrame = errors.New("malformed frame")

// frame passes a frame on, if it is of the call that its subject names. Workers may publish output
// of any session, so events of a turn, which may ask a person something, come on their own subject.
func (r *Results) frame(msg *nats.Msg) {
	session := protocol.SessionID(strings.SplitN(msg.Subject, ".", 4)[2]) // FLEET.output.SESSION.CALL
	frame, err := wire.Decode[wire.Frame](msg.Data)
	switch {
	case err != nil:
	case msg.Subject == wire.LiveSubject(r.fleet, session, frame.CallID):
	case msg.Subject != wire.OutputSubject(r.fleet, session, frame.CallID):
		err = fmt.Errorf("%w: it is of call %s", errMalformedFrame, frame.CallID)
	case frame.Kind == wire.FrameEvent:
		err = fmt.Errorf("%w: events of turns do not come as output", errMalformedFrame)
	}
	if err != nil {
		r.fault(fmt.Errorf("%s: %w", msg.Subject, err))
		return
	}
	r.each(session, frame.CallID, func(w *Watch) {
		if w.frame != nil {
			w.frame(frame)
		}
	})
}

// each passes something on to those who watch a call.
func (r *Results) each(session protocol.SessionID, call protocol.CallID, tell func(*Watch)) {
	r.mu.Lock()
	var of, all []*Watch
	if state := r.sessions[session]; state != nil {
		of, all = state.watches[call], state.watches[""]
	}
	r.mu.Unlock()
	for _, w := range of {
		tell(w)
	}
	for _, w := range all {
		tell(w)
	}
}

// Result returns the stored result of a call of any sender; nil when there is none yet. It reads
// only Pool, SessionID and ID of the call.
func (d *Dispatcher) Result(ctx context.Context, call *protocol.Call) (*protocol.Result, error) {
	return d.of(call.Pool).publisher.Result(ctx, call.SessionID, call.ID)
}

// Cancel requests that a call of any sender ends as cancelled. It reads only Pool, Resources and ID
// of the call. Once it returns nil the request is stored; the result of the call has the outcome.
func (d *Dispatcher) Cancel(ctx context.Context, call *protocol.Call) error {
	return d.of(call.Pool).publisher.Cancel(ctx, call)
}
