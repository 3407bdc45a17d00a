package lane

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"sync"

	"github.com/nats-io/nats.go"

	"github.com/toolfleet/toolfleet/internal/lane/store"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// alarms hears which lanes of a pool got a mark that keeps calls from starting: a cancel or a
// pause. With that, a call that is its lane's ready message itself, and was stored
// on the condition that nothing was before it, may be started without a look
// into the mailbox.
//
// A server on its own repeats each mark before it hands out anything that it stored
// or took back later, on the same connection, so a mark that was stored before the delivery of a
// ready message is here before that message is. In a cluster that is not so, and nothing is heard.
// It is safe for concurrent use.
type alarms struct {
	store *store.Store
	pool  protocol.Pool
	heard chan *nats.Msg

	mu            sync.Mutex
	subscriptions []*nats.Subscription
	reconnects    uint64                       // of the connection, when complete was set
	dropped       int                          // marks that had no room, by then
	complete      uint64                       // every mark stored after this sequence was heard
	lanes         map[protocol.LaneHash]uint64 // the last mark's sequence; bounded by maxAlarms
}

const (
	// maxAlarms bounds the lanes that are remembered; older marks are forgotten together.
	maxAlarms = 8192
	// maxHeard bounds the marks that wait to be taken.
	maxHeard = 4096
)

func newAlarms(s *store.Store, pool protocol.Pool) *alarms {
	return &alarms{
		store: s, pool: pool, heard: make(chan *nats.Msg, maxHeard),
		complete: math.MaxUint64, lanes: map[protocol.LaneHash]uint64{},
	}
}

// tend listens, and begins anew when something may have been missed.
func (a *alarms) tend(ctx context.Context) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.drain()
	if a.store.Clustered() || a.complete != math.MaxUint64 && !a.missed() {
		return nil
	}
	a.complete = math.MaxUint64
	if a.subscriptions == nil {
		for _, filter := range a.store.Fleet.ToldMarksFilters(a.pool) {
			subscription, err := a.store.NC.ChanSubscribe(filter, a.heard)
			if err != nil {
				a.silence()
				return fmt.Errorf("listen to marks of pool %s: %w", a.pool, err)
			}
			a.subscriptions = append(a.subscriptions, subscription)
		}
	}
	reconnects, dropped := a.store.NC.Stats().Reconnects, a.droppedNow()
	ctx, cancel := context.WithTimeout(ctx, store.ShortTimeout)
	defer cancel()
	if err := a.store.NC.FlushWithContext(ctx); err != nil { // now the server knows the subscriptions
		return fmt.Errorf("listen to marks of pool %s: %w", a.pool, err)
	}
	info, err := a.store.Calls.Info(ctx)
	if err != nil {
		return fmt.Errorf("listen to marks of pool %s: %w", a.pool, err)
	}
	a.reconnects, a.dropped, a.complete = reconnects, dropped, info.State.LastSeq
	clear(a.lanes)
	return nil
}

// missed reports whether marks may have been stored without being heard.
func (a *alarms) missed() bool {
	return a.store.NC.Stats().Reconnects != a.reconnects || a.droppedNow() != a.dropped
}

func (a *alarms) droppedNow() int {
	sum := 0
	for _, subscription := range a.subscriptions {
		n, _ := subscription.Dropped() // fails when the connection is closed for good
		sum += n
	}
	return sum
}

// drain books what was heard.
func (a *alarms) drain() {
	for {
		select {
		case msg := <-a.heard:
			a.book(msg)
		default:
			return
		}
	}
}

func (a *alarms) book(msg *nats.Msg) {
	seq, err := strconv.ParseUint(msg.Header.Get("Nats-Sequence"), 10, 64)
	if err != nil {
		a.complete = math.MaxUint64 // not the server that we know
		return
	}
	if len(a.lanes) >= maxAlarms {
		clear(a.lanes)
		if a.complete != math.MaxUint64 {
			a.complete = seq
		}
	}
	a.lanes[a.store.Fleet.LaneOfSubject(msg.Header.Get("Nats-Subject"))] = seq
}

// quiet reports whether a lane surely got no mark after its ready message, which has
// just been delivered, was stored.
func (a *alarms) quiet(lane protocol.LaneHash, ready uint64) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.drain()
	return !a.store.Clustered() && a.complete < ready && !a.missed() && a.lanes[lane] < ready
}

// close stops listening.
func (a *alarms) close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.silence()
}

func (a *alarms) silence() {
	for _, subscription := range a.subscriptions {
		_ = subscription.Unsubscribe() // fails only when the connection is closed
	}
	a.subscriptions, a.complete = nil, math.MaxUint64
}
