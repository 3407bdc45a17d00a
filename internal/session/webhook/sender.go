package webhook

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/toolfleet/toolfleet/internal/fleet"
	"github.com/toolfleet/toolfleet/internal/modeltext/prose"
	"github.com/toolfleet/toolfleet/internal/sandbox/egress"
	"github.com/toolfleet/toolfleet/internal/system/pause"
	"github.com/toolfleet/toolfleet/internal/telemetry"
)

const (
	// ackWait is when another sender takes over what a lost one was about to send: more than
	// opTimeout and sendTimeout together.
	ackWait = 30 * time.Second
	// sendTimeout bounds an attempt, from the search for an address to the end of the answer.
	sendTimeout = 15 * time.Second
	// atOnce is how many deliveries of a webhook are under way, and fetchWait how long the first
	// one is waited for.
	atOnce    = 4
	fetchWait = 20 * time.Second
	// maxPending is how many deliveries of a webhook have been tried and wait for their next
	// attempt; others wait behind them.
	maxPending = 1000
	// maxAnswer bounds what is read of an answer, in bytes, and maxHeads its head.
	maxAnswer = 4 << 10
	maxHeads  = 16 << 10
	// maxAge is when a delivery that fails is not tried again, and maxRetryAfter how long a
	// receiver may put one off.
	maxAge        = 4 * 24 * time.Hour
	maxRetryAfter = 8 * time.Hour
	// maxReason bounds what is stored of an error, in bytes.
	maxReason = 200
	// notePeriod is how often it is noted that deliveries arrive.
	notePeriod = time.Minute
	// forgetAfter is how long the mark of a removed webhook stays.
	forgetAfter = 24 * time.Hour
)

// backOff is how long a delivery waits after each failed attempt. After the last one it has failed.
func backOff() []time.Duration {
	return []time.Duration{
		5 * time.Second, 30 * time.Second, 2 * time.Minute, 10 * time.Minute, 30 * time.Minute,
		time.Hour, 2 * time.Hour, 4 * time.Hour, 8 * time.Hour, 8 * time.Hour, 8 * time.Hour,
	}
}

// Options of a [Sender].
type Options struct {
	Fleet *fleet.Fleet
	// Allow are the hosts that may be reached. Addresses that are not public, and those of this
	// host, are refused unless the list names them.
	Allow egress.Allow
	// Plain allows plain HTTP to loopback addresses.
	Plain bool
	// Version is that of this program.
	Version string
	Logger  *slog.Logger
	// BackOff is the wait after each failed attempt, and AckWait when a lost sender is replaced;
	// nil and 0 mean those above.
	BackOff []time.Duration
	AckWait time.Duration
	// Roots are the authorities of receivers; nil means those of the system. Resolver resolves
	// their names; nil means that of the system.
	Roots    *x509.CertPool
	Resolver egress.Resolver
}

// Sender notes events for webhooks, and sends them.
type Sender struct {
	o       Options
	fleet   *fleet.Fleet
	log     *slog.Logger
	store   *Store
	sources map[string]source
	known   *known
	client  *http.Client
	slots   chan struct{} // of deliveries under way
	metrics *telemetry.WebhookMetrics
}

// NewSender opens what a sender needs.
func NewSender(ctx context.Context, o Options) (*Sender, error) {
	store, err := Open(ctx, o.Fleet)
	if err != nil {
		return nil, err
	}
	if o.BackOff == nil {
		o.BackOff = backOff()
	}
	o.AckWait = cmp.Or(o.AckWait, ackWait)
	proxy, err := egress.New(egress.Options{Allow: o.Allow, Private: listed(o.Allow), Resolver: o.Resolver, Logger: o.Logger, Setting: "--webhook-host"})
	if err != nil {
		return nil, err
	}
	return &Sender{
		o: o, fleet: o.Fleet, log: o.Logger, store: store, sources: sources(o.Fleet), known: newKnown(),
		metrics: telemetry.NewWebhookMetrics(telemetry.Meter()), slots: make(chan struct{}, maxHooks),
		client: &http.Client{
			Timeout:       sendTimeout,
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
			Transport: &http.Transport{ // without a proxy of the environment: it would resolve the names
				DialContext: proxy.DialContext, TLSClientConfig: &tls.Config{RootCAs: o.Roots, MinVersion: tls.VersionTLS12}, ForceAttemptHTTP2: true,
				MaxResponseHeaderBytes: maxHeads, MaxIdleConns: maxHooks, MaxIdleConnsPerHost: atOnce, IdleConnTimeout: time.Minute, DisableCompression: true,
			},
		},
	}, nil
}

