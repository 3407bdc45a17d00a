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

	"github.com/nats-io/nats.go"

	"github.com/toolfleet/toolfleet/internal/lane/store"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/wire"
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
		p.holder.slots.nudge()
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
