package lane

import (
	"slices"
	"sync"

	"github.com/nats-io/nats.go"

	"github.com/toolfleet/toolfleet/internal/lane/store"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// ear is told each message of a mailbox once that is stored while it listens. Where the server
// tells all of them in order they are taken as they come; else they only say when to ask. One
// goroutine uses it; what it is told comes from another.
type ear struct {
	store *store.Store
	pool  protocol.Pool
	hash  protocol.LaneHash
	wake  chan struct{}

	subscription *nats.Subscription
	reconnects   uint64 // of the connection, when listening began
	listed       bool   // the requests to cancel that are older than the subscription were listed

	mu        sync.Mutex
	told      []*message // not taken yet, bounded by maxTold and windowBytes
	toldBytes int
	lost      bool              // some that were told had no room, or cannot be read
	cancels   []protocol.CallID // calls that somebody asks to cancel
}

// maxTold bounds the messages that wait to be taken; what is more is read from the stream.
const maxTold = 4 * window

func (e *ear) listens() bool { return e.subscription != nil }

// begin begins to listen, and reports whether it does: not without a connection.
func (e *ear) begin() bool {
	e.reconnects, e.listed = e.store.NC.Stats().Reconnects, false
	subscription, err := e.store.NC.Subscribe(e.store.Fleet.StoredFilter(e.pool, e.hash), e.tell)
	if err == nil {
		e.subscription = subscription
	}
	return err == nil
}

func (e *ear) close() {
	if e.listens() {
		_ = e.subscription.Unsubscribe() // fails only when the connection is closed
		e.subscription = nil
	}
}

func (e *ear) tell(msg *nats.Msg) {
	copied, err := store.FromCopy(msg)
	e.mu.Lock()
	switch {
	case err != nil, e.lost, len(e.told) >= maxTold, e.toldBytes > windowBytes:
		e.lost, e.told, e.toldBytes = true, nil, 0 // the stream has them
	default:
		e.told = append(e.told, copied)
		e.toldBytes += len(copied.Data)
	}
	if entry := e.store.Fleet.ParseMailboxSubject(msg.Subject); entry.Kind == protocol.EntryCancel {
		e.cancels = append(e.cancels, entry.CallID)
	}
	e.mu.Unlock()
	e.nudge()
}

// nudge says, from any goroutine, that there may be something to be read.
func (e *ear) nudge() {
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

func (e *ear) takeCancels() []protocol.CallID {
	e.mu.Lock()
	defer e.mu.Unlock()
	cancels := e.cancels
	e.cancels = nil
	return cancels
}

// take takes what was told from a sequence on, unless the stream has to be asked for it.
func (e *ear) take(from uint64) (news []*message, ask bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	news = slices.DeleteFunc(e.told, func(msg *message) bool { return msg.Sequence < from })
	if len(news) == 0 || e.store.Consistency().TellsAll() {
		e.told, e.toldBytes = nil, 0
		return news, false
	}
	e.told, e.toldBytes = news, 0
	for _, msg := range news {
		e.toldBytes += len(msg.Data)
	}
	return nil, true
}

// hears reports whether everything that is stored is told.
func (e *ear) hears() bool {
	if !e.listens() || e.store.NC.Stats().Reconnects != e.reconnects {
		return false
	}
	dropped, err := e.subscription.Dropped()
	return err == nil && dropped == 0
}

// hearsAll reports whether nothing that was told is lost. What does not hear is closed.
func (e *ear) hearsAll() bool {
	if !e.hears() {
		e.forget()
		return false
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return !e.lost
}

// knowsCancels reports whether no request to cancel can be stored of which nothing is known.
func (e *ear) knowsCancels() bool { return e.listed && e.hears() }

// forgetLost begins anew when something was lost: the stream is about to be asked, which has all
// that was stored until now.
func (e *ear) forgetLost() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.lost {
		e.lost, e.told, e.toldBytes = false, nil, 0
	}
}

func (e *ear) forget() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.told, e.toldBytes, e.lost = nil, 0, false
	e.close()
}
