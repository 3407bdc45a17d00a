package lane

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"

	"github.com/toolfleet/toolfleet/internal/lane/core"
	"github.com/toolfleet/toolfleet/internal/lane/store"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/system/pause"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// puller requests ready messages from a pool's consumer: one message a request, and as many
// requests as there are free slots.
type puller struct {
	holder    *Holder
	expires   time.Duration // of a request
	repairing atomic.Bool

	mu           sync.Mutex
	subscription *nats.Subscription
	inbox        string // prefix of the reply subjects
	next         uint64
	requests     []pullRequest // oldest first
}

type pullRequest struct {
	reply string
	sent  time.Time
}

const (
	// requestSlack is how long after its expiry a request may stay unanswered.
	requestSlack = time.Second
	// maxOnItsWay bounds the wait of a stopping worker for deliveries. After a lease they are
	// delivered again anyway.
	maxOnItsWay = 30 * time.Second
	// maxRequests bounds the requests that wait at the server.
	maxRequests = 64
)

var errNoConsumer = errors.New("the pool's consumer does not answer")

// reset drops all requests and ignores their answers, after a new connection or when an answer is
// missing.
func (p *puller) reset() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stop()
	inbox := p.holder.store.NC.NewInbox()
	subscription, err := p.holder.store.NC.Subscribe(inbox+".*", func(msg *nats.Msg) { p.answer(inbox, msg) })
	if err != nil {
		return fmt.Errorf("subscribe to pull answers: %w", err)
	}
	p.subscription, p.inbox = subscription, inbox
	return nil
}