// Run notes and sends until ctx ends.
func (s *Sender) Run(ctx context.Context) {
	defer s.client.CloseIdleConnections()
	for {
		if err := s.run(ctx); ctx.Err() == nil {
			s.log.WarnContext(ctx, "webhooks cannot be watched", slog.Any("error", err))
		}
		if !pause.For(ctx, pause.Resume) {
			return
		}
	}
}

// run is Run with one subscription. It returns when that ends.
func (s *Sender) run(ctx context.Context) error {
	var work sync.WaitGroup
	defer work.Wait()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	watch, err := s.store.bucket.Watch(ctx, keyHook+"*")
	if err != nil {
		return err
	}
	defer func() { _ = watch.Stop() }() // fails only when the connection is closed
	s.known = newKnown()
	for _, from := range s.sources {
		work.Go(func() { s.read(ctx, from) })
	}
	running := map[string]context.CancelFunc{}
	for {
		var entry jetstream.KeyValueEntry
		open := false
		select {
		case <-ctx.Done():
			return ctx.Err()
		case entry, open = <-watch.Updates():
		}
		if !open {
			return errors.New("the subscription has ended")
		}
		if entry == nil { // all that were there at first have come
			s.known.complete()
			continue
		}
		id := strings.TrimPrefix(entry.Key(), keyHook)
		if end := running[id]; end != nil {
			end()
			delete(running, id)
		}
		h := s.onRecord(ctx, id, entry)
		s.known.put(id, h, entry.Revision())
		if h != nil && h.Paused == "" && s.reaches(ctx, h) {
			sending, end := context.WithCancel(ctx)
			running[id] = end
			work.Go(func() { s.sendAll(sending, h) })
		}
	}
}

// onRecord reads the latest record of a webhook; nil when it was removed, with what is left of it.
func (s *Sender) onRecord(ctx context.Context, id string, entry jetstream.KeyValueEntry) *Hook {
	if entry.Operation() == jetstream.KeyValuePut {
		h, err := decode(id, entry.Value())
		if err != nil {
			s.log.WarnContext(ctx, "a webhook cannot be read", slog.Any("error", err))
		}
		return h
	}
	ctx, cancel := context.WithTimeout(ctx, opTimeout)
	defer cancel()
	err := s.store.clean(ctx, id)
	if err == nil && time.Since(entry.Created()) > forgetAfter {
		err = s.store.forget(ctx, s.store.subject(entry.Key()), entry.Revision())
	}
	if err != nil {
		s.log.DebugContext(ctx, "a removed webhook is not forgotten", slog.String("webhook", id), slog.Any("error", err))
	}
	return nil
}

// reaches reports whether this sender may reach a webhook; others may.
func (s *Sender) reaches(ctx context.Context, h *Hook) bool {
	target, err := h.target()
	switch {
	case err != nil:
	case !s.o.Allow.Match(target):
		err = fmt.Errorf("%s is not in --webhook-host", target)
	case h.plain() && !s.o.Plain:
		err = fmt.Errorf("%s: plain HTTP needs --webhook-plain", target)
	}
	if err != nil {
		s.noteError(ctx, h.ID, err)
	}
	return err == nil
}

// noteError notes the last error of a webhook.
func (s *Sender) noteError(ctx context.Context, id string, failure error) {
	old, err := s.store.stateOf(ctx, id)
	reason := prose.Cut(failure.Error(), maxReason)
	if err == nil && (old.LastError != reason || time.Since(old.LastErrorAt) > time.Second) {
		old.LastError, old.LastErrorAt = reason, time.Now().UTC()
		s.putState(ctx, id, old)
	}
}

func (s *Sender) putState(ctx context.Context, id string, of state) {
	ctx, cancel := context.WithTimeout(ctx, opTimeout)
	defer cancel()
	body, err := json.Marshal(&of)
	if err == nil {
		_, err = s.store.bucket.Put(ctx, keyState+id, body)
	}
	if err != nil && ctx.Err() == nil {
		s.log.DebugContext(ctx, "the state of a webhook is not noted", slog.String("webhook", id), slog.Any("error", err))
	}
}

// receiver is a webhook whose deliveries are made.
type receiver struct {
	*Hook

	waiting  int64       // deliveries, as they were counted last
	failing  atomic.Bool // the last attempt has failed: one at a time is tried
	mu       sync.Mutex
	notedAt  time.Time      // when a delivery was noted
	clearing bool           // an error is noted
	unmade   map[uint64]int // how often deliveries came for which no attempt was made, by their messages
}

