package lane

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolfleet/toolfleet/internal/lane/core"
	"github.com/toolfleet/toolfleet/internal/system/pause"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Tenants and priorities
//
// The consumer of a pool delivers ready lanes in their order, so a tenant with many of them would
// delay all others. The lanes of calls with a tenant or a priority therefore get no ready message
// at first, but a ticket: a message that is stored only while the lane has no ready message, at a
// subject of its flow (tenant, priority, and a share of the sessions). Each worker waits for a slot
// once for each tenant that has tickets, in fair queueing with its own lanes. In a tenant's turn
// the worker takes a ticket of the next priority and the next share of sessions: it makes the lane
// ready, deletes the ticket, and claims the lane as if the ready message had been delivered to it.
// One worker succeeds; the others take the tenant's next ticket and do not give up their turn.
// Otherwise a tenant with a large share, for whose tickets workers compete more often, would get
// less.
//
// A ticket asks for a ready message and proves nothing, so the argument that no wake-up is lost is
// that about ready messages. A publisher whose ticket is refused finds the lane ready or held, or
// an older ticket. A ticket is deleted only after the lane was made ready for it and before that
// ready message is deleted, so the holder's last look follows. A lost ticket is replaced by the
// reaper.
type tickets struct {
	holder *Holder

	reading sync.Mutex    // one goroutine looks for the next ticket
	again   chan struct{} // a tenant may have to be served again

	mu       sync.Mutex
	flows    map[wire.Flow]*flowTickets
	serving  map[protocol.Tenant]bool // a goroutine waits for a slot
	shares   map[protocol.Tenant]*core.Fair[uint8]
	claiming map[wire.LaneHash]*readyMessage // lanes whose tickets are being taken; what was delivered meanwhile
	latest   time.Time                       // when a ticket was last read: a hint may be a check of rights
	listed   time.Time                       // when all were last listed
}

// flowTickets is what is known of the tickets of a flow. At most maxFlows are remembered.
type flowTickets struct {
	cursor uint64    // the next sequence to read
	waits  bool      // there may be a ticket at or after cursor
	first  time.Time // when the next ticket was stored; zero until it is read
	hinted time.Time
}

const (
	// recheckPause and recheckFor are how often and how long a ticket is looked for after a hint.
	recheckPause = 5 * time.Millisecond
	recheckFor   = 200 * time.Millisecond
	// maxTried bounds the tickets that are tried in one turn.
	maxTried = 16
	// maxFlows bounds the flows of a pool.
	maxFlows = 10_000
	// ticketPeriod is how often tickets are looked for without a hint.
	ticketPeriod = time.Second
	// listPeriod is how often all tickets, at most maxTickets, are listed to find flows: their
	// hints may be lost, or older than this worker.
	listPeriod = 30 * time.Second
	maxTickets = 300_000
	// recentTickets is for how long a pool counts as shared after a ticket was seen.
	recentTickets = time.Minute
	// normalAfter and batchAfter are how much younger interactive calls come later, so that no
	// priority starves another.
	normalAfter = 10 * time.Second
	batchAfter  = time.Minute
)

func newTickets(h *Holder) *tickets {
	return &tickets{
		holder: h, again: make(chan struct{}, 1), flows: map[wire.Flow]*flowTickets{}, serving: map[protocol.Tenant]bool{},
		shares: map[protocol.Tenant]*core.Fair[uint8]{}, claiming: map[wire.LaneHash]*readyMessage{},
	}
}

// shared reports whether tickets were seen a moment ago.
func (t *tickets) shared() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return !t.latest.IsZero() && time.Since(t.latest) < recentTickets
}

// run takes tickets until ctx ends.
func (t *tickets) run(ctx context.Context) {
	h := t.holder
	hints := make(chan wire.Flow, 1024) // a hint without room is lost; recheck finds its ticket
	subscription, err := h.store.NC.Subscribe(wire.TicketSubject(h.options.Fleet, h.options.Pool, "*", wire.AnyFlow()), func(msg *nats.Msg) {
		if flow, ok := wire.FlowOfSubject(msg.Subject); ok {
			select {
			case hints <- flow:
			default:
			}
		}
	})
	if err == nil {
		defer func() { _ = subscription.Unsubscribe() }() // fails only when the connection is closed
	}
	var servers sync.WaitGroup
	defer servers.Wait()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case flow := <-hints:
			t.onHint(flow)
		case <-t.again:
		case <-timer.C:
			t.recheck(ctx)
			timer.Reset(ticketPeriod)
		}
		for _, tenant := range t.unserved() {
			servers.Go(func() { t.serve(ctx, &servers, tenant) })
		}
	}
}

