package lane

import (
	"context"
	"encoding/json"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolfleet/toolfleet/internal/lane/store"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Calls may wait in lanes that nobody holds, because all slots of all workers are taken. A worker without a free slot
// reads what waits in its pool, each message once, and remembers which calls have to be answered and when. It answers
// them without holding their lane:
//
//  1. It stores a request to cancel the call. Whoever claims the lane from now on does not start it.
//  2. It asks the pool's consumer. A ready message that was not delivered by then is held by nobody, so the call was not
//     started before the request, either.
//  3. It stores the result, on the condition that there is none.
//
// Whoever claims the lane later finds the result. Lanes that were delivered before are left to their holders, and to
// whoever gets them next: nobody can tell whether their calls were started.

const (
	// overduePeriod is how often a worker without a free slot looks for calls whose time is over.
	overduePeriod = 50 * time.Millisecond
	// maxOverdue bounds the calls that are remembered; what is more is read later.
	maxOverdue = 8192
	// overdueReads bounds the messages that are read at a time.
	overdueReads = 256
)

// overdue is what a worker without a free slot knows of calls that wait in lanes that it does not hold.
type overdue struct {
	holder  *Holder
	cursors map[string]uint64 // by filter: what is before was read
	calls   map[waitingCall]time.Time
}

// waitingCall names a call in the calls stream.
type waitingCall struct {
	lane protocol.LaneHash
	id   protocol.CallID
}

// answerOverdue answers calls whose time is over in lanes that nobody holds, until ctx ends.
func (h *Holder) answerOverdue(ctx context.Context) {
	o := overdue{holder: h, cursors: map[string]uint64{}, calls: map[waitingCall]time.Time{}}
	ticker := time.NewTicker(overduePeriod)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if h.slots.available() > 0 || h.store.Clustered() && !h.contact.calm(time.Now()) {
			continue // nothing waits; or the server that answers may be in the past
		}
		if err := o.look(ctx); err != nil {
			h.options.Logger.DebugContext(ctx, "calls that wait cannot be looked at", slog.Any("error", err))
		}
	}
}

// look reads what came since the last time, and answers what is due.
func (o *overdue) look(ctx context.Context) error {
	waits, err := o.waits(ctx)
	if err != nil || waits.Pending == 0 {
		return err
	}
	fleet, pool := o.holder.options.Fleet, o.holder.options.Pool
	for _, filter := range []string{fleet.ReadyFilter(pool), fleet.MailboxesFilter(pool)} {
		if err := o.read(ctx, filter); err != nil {
			return err
		}
	}
	for call, at := range o.calls {
		if time.Now().Before(at) {
			continue
		}
		done, err := o.answer(ctx, call)
		if err != nil {
			return err
		}
		if o.calls[call] = time.Now().Add(faultPause); done {
			delete(o.calls, call)
		}
	}
	return nil
}

// read remembers the calls among the messages that match filter and were not read before.
func (o *overdue) read(ctx context.Context, filter string) error {
	for n := 0; n < overdueReads && len(o.calls) < maxOverdue; n++ {
		msg, err := o.holder.store.Next(ctx, filter, o.cursors[filter])
		if err != nil || msg == nil {
			return err
		}
		o.cursors[filter] = msg.Sequence + 1
		o.remember(msg)
	}
	return nil
}

// remember books when a call has to be answered that a message is, or is about.
func (o *overdue) remember(msg *jetstream.RawStreamMsg) {
	fleet := o.holder.options.Fleet
	lane := fleet.LaneOfSubject(msg.Subject)
	if what := fleet.ParseMailboxSubject(msg.Subject); what.Kind == protocol.EntryCancel {
		o.calls[waitingCall{lane, what.CallID}] = time.Now()
		return
	} else if what.Kind != protocol.EntryCall && msg.Subject != fleet.ReadySubject(o.holder.options.Pool, lane) || len(msg.Data) == 0 {
		return
	}
	call, err := protocol.DecodeCall(msg.Data)
	if err != nil {
		return // whoever gets the lane answers
	}
	e := entry{call: call}
	if after, bounded := e.dueAfter(); bounded {
		o.calls[waitingCall{lane, call.ID}] = time.Now().Add(after - o.holder.clock.Age(msg.Time))
	}
}