// sendAll makes the deliveries of a webhook until ctx ends. A receiver that is slow holds up only
// its own.
func (s *Sender) sendAll(ctx context.Context, h *Hook) {
	r := &receiver{Hook: h, clearing: true, unmade: map[uint64]int{}}
	defer func() { s.metrics.Waiting(context.WithoutCancel(ctx), -r.waiting) }()
	for ctx.Err() == nil {
		err := s.sendSome(ctx, r)
		if err != nil && ctx.Err() == nil {
			s.log.WarnContext(ctx, "the deliveries of a webhook cannot be read; they are made later", slog.String("webhook", h.ID), slog.Any("error", err))
			pause.For(ctx, pause.Resume)
		}
	}
}

// sendSome makes some deliveries, at once.
func (s *Sender) sendSome(ctx context.Context, r *receiver) error {
	wait, cancel := context.WithTimeout(ctx, fetchWait)
	defer cancel()
	consumer, err := made(wait, s.store.stream, jetstream.ConsumerConfig{
		Durable: r.ID, Description: "deliveries of a webhook", FilterSubject: s.store.subject(keyWait, r.ID, ">"),
		AckPolicy: jetstream.AckExplicitPolicy, AckWait: s.o.AckWait, MaxAckPending: maxPending, DeliverPolicy: jetstream.DeliverAllPolicy,
	})
	if err != nil {
		return err
	}
	about := consumer.CachedInfo()
	waiting := int64(about.NumPending) + int64(about.NumAckPending) //nolint:gosec // at most maxWaiting
	s.metrics.Waiting(ctx, waiting-r.waiting)
	r.waiting = waiting
	n := atOnce
	if r.failing.Load() {
		n = 1
	}
	batch, err := consumer.Fetch(n, jetstream.FetchContext(wait))
	if err != nil {
		return err
	}
	var sending sync.WaitGroup
	for msg := range batch.Messages() {
		sending.Go(func() { s.deliver(ctx, r, msg) })
	}
	sending.Wait()
	if err := batch.Error(); err != nil && !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return nil
}

// deliver makes one attempt of a delivery.
func (s *Sender) deliver(ctx context.Context, r *receiver, msg jetstream.Msg) {
	about, err := msg.Metadata()
	ref, known := s.store.referenceOf(msg.Subject())
	if err != nil || !known || json.Unmarshal(msg.Data(), &ref.note) != nil {
		s.log.WarnContext(ctx, "a delivery of a webhook cannot be read", slog.String("subject", msg.Subject()), slog.Any("error", err))
		_ = msg.Term() // else it comes again
		return
	}
	reading, cancel := context.WithTimeout(ctx, opTimeout)
	body, err := s.body(reading, r.Hook, ref)
	cancel()
	var later time.Duration
	gone := errors.Is(err, errGone)
	if err == nil {
		later, err = s.post(ctx, r.Hook, ref, body)
		kind := ""
		if err != nil {
			kind = telemetry.ErrorType(err)
		}
		s.metrics.Attempted(ctx, kind)
	} else if !gone && time.Since(about.Timestamp) <= maxAge {
		r.noteUnmade(about.Sequence.Stream)
		s.noteError(ctx, r.ID, err)
		_ = msg.NakWithDelay(opTimeout)
		return
	}
	r.failing.Store(err != nil && !gone)
	finish, cancel := context.WithTimeout(context.WithoutCancel(ctx), opTimeout) // what has arrived is not sent again
	defer cancel()
	attempts := r.attempts(about)
	switch {
	case err == nil:
		err = s.store.forget(finish, msg.Subject(), about.Sequence.Stream)
		if err == nil && int(about.NumDelivered) > len(s.o.BackOff) { //nolint:gosec // few; it may be listed as failed
			err = s.store.stream.Purge(finish, jetstream.WithPurgeSubject(s.store.subject(keyFailed, r.ID, ref.key())))
		}
		s.settle(finish, msg, err)
		s.noteDelivered(finish, r)
	case ctx.Err() != nil: // the webhook has changed, or this process ends
		_ = msg.Nak()
	case errors.Is(err, errReceiverGone):
		s.noteError(finish, r.ID, err)
		s.settle(finish, msg, errors.Join(err, ignoreUnknown(s.store.pause(finish, r.ID, err.Error()))))
	case gone || attempts > len(s.o.BackOff) || time.Since(about.Timestamp) > maxAge:
		r.noteFailed()
		s.noteError(finish, r.ID, err)
		s.settle(finish, msg, s.fail(finish, r, ref, about, attempts, err))
	default:
		r.noteFailed()
		s.noteError(finish, r.ID, err)
		wait := s.o.BackOff[attempts-1]
		wait += time.Duration(rand.Int64N(int64(wait)/2+1)) - wait/4 //nolint:gosec // spreads load
		_ = msg.NakWithDelay(max(wait, later))                       // else it comes when its time to be acknowledged is over
	}
}