// note notes that a flow may have a ticket.
func (t *tickets) note(flow wire.Flow) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.flows[flow] == nil {
		if len(t.flows) >= maxFlows {
			return
		}
		t.flows[flow] = &flowTickets{}
	}
	t.flows[flow].waits = true
}

// onHint notes that a ticket is being published. The hint may come before the ticket is stored.
func (t *tickets) onHint(flow wire.Flow) {
	t.note(flow)
	t.mu.Lock()
	defer t.mu.Unlock()
	if known := t.flows[flow]; known != nil {
		known.hinted = time.Now()
	}
}

// recheck looks for tickets whose hints were lost, and for tickets that were passed over.
func (t *tickets) recheck(ctx context.Context) {
	h := t.holder
	all := wire.TicketSubject(h.options.Fleet, h.options.Pool, "*", wire.AnyFlow())
	first, err := h.store.Next(ctx, all, 0)
	if err != nil || first == nil {
		return
	}
	t.mu.Lock()
	t.latest = time.Now()
	for _, flow := range t.flows {
		flow.cursor, flow.waits, flow.first = 0, true, time.Time{}
	}
	listed := time.Since(t.listed) < listPeriod
	t.mu.Unlock()
	if listed {
		return
	}
	t.listed = time.Now()
	_, _ = h.store.EachSubject(ctx, all, maxTickets, func(subject string) { // else again in a moment
		if flow, ok := wire.FlowOfSubject(subject); ok {
			t.note(flow)
		}
	})
}

// unserved returns the tenants with tickets for which no goroutine waits yet, and marks them as
// served.
func (t *tickets) unserved() (tenants []protocol.Tenant) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for flow, known := range t.flows {
		if known.waits && !t.serving[flow.Tenant] {
			t.serving[flow.Tenant] = true
			tenants = append(tenants, flow.Tenant)
		}
	}
	return tenants
}

// serve finds a ticket of a tenant, waits for a slot, and takes the ticket. Then its successor
// goes on with the next one, until there are none.
func (t *tickets) serve(ctx context.Context, servers *sync.WaitGroup, tenant protocol.Tenant) {
	h := t.holder
	ticket, flow, err := t.nextTicket(ctx, tenant)
	if err != nil {
		h.retryLog.log(ctx, "tickets of lanes cannot be read", slog.Any("error", err))
	}
	if ticket == nil || h.slots.acquire(ctx, tenant) != nil {
		t.mu.Lock()
		delete(t.serving, tenant)
		t.mu.Unlock()
		time.AfterFunc(recheckPause, func() { // a hint may have come meanwhile
			select {
			case t.again <- struct{}{}:
			default:
			}
		})
		return
	}
	servers.Go(func() { t.serve(ctx, servers, tenant) })
	for n := 0; ticket != nil && n < maxTried; n++ {
		if t.claimTicket(ctx, ticket, flow) {
			return
		}
		if ticket, flow, err = t.nextTicket(ctx, tenant); err != nil {
			break
		}
	}
	h.slots.release()
}

// claimTicket redeems a ticket and holds its lane with a slot that is granted. It reports false if
// another worker was faster, or the lane is ready or held.
func (t *tickets) claimTicket(ctx context.Context, ticket *message, flow wire.Flow) bool {
	h := t.holder
	hash := wire.LaneOfSubject(h.options.Fleet, ticket.Subject)
	t.beginClaim(hash)
	defer t.endClaim(hash) //nolint:contextcheck // a lane that it holds has its own
	ready := t.redeem(ctx, ticket, flow)
	if ready != nil {
		h.beginHold(ready) //nolint:contextcheck // the lane has its own
	}
	return ready != nil
}

// beginClaim has ready messages of a lane wait that are delivered while a ticket of it is being
// taken: such a message may have been made for the ticket, or by a publisher, in place of the
// ticket's.
func (t *tickets) beginClaim(lane wire.LaneHash) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.claiming[lane] = nil
}

// holdBack reports whether a delivered ready message waits for the end of a taking.
func (t *tickets) holdBack(ready *readyMessage) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, taking := t.claiming[ready.hash]; !taking {
		return false
	}
	t.claiming[ready.hash] = ready // there is one at a time
	return true
}

// endClaim places what was delivered meanwhile.
func (t *tickets) endClaim(lane wire.LaneHash) {
	t.mu.Lock()
	ready := t.claiming[lane]
	delete(t.claiming, lane)
	t.mu.Unlock()
	if ready != nil {
		t.holder.claimDelivered(ready)
	}
}

