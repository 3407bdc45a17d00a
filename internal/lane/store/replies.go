package store

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

// Replies matches the answers of the server with what was asked. All questions share one
// subscription, and need neither a token nor a context of their own: every call asks several. It is
// safe for concurrent use.
type Replies struct {
	nc   *nats.Conn
	gone chan struct{} // closed when no answer can come any more

	mu           sync.Mutex
	subscription *nats.Subscription
	closed       bool
	inbox        string // of answers, with a dot at its end
	next         uint64
	free         []uint64 // ids to use again: as many at most as were open at once
	open         map[uint64]question
	swept        time.Time
}

// question is what has no answer yet, or not its last one.
type question struct {
	answered func(*nats.Msg)
	last     func(*nats.Msg) bool // whether an answer is the last one; nil where there is only one
	asked    time.Time
}

// unanswered is when a question is given up: its answer was lost with a connection.
const unanswered = time.Minute

func newReplies(nc *nats.Conn) *Replies {
	return &Replies{nc: nc, gone: make(chan struct{}), open: map[uint64]question{}, swept: time.Now()}
}

// ask sends a message, and has its answers told from a goroutine that must not be blocked, and
// never when they are lost.
func (r *Replies) ask(msg *nats.Msg, q question) (id uint64, err error) {
	r.mu.Lock()
	if err := r.listen(); err != nil {
		r.mu.Unlock()
		return 0, err
	}
	id = r.take()
	q.asked = time.Now()
	r.sweep(q.asked)
	r.open[id] = q
	msg.Reply = r.inbox + strconv.FormatUint(id, 10)
	r.mu.Unlock()
	if err := r.nc.PublishMsg(msg); err != nil {
		r.forget(id)
		return 0, err
	}
	return id, nil
}

// take returns an id that no answer can come for any more. One that was used before is best: the
// server knows then where the answer goes, and need not look for it.
func (r *Replies) take() uint64 {
	if last := len(r.free) - 1; last >= 0 {
		id := r.free[last]
		r.free = r.free[:last]
		return id
	}
	r.next++
	return r.next
}

// errClosed says that nothing can be asked any more.
var errClosed = fmt.Errorf("replies: %w", nats.ErrConnectionClosed)

func (r *Replies) listen() error {
	if r.closed {
		return errClosed
	}
	if r.subscription != nil {
		return nil
	}
	inbox := r.nc.NewInbox() + "."
	subscription, err := r.nc.Subscribe(inbox+"*", r.answer)
	if err != nil {
		return fmt.Errorf("listen to answers: %w", err)
	}
	subscription.SetClosedHandler(func(string) { close(r.gone) })
	r.subscription, r.inbox = subscription, inbox
	return nil
}

func (r *Replies) sweep(now time.Time) {
	if now.Sub(r.swept) < unanswered {
		return
	}
	r.swept = now
	for id, q := range r.open {
		if now.Sub(q.asked) > unanswered {
			delete(r.open, id)
		}
	}
}

func (r *Replies) answer(msg *nats.Msg) {
	id, err := strconv.ParseUint(msg.Subject[strings.LastIndexByte(msg.Subject, '.')+1:], 10, 64)
	if err != nil {
		return
	}
	r.mu.Lock()
	q, known := r.open[id]
	if known && (q.last == nil || q.last(msg)) {
		delete(r.open, id)
		if isSingle(r.nc) { // of several servers two may answer, if both take themselves for the leader
			r.free = append(r.free, id)
		}
	}
	r.mu.Unlock()
	if known {
		q.answered(msg)
	}
}

// forget drops a question; its answer is not told any more, unless it is being told already.
func (r *Replies) forget(id uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.open, id)
}

// waiter waits for one answer. Each call asks several questions, so waiters are used again.
type waiter struct {
	answer chan *nats.Msg
	tell   func(*nats.Msg)
	limit  *time.Timer
}

var waiters = sync.Pool{New: func() any { //nolint:gochecknoglobals // for the whole process, as memory is
	w := &waiter{answer: make(chan *nats.Msg, 1), limit: time.NewTimer(time.Hour)}
	w.tell = func(answer *nats.Msg) { w.answer <- answer }
	return w
}}

// Request asks, and waits for the answer no longer than limit.
func (r *Replies) Request(ctx context.Context, limit time.Duration, msg *nats.Msg) (*nats.Msg, error) {
	if err := ctx.Err(); err != nil {
		return nil, unsent{err}
	}
	w := waiters.Get().(*waiter) //nolint:errcheck,forcetypeassert // nothing else is put in
	w.limit.Reset(limit)
	id, err := r.ask(msg, question{answered: w.tell})
	if err != nil {
		w.limit.Stop()
		return nil, unsentOf(err)
	}
	select {
	case answer := <-w.answer:
		w.limit.Stop()
		waiters.Put(w) // a question is answered once: nothing else comes
		if NobodyAnswers(answer) {
			return nil, nats.ErrNoResponders
		}
		return answer, nil
	case <-ctx.Done():
		err = ctx.Err()
	case <-w.limit.C:
		err = context.DeadlineExceeded
	case <-r.gone:
		err = errClosed
	}
	w.limit.Stop()
	r.forget(id) // an answer may be told all the same, so w is not used again
	return nil, err
}

// NobodyAnswers reports whether a message is the server's word that nobody listens.
func NobodyAnswers(answer *nats.Msg) bool {
	return len(answer.Data) == 0 && answer.Header.Get("Status") == "503"
}

// Close ends it for good: whoever asks afterwards gets an error that wraps
// [nats.ErrConnectionClosed], and no further answer is told.
func (r *Replies) Close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	clear(r.open)
	r.free = nil
	if r.subscription != nil {
		_ = r.subscription.Unsubscribe() // fails only when the connection is closed
		r.subscription = nil
	}
}