// settle acknowledges a delivery that is over. With an error it comes again.
func (s *Sender) settle(ctx context.Context, msg jetstream.Msg, err error) {
	if err != nil {
		s.log.DebugContext(ctx, "a delivery of a webhook is not settled", slog.String("subject", msg.Subject()), slog.Any("error", err))
		_ = msg.NakWithDelay(opTimeout)
		return
	}
	_ = msg.Ack() // else it comes again, and its message is gone
}

// fail lists a delivery as failed, and removes it from those that wait.
func (s *Sender) fail(ctx context.Context, r *receiver, ref reference, about *jetstream.MsgMetadata, attempts int, failure error) error {
	body, err := json.Marshal(Failure{
		Type: ref.Event, Error: prose.Cut(failure.Error(), maxReason), At: time.Now().UTC(), Tenant: ref.Tenant, Attempts: attempts,
	})
	if err == nil {
		_, err = s.fleet.JS.PublishMsg(ctx, &nats.Msg{
			Subject: s.store.subject(keyFailed, r.ID, ref.key()), Data: body, Header: nats.Header{jetstream.MsgTTLHeader: {failedAge.String()}},
		})
	}
	if err == nil {
		err = s.store.forget(ctx, s.store.subject(keyWait, r.ID, ref.key()), about.Sequence.Stream)
	}
	return err
}

// noteUnmade notes that a delivery came for which no attempt was made: what it is about could not
// be read. The server counts it with the attempts.
func (r *receiver) noteUnmade(sequence uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.unmade) > maxPending { // other senders may have made the rest
		clear(r.unmade)
	}
	r.unmade[sequence]++
}

// attempts is how many attempts were made of a delivery, as far as this sender knows.
func (r *receiver) attempts(about *jetstream.MsgMetadata) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return max(int(about.NumDelivered)-r.unmade[about.Sequence.Stream], 1) //nolint:gosec // few
}

func (r *receiver) noteFailed() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.clearing = true
}

// noteDelivered notes that a delivery has arrived, now and then, and that no error is the last one.
func (s *Sender) noteDelivered(ctx context.Context, r *receiver) {
	r.mu.Lock()
	due := r.clearing || time.Since(r.notedAt) > notePeriod
	if due {
		r.clearing, r.notedAt = false, time.Now()
	}
	r.mu.Unlock()
	if !due {
		return
	}
	s.putState(ctx, r.ID, state{DeliveredAt: time.Now().UTC()})
}

// errReceiverGone means that the receiver wants nothing more.
var errReceiverGone = errors.New("the receiver has answered 410 Gone")

// post makes the request of a delivery. With an error, it may say how long to wait.
func (s *Sender) post(ctx context.Context, h *Hook, ref reference, body []byte) (later time.Duration, err error) {
	select {
	case s.slots <- struct{}{}:
		defer func() { <-s.slots }()
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
	signer, err := standardwebhooks.NewWebhook(h.Secret)
	if err != nil {
		return 0, err
	}
	id, now := ref.eventID(), time.Now()
	signature, err := signer.Sign(id, now, body)
	if err != nil {
		return 0, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, h.URL, bytes.NewReader(body))
	if err != nil {
		return 0, err
	}
	request.Header = http.Header{
		"Content-Type": {"application/json"}, "User-Agent": {"toolfleet/" + s.o.Version},
		http.CanonicalHeaderKey(standardwebhooks.HeaderWebhookID):        {id},
		http.CanonicalHeaderKey(standardwebhooks.HeaderWebhookTimestamp): {strconv.FormatInt(now.Unix(), 10)},
		http.CanonicalHeaderKey(standardwebhooks.HeaderWebhookSignature): {signature},
	}
	answer, err := s.client.Do(request)
	if err != nil {
		if failure, is := errors.AsType[*url.Error](err); is {
			err = failure.Err // the text has the URL, which may have a secret
		}
		return 0, err
	}
	defer answer.Body.Close()
	_, _ = io.CopyN(io.Discard, answer.Body, maxAnswer) // so that the connection can be used again; the status is the answer
	switch {
	case answer.StatusCode >= 200 && answer.StatusCode < 300:
		return 0, nil
	case answer.StatusCode == http.StatusGone:
		return 0, errReceiverGone
	case answer.StatusCode >= 300 && answer.StatusCode < 400:
		return 0, fmt.Errorf("the receiver has answered %d; redirects are not followed", answer.StatusCode)
	}
	seconds, _ := strconv.Atoi(answer.Header.Get("Retry-After")) // other forms are ignored
	return min(time.Duration(max(seconds, 0))*time.Second, maxRetryAfter), fmt.Errorf("the receiver has answered %d", answer.StatusCode)
}