// nextTicket returns the ticket of a tenant that comes first by its time and its priority, of the
// share of sessions whose turn it is, and passes it; nil when there is none.
func (t *tickets) nextTicket(ctx context.Context, tenant protocol.Tenant) (found *message, of wire.Flow, err error) {
	t.reading.Lock()
	defer t.reading.Unlock()
	for {
		fresh := map[wire.Flow]*message{}
		for _, flow := range t.unreadFlows(tenant) {
			if fresh[flow], err = t.readTicket(ctx, flow); err != nil {
				return nil, flow, err // find comes back to it
			}
		}
		flow, ok := t.chooseFlow(tenant)
		if !ok {
			return nil, flow, nil
		}
		if found = fresh[flow]; found == nil { // another worker may have taken it since it was read
			if found, err = t.readTicket(ctx, flow); err != nil {
				return nil, flow, err
			}
		}
		if found != nil {
			t.mu.Lock()
			defer t.mu.Unlock()
			t.shares[tenant].Grant(flow.Share)
			known := t.flows[flow]
			known.cursor, known.first = max(known.cursor, found.Sequence+1), time.Time{}
			return found, flow, nil
		}
	}
}

// unreadFlows returns the flows of a tenant that may have a ticket, and whose next one is not
// known.
func (t *tickets) unreadFlows(tenant protocol.Tenant) (flows []wire.Flow) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for flow, known := range t.flows {
		if flow.Tenant == tenant && known.waits && known.first.IsZero() {
			flows = append(flows, flow)
		}
	}
	return flows
}

// readTicket reads the next ticket of a flow; nil when there is none.
func (t *tickets) readTicket(ctx context.Context, flow wire.Flow) (*message, error) {
	h := t.holder
	t.mu.Lock()
	known := t.flows[flow]
	cursor := known.cursor
	known.waits = false // a hint that comes meanwhile sets it again
	t.mu.Unlock()
	found, err := h.store.Next(ctx, wire.TicketSubject(h.options.Fleet, h.options.Pool, "*", flow), cursor)
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case err != nil:
	case found == nil:
		known.first = time.Time{}
		known.waits = known.waits || time.Since(known.hinted) < recheckFor
	default:
		t.latest = time.Now()
		known.waits, known.first = true, found.Time
	}
	return found, err
}

// chooseFlow chooses a flow of a tenant with a known ticket: the priority whose first ticket is due
// first, and of that the share whose turn it is.
func (t *tickets) chooseFlow(tenant protocol.Tenant) (of wire.Flow, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	var due time.Time
	for flow, known := range t.flows {
		if flow.Tenant != tenant || known.first.IsZero() {
			continue
		}
		if at := known.first.Add(priorityDelay(flow.Priority)); !ok || at.Before(due) {
			of, due, ok = flow, at, true
		}
	}
	shares := t.shares[tenant]
	if shares == nil {
		if len(t.shares) >= maxFlows {
			clear(t.shares)
		}
		shares = &core.Fair[uint8]{}
		t.shares[tenant] = shares
	}
	for flow, known := range t.flows {
		if flow.Tenant == tenant && flow.Priority == of.Priority && !known.first.IsZero() && shares.Before(flow.Share, of.Share) {
			of = flow
		}
	}
	return of, ok
}

func priorityDelay(p protocol.Priority) time.Duration {
	switch p {
	case protocol.Interactive:
		return 0
	case protocol.Batch:
		return batchAfter
	case protocol.Normal:
	}
	return normalAfter
}

// redeem makes a ticket's lane ready and deletes the ticket. It returns nil if the lane is ready or
// held already: then the ticket stays for later.
func (t *tickets) redeem(ctx context.Context, ticket *message, flow wire.Flow) *readyMessage {
	h := t.holder
	lane := wire.LaneOfHeader(ticket.Header.Get(wire.HeaderLane))
	hash := wire.LaneOfSubject(h.options.Fleet, ticket.Subject)
	if wire.HashLane(lane) != hash {
		h.store.DeleteAsync(ticket.Sequence)
		return nil
	}
	seq, err := h.store.MakeReadyOf(ctx, h.options.Pool, lane, flow)
	if err != nil || seq == 0 {
		return nil
	}
	if h.store.Remove(ctx, ticket.Sequence) != nil {
		return nil // the consumer delivers the ready message, and the ticket is looked at again
	}
	return &readyMessage{
		seq: seq, header: nats.Header{wire.HeaderFlow: []string{flow.Header()}}, stored: time.Now(), lane: lane, hash: hash,
	}
}

// flowOf is the flow of a ready message.
func (r *readyMessage) flowOf() wire.Flow { return wire.FlowOfHeader(r.header.Get(wire.HeaderFlow)) }