// close ends pulling, and returns when all deliveries have been passed on, or cannot come any more.
func (p *puller) close() {
	p.mu.Lock()
	subscription := p.subscription
	p.mu.Unlock()
	if subscription != nil && p.holder.store.NC.IsConnected() {
		drained := make(chan struct{})
		subscription.SetClosedHandler(func(string) { close(drained) })
		if subscription.Drain() == nil {
			select {
			case <-drained:
			case <-time.After(min(p.holder.lease, maxOnItsWay)): // the server does not answer
			}
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stop()
}

func (p *puller) stop() {
	if p.subscription != nil {
		_ = p.subscription.Unsubscribe() // fails only when the connection is closed
	}
	p.subscription, p.inbox, p.requests = nil, "", nil
}

func (p *puller) answer(inbox string, msg *nats.Msg) {
	status := msg.Header.Get("Status")
	p.mu.Lock()
	if inbox != p.inbox { // of an earlier subscription
		p.mu.Unlock()
		return
	}
	if status == "" {
		if len(p.requests) == 0 {
			p.mu.Unlock()
			return
		}
		p.requests = p.requests[1:]
		p.mu.Unlock()
		p.holder.deliver(msg)
		return
	}
	p.requests = slices.DeleteFunc(p.requests, func(r pullRequest) bool { return r.reply == msg.Subject })
	p.mu.Unlock()
	switch description := msg.Header.Get("Description"); {
	case status == "408" || status == "404": // expired, nothing there
		p.holder.slots.signal()
	case status == "503":
		p.holder.onPullError(errNoConsumer)
	case strings.Contains(strings.ToLower(description), "batch completed"):
	default:
		p.holder.onPullError(fmt.Errorf("pull request: %s %s", status, description))
	}
}

// outstanding is how many messages may still be delivered. It reports false when an answer is
// missing, so that only a reset helps.
func (p *puller) outstanding(now time.Time) (n int, healthy bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.subscription == nil {
		return 0, false
	}
	if len(p.requests) > 0 && now.Sub(p.requests[0].sent) > p.expires+requestSlack {
		return 0, false
	}
	return len(p.requests), true
}

// request asks for n ready messages.
func (p *puller) request(n int) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	fleet, pool := p.holder.options.Fleet, p.holder.options.Pool
	subject := "$JS.API.CONSUMER.MSG.NEXT." + wire.CallsStream(fleet) + "." + wire.ReadyConsumer(pool)
	body := fmt.Appendf(nil, `{"batch":1,"expires":%d}`, p.expires.Nanoseconds())
	for range n {
		p.next++
		reply := p.inbox + "." + strconv.FormatUint(p.next, 36)
		sent := time.Now()
		if err := p.holder.store.NC.PublishRequest(subject, reply, body); err != nil {
			return fmt.Errorf("pull request: %w", err)
		}
		p.requests = append(p.requests, pullRequest{reply, sent})
	}
	return nil
}

// onPullError handles a failed pull request: the consumer may have been deleted, and is created
// again.
func (h *Holder) onPullError(err error) {
	if !h.puller.repairing.CompareAndSwap(false, true) {
		return // one repair for all failed requests
	}
	defer h.puller.repairing.Store(false)
	pool := slog.String("pool", string(h.options.Pool))
	ctx, cancel := context.WithTimeout(context.Background(), store.OpTimeout) //nolint:forbidigo // a callback of NATS has no context
	defer cancel()
	h.retryLog.log(ctx, "pull request failed", pool, slog.Any("error", err))
	if _, _, err := natsio.EnsurePool(ctx, h.store.JS, h.options.Fleet, h.options.Pool, h.lease); err != nil {
		h.retryLog.log(ctx, "consumer cannot be checked", pool, slog.Any("error", err))
	}
}

// readyMessage is a ready message as the pool's consumer delivered it, or as it was read.
type readyMessage struct {
	seq        uint64
	deliveries uint64
	ack        string // subject of acknowledgements; "" if it was read, not delivered
	asked      string // where to report that the lane is claimed; "" is nowhere
	header     nats.Header
	body       []byte    // of its own call; empty if it has none
	stored     time.Time // by the server's clock
	lane       protocol.Lane
	hash       wire.LaneHash

	call *core.Entry // its own call, until that is in the schedule
}

func readReady(msg *nats.Msg) (*readyMessage, error) {
	meta, err := msg.Metadata()
	if err != nil {
		return nil, err
	}
	r := &readyMessage{
		seq: meta.Sequence.Stream, deliveries: meta.NumDelivered, ack: msg.Reply,
		header: msg.Header, body: msg.Data, stored: meta.Timestamp,
		hash: wire.LaneHash(msg.Subject[strings.LastIndexByte(msg.Subject, '.')+1:]),
	}
	if r.lane = wire.LaneOfHeader(msg.Header.Get(wire.HeaderLane)); wire.HashLane(r.lane) != r.hash {
		return nil, fmt.Errorf("header %s %q does not match the subject",
			wire.HeaderLane, msg.Header.Get(wire.HeaderLane))
	}
	return r, nil
}

// claim is the stored record of a lane's holder.
type claim struct {
	wire.Claim

	epoch    atomic.Uint64 // 0 until it is known to be stored
	spentAge time.Duration // how old Spent was when the claim was stored
	lost     lostHolder
}

// lostHolder is the holder before, if it was lost while it held the lane.
type lostHolder struct {
	worker protocol.WorkerID // "" if there was none
	held   time.Duration     // from its claim until another one replaced that
}

var (
	// errHeld says that another worker holds the lane by the same ready message.
	errHeld = errors.New("another worker holds the lane")
	// errReleasing says that another worker is just releasing the lane.
	errReleasing = errors.New("another worker is releasing the lane")
)

// acquire stores a claim. It replaces one whose owner is expired; otherwise the error wraps
// [errHeld] or [errReleasing].
func (h *Holder) acquire(ctx context.Context, c *claim) error {
	claiming := core.Claiming{Claim: &c.Claim}
	for tried := false; ; tried = true {
		if tried && !pause.For(ctx, store.BehindPause) {
			return context.Cause(ctx)
		}
		epoch, answer, err := h.store.StoreClaim(ctx, h.options.Pool, &c.Claim, claiming.Expect)
		switch {
		case err == nil && answer == store.Accepted:
			c.epoch.Store(epoch)
			return nil
		case err == nil && answer == store.Full:
			return fmt.Errorf("claim: %w", ErrFull)
		case err != nil && !store.Retryable(err):
			return fmt.Errorf("claim: %w", err)
		}
		found, readErr := h.store.Claim(ctx, h.options.Pool, wire.HashLane(c.Lane))
		if readErr != nil {
			return fmt.Errorf("claim: %w", errors.Join(err, readErr))
		}
		if found == nil {
			found = &store.StoredClaim{At: time.Now()}
		}
		switch claiming.Decide(&found.Claim, found.Epoch, h.peers.isExpired) {
		case core.StepStore:
			if c.spentAge = h.clock.Age(found.At); found.Incarnation != "" && found.Incarnation != c.Incarnation {
				c.lost = lostHolder{found.WorkerID, c.spentAge}
			}
		case core.StepHeld:
			c.epoch.Store(found.Epoch)
			return nil
		case core.StepWait:
			return fmt.Errorf("lane %s, epoch %d: %w", c.Lane, found.Epoch, errReleasing)
		case core.StepDecline:
			return fmt.Errorf("lane %s, epoch %d: %w", c.Lane, found.Epoch, errHeld)
		}
	}
}

func (h *Holder) decline(r *readyMessage, why error) {
	switch {
	case errors.Is(why, errHeld): // the ready message is the holder's
		h.store.Nack(r.ack, h.lease)
		h.requestRelease(r)
	case errors.Is(why, errReleasing):
		h.store.Nack(r.ack, min(releasingFirst<<min(r.deliveries, 10), releasingLast))
		h.requestRelease(r)
	case errors.Is(why, ErrDraining):
		h.store.Nack(r.ack, 0)
	default:
		h.retryLog.log(context.Background(), "lane cannot be claimed", //nolint:forbidigo // for the log alone
			slog.String("lane", string(r.lane)), slog.Any("error", why))
		h.store.Nack(r.ack, pause.Retry)
	}
}

const (
	// releasingFirst and releasingLast bound the pauses between two tries to claim a lane that
	// another worker seems to be releasing.
	releasingFirst = 2 * time.Millisecond
	releasingLast  = time.Second
)

// requestRelease makes the owner of a claim check whether it still holds the lane. If its deletion
// of the claim was lost, it deletes the claim then. A normal release needs no request.
func (h *Holder) requestRelease(r *readyMessage) {
	if r.deliveries > 2 {
		_ = h.store.NC.Publish(wire.AskSubject(h.store.Fleet, h.options.Pool, r.hash), nil)
	}
}

// removeStaleClaimAfter deletes the claim of a lane after claiming it failed: the claim may be
// stored all the same.
func (h *Holder) removeStaleClaimAfter(l *heldLane, why error) {
	if why == nil || errors.Is(why, errHeld) || errors.Is(why, errReleasing) {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(l.ctx), store.ShortTimeout)
	defer cancel()
	h.removeStaleClaim(ctx, l.hash)
}

// removeStaleClaim deletes a claim of this incarnation on a lane that is not held here: the
// deletion was lost, or a restarted server restored the claim. It also has the ready message
// delivered again, because the consumer may wait with it.
func (h *Holder) removeStaleClaim(ctx context.Context, hash wire.LaneHash) {
	found, err := h.store.Claim(ctx, h.options.Pool, hash)
	if err != nil || found == nil {
		return
	}
	h.mu.Lock()
	ours := h.incarnation != nil && found.Incarnation == h.incarnation.id && h.held[hash] == nil &&
		h.incarnation.isTrusted(time.Now()) // calls of a lost incarnation may have been started, so its claims are taken over
	h.mu.Unlock()
	if ours && h.store.RedeliverAfter(ctx, h.options.Pool, h.lease, found.Ready) == nil &&
		h.store.EndClaim(ctx, h.options.Pool, found.Claim, found.Epoch) == nil { // on failure another worker requests it again
		_ = h.store.Redeliver(ctx, h.options.Pool, found.Ready) // else it waits for a lease
	}
}

// ownership is the claim by which this process holds a lane, and until when. It is safe for
// concurrent use, except for the ready message's call.
type ownership struct {
	lane        protocol.Lane
	hash        wire.LaneHash
	ready       *readyMessage
	claim       *claim
	incarnation *incarnation
	since       time.Time // when it began
	flow        wire.Flow // of the ready message

	ctx      context.Context //nolint:containedctx // the lifetime of the claim is the lane's own
	cancel   context.CancelCauseFunc
	starting context.Context //nolint:containedctx // ends when no more calls may start
	stop     context.CancelFunc
}

func newOwnership(worker protocol.WorkerID, incarnation *incarnation, ready *readyMessage) *ownership {
	own := &claim{Claim: wire.Claim{Lane: ready.lane, WorkerID: worker, Incarnation: incarnation.id, Token: uuid.NewString(), Ready: ready.seq}}
	t := &ownership{lane: ready.lane, hash: ready.hash, ready: ready, claim: own, incarnation: incarnation, since: time.Now(), flow: ready.flowOf()}
	t.ctx, t.cancel = context.WithCancelCause(incarnation.ctx)
	t.starting, t.stop = context.WithCancel(t.ctx)
	return t
}

func (t *ownership) isStopping() bool { return t.starting.Err() != nil }

// isAlive reports whether the lane is certainly still ours; if not, it ends the ownership.
func (t *ownership) isAlive() bool {
	if t.ctx.Err() == nil && !t.incarnation.isTrusted(time.Now()) {
		t.cancel(ErrLost)
	}
	return t.ctx.Err() == nil
}

// isFresh waits until the lease is trusted for one more margin, so that a deletion arrives before
// the lease ends even if it is late by one margin: servers accept it also from a former holder. It
// reports false when the lane is lost.
func (t *ownership) isFresh() bool {
	for t.isAlive() {
		if t.incarnation.isFresh(time.Now()) {
			return true
		}
		pause.For(t.ctx, pause.Retry)
	}
	return false
}