// answer answers a call, if nobody can have started it. It reports true when there is no more to be done about it here.
func (o *overdue) answer(ctx context.Context, waiting waitingCall) (done bool, err error) {
	h := o.holder
	s, fleet, pool := h.store, h.options.Fleet, h.options.Pool
	ready, err := s.Next(ctx, fleet.ReadySubject(pool, waiting.lane), 0)
	if err != nil || ready == nil {
		return false, err
	}
	e, cancelled, err := o.find(ctx, waiting, ready)
	if err != nil || e == nil {
		return err == nil, err
	}
	known, err := s.HasResult(ctx, e.call.SessionID, e.call.ID)
	if err != nil || known {
		return known, err
	}
	result := h.refusal(e, cancelled)
	if result == nil || !o.isNew(ready.Time) {
		return false, nil
	}
	if waits, err := o.waits(ctx); err != nil || ready.Sequence <= waits.Delivered.Stream {
		return false, err
	}
	mark := nats.NewMsg(fleet.CancelSubject(pool, waiting.lane, waiting.id))
	mark.Header.Set(protocol.HeaderLane, store.HeaderSafe(string(e.call.Lane())))
	if _, answer, err := s.PublishOnce(ctx, fleet.CallsStream(), mark); err != nil || answer == store.Full {
		return false, err
	}
	waits, err := o.waits(ctx)
	if err != nil || ready.Sequence <= waits.Delivered.Stream || !o.isNew(ready.Time) {
		return false, err // somebody holds the lane by now, and finds the mark
	}
	if s.Clustered() && !h.contact.calm(time.Now()) {
		return false, nil
	}
	result.WorkerID, result.FinishedAt = h.options.Worker, time.Now().UTC()
	result.QueueMS = millis(h.clock.Age(e.accepted))
	return true, s.StoreResult(ctx, result)
}

// find returns a call that waits, and whether it is cancelled; nil when it does not wait, or may have been started before.
func (o *overdue) find(ctx context.Context, waiting waitingCall, ready *jetstream.RawStreamMsg) (e *entry, cancelled bool, err error) {
	s, fleet, pool := o.holder.store, o.holder.options.Fleet, o.holder.options.Pool
	subject := fleet.CallSubject(pool, waiting.lane, waiting.id)
	msg, err := s.Next(ctx, subject, 0)
	if err != nil {
		return nil, false, err
	}
	if msg == nil {
		msg = ready
	}
	call, fault := protocol.DecodeCall(msg.Data)
	if fault != nil || call.ID != waiting.id || msg.Header.Get(protocol.HeaderStarted) != "" {
		return nil, false, nil //nolint:nilerr // what nobody can read is answered by whoever gets the lane
	}
	for seq := uint64(0); ; {
		mark, err := s.Next(ctx, subject+".>", seq)
		if err != nil {
			return nil, false, err
		}
		if mark == nil {
			return &entry{call: call, header: msg.Header, accepted: msg.Time}, cancelled, nil
		}
		if fleet.ParseMailboxSubject(mark.Subject).Kind != protocol.EntryCancel {
			return nil, false, nil // a start mark
		}
		cancelled, seq = true, mark.Sequence+1
	}
}

// isNew reports whether the server surely knows if a message that was stored at a time was delivered.
func (o *overdue) isNew(stored time.Time) bool {
	b, s := &o.holder.books, o.holder.store
	return b.doubtConsumer(stored) == doubtNothing &&
		(s.Clustered() || b.doubt(s.NC.ConnectedServerId(), stored) == doubtNothing)
}

// queue is what the pool's consumer says about ready messages.
type queue struct {
	Pending   uint64 `json:"num_pending"` // never delivered
	Delivered struct {
		Stream uint64 `json:"stream_seq"` // the last one that was
	} `json:"delivered"`
	Name string `json:"name"`
}

// waits asks the pool's consumer.
func (o *overdue) waits(ctx context.Context) (*queue, error) {
	fleet, pool := o.holder.options.Fleet, o.holder.options.Pool
	answer, err := o.holder.store.Replies.Request(ctx, store.ShortTimeout,
		&nats.Msg{Subject: "$JS.API.CONSUMER.INFO." + fleet.CallsStream() + "." + fleet.ReadyConsumer(pool)})
	if err != nil {
		return nil, err
	}
	var told queue
	if err := json.Unmarshal(answer.Data, &told); err != nil {
		return nil, err
	}
	if told.Name == "" {
		return nil, errNoConsumer
	}
	return &told, nil
}