// tenant is whose share of the slots the lane uses.
func (l *heldLane) tenant() protocol.Tenant { return cmp.Or(l.flow.Tenant, wire.DefaultTenant) }

// makeReadyAgain makes the lane ready, or gives it a ticket if it is of a flow.
func (l *heldLane) makeReadyAgain() error {
	s, pool := l.holder.store, l.holder.options.Pool
	if !l.flow.IsDefault() {
		if made, err := s.Ticket(l.ctx, pool, l.lane, l.flow); made || err != nil {
			return err
		}
	}
	_, err := s.MakeReady(l.ctx, pool, l.lane)
	return err
}

// maxTaken bounds how often the time in line doubles, and takenReady of how many ready messages it
// is known how often they were taken.
const (
	maxTaken   = 10
	takenReady = 1000
)

// awaitSlot begins to hold a lane that was delivered while no slot was free, when it is the turn of
// calls without a tenant, unless another worker has a slot for it earlier.
func (h *Holder) awaitSlot(ready *readyMessage) {
	h.mu.Lock()
	ctx := h.claiming
	h.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, h.lease/3)
	defer cancel()
	ctx, leave := context.WithCancelCause(ctx)
	var offering sync.WaitGroup
	offering.Go(func() { h.offerDelivered(ctx, ready, leave) })
	err := h.slots.acquire(ctx, cmp.Or(ready.flowOf().Tenant, wire.DefaultTenant))
	leave(nil)
	offering.Wait()
	switch {
	case err == nil:
		h.beginHold(ready)
	case errors.Is(err, errHeld):
		taken, _ := h.taken.Get(ready.seq)
		h.taken.Put(ready.seq, taken+1, 0)
		h.decline(ready, errHeld)
	default:
		h.store.Nack(ready.ack, 0)
	}
}

// offerDelivered offers a lane that waits for a slot to the other workers until ctx ends: one of
// them may be idle, and the consumer has delivered the lane here. It ends ctx with errHeld when one
// has claimed the lane. All workers get each offer, so a lane that has its turn soon is not
// offered. One that was taken before was handed back, since its taker cannot run what is in it: it
// keeps its position in line here for twice as long each time.
func (h *Holder) offerDelivered(ctx context.Context, ready *readyMessage, leave context.CancelCauseFunc) {
	taken, _ := h.taken.Get(ready.seq)
	if !pause.For(ctx, offerPeriod<<min(taken, maxTaken)) {
		return
	}
	nc := h.store.NC
	answers, err := nc.Subscribe(nc.NewInbox(), func(msg *nats.Msg) {
		if string(msg.Data) == answerClaimed {
			leave(errHeld)
		}
	})
	if err != nil {
		return // it waits for its turn
	}
	defer func() { _ = answers.Unsubscribe() }() // fails only when the connection is closed
	for wait, more := 2*offerPeriod, true; more; wait *= 2 {
		if h.peers.hasOthers(h.options.Worker) { // the requirements of the offer are those that every worker meets
			_ = nc.PublishRequest(wire.AskSubject(h.options.Fleet, h.options.Pool, ready.hash), answers.Subject, []byte("{}"))
		}
		more = pause.For(ctx, wait)
	}
}

// ticketOf gives a lane with waiting entries of a flow a ticket, and reports whether it has one.
func (c *reaper) ticketOf(ctx context.Context, lane protocol.Lane, entries []jetstream.Msg) (bool, error) {
	s, pool := c.holder.store, c.holder.options.Pool
	flow := wire.FlowOfHeader(entries[0].Headers().Get(wire.HeaderFlow))
	if flow.IsDefault() {
		return false, nil
	}
	made, err := s.Ticket(ctx, pool, lane, flow)
	if made || err != nil {
		return made, err
	}
	there, err := s.Next(ctx, wire.TicketSubject(s.Fleet, pool, wire.HashLane(lane), flow), 0)
	return there != nil, err
}

// readyOfTicket makes a lane ready that has a ticket alone, and reports whether it did.
func (h *Holder) readyOfTicket(ctx context.Context, hash wire.LaneHash) bool {
	filter := wire.TicketSubject(h.options.Fleet, h.options.Pool, hash, wire.AnyFlow())
	ticket, err := h.store.Next(ctx, filter, 0)
	if err != nil || ticket == nil {
		return false
	}
	flow, _ := wire.FlowOfSubject(ticket.Subject)
	seq, err := h.store.MakeReadyOf(ctx, h.options.Pool, wire.LaneOfHeader(ticket.Header.Get(wire.HeaderLane)), flow)
	return err == nil && seq > 0
}
