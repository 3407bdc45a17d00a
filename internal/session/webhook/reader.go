package webhook

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolfleet/toolfleet/internal/judge"
	"github.com/toolfleet/toolfleet/internal/session"
	"github.com/toolfleet/toolfleet/internal/system/pause"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

const (
	// readAtOnce is how many messages of a source are read at once, and readWait how long the first
	// one is waited for.
	readAtOnce = 64
	readWait   = 5 * time.Second
	// opTimeout bounds what a reader and a sender ask the fleet for.
	opTimeout = 5 * time.Second
	// countPeriod is how often the waiting deliveries of a webhook are counted.
	countPeriod = 5 * time.Second
)

// known are the webhooks that a sender knows: all, up to a revision.
type known struct {
	mu       sync.Mutex
	hooks    map[string]*Hook
	revision uint64 // of the latest record that has come
	whole    bool   // all that were there at first have come
	changed  chan struct{}
	counted  map[string]time.Time
}

func newKnown() *known {
	return &known{hooks: map[string]*Hook{}, changed: make(chan struct{}), counted: map[string]time.Time{}}
}

// put notes the latest record of a webhook, nil when it was removed.
func (k *known) put(id string, h *Hook, revision uint64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.hooks[id] = h; h == nil {
		delete(k.hooks, id)
		delete(k.counted, id)
	}
	k.revision = max(k.revision, revision)
	k.wake()
}

// complete notes that all records have come that were there at first.
func (k *known) complete() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.whole = true
	k.wake()
}

// wake wakes who waits for a change. The lock is held.
func (k *known) wake() {
	close(k.changed)
	k.changed = make(chan struct{})
}

// get returns the webhooks, and what is closed when they change.
func (k *known) get() (hooks []*Hook, whole bool, revision uint64, changed <-chan struct{}) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Collect(maps.Values(k.hooks)), k.whole, k.revision, k.changed
}

// mustCount reports whether it is time to count the waiting deliveries of a webhook.
func (k *known) mustCount(id string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if now := time.Now(); now.Sub(k.counted[id]) > countPeriod {
		k.counted[id] = now
		return true
	}
	return false
}

// current returns the webhooks that there are now: one that was added before the call is among
// them.
func (s *Sender) current(ctx context.Context) ([]*Hook, error) {
	ctx, cancel := context.WithTimeout(ctx, opTimeout)
	defer cancel()
	last, err := s.store.stream.GetLastMsgForSubject(ctx, s.store.subject(keyHook+"*"))
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	for {
		hooks, whole, revision, changed := s.known.get()
		if whole && revision >= last.Sequence {
			return hooks, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// has reports whether a source may have an event.
func (s source) has(e EventType) bool { return (e == CallEnded) != (s.name == "s") }

// wanted reports whether a webhook gets events of a source, and the first message that it gets: 0
// if that is not known.
func (s source) wanted(hooks []*Hook) (is bool, first uint64) {
	for _, h := range hooks {
		if h.Paused != "" || len(h.Events) > 0 && !slices.ContainsFunc(h.Events, s.has) {
			continue
		}
		begins := uint64(0)
		if since, has := h.Since[s.name]; has {
			begins = since + 1
		}
		if !is || begins < first {
			first = begins
		}
		is = true
	}
	return is, first
}

// readerName is the durable consumer of a source.
const readerName = "webhooks"

// read notes the events of a source for the webhooks that want them, until ctx ends. While no
// webhook wants them, the source has no consumer.
func (s *Sender) read(ctx context.Context, from source) {
	var consumer jetstream.Consumer
	for ctx.Err() == nil {
		hooks, whole, _, changed := s.known.get()
		is, first := from.wanted(hooks)
		if !whole || !is {
			if consumer = nil; whole {
				s.forgetReader(ctx, from)
			}
			select {
			case <-changed:
			case <-ctx.Done():
			}
			continue
		}
		err := error(nil)
		if consumer == nil {
			consumer, err = s.readerOf(ctx, from, first)
		}
		if err == nil {
			err = s.readSome(ctx, from, consumer)
		}
		if err != nil && ctx.Err() == nil {
			consumer = nil // it may be gone
			s.log.WarnContext(ctx, "events for webhooks cannot be read; they are read later", slog.String("stream", from.stream), slog.Any("error", err))
			pause.For(ctx, pause.Resume)
		}
	}
}

// forgetReader removes the consumer of a source that no webhook wants, as far as is known now.
func (s *Sender) forgetReader(ctx context.Context, from source) {
	hooks, err := s.current(ctx)
	if is, _ := from.wanted(hooks); err != nil || is {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, opTimeout)
	defer cancel()
	stream, err := from.js.Stream(ctx, from.stream)
	if err == nil {
		err = stream.DeleteConsumer(ctx, readerName)
	}
	if err != nil && !errors.Is(err, jetstream.ErrConsumerNotFound) && ctx.Err() == nil {
		s.log.WarnContext(ctx, "the reader of events without a webhook is not removed", slog.String("stream", from.stream), slog.Any("error", err))
	}
}

// readerOf returns the consumer of a source. A new one begins at the first message that a webhook
// gets, so one that was removed too early misses nothing.
func (s *Sender) readerOf(ctx context.Context, from source, first uint64) (jetstream.Consumer, error) {
	ctx, cancel := context.WithTimeout(ctx, opTimeout)
	defer cancel()
	stream, err := from.js.Stream(ctx, from.stream)
	if err != nil {
		return nil, err
	}
	config := jetstream.ConsumerConfig{
		Durable: readerName, Description: "reads events for webhooks", AckPolicy: jetstream.AckExplicitPolicy, AckWait: s.o.AckWait, MaxAckPending: 4 * readAtOnce,
		DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: first, FilterSubject: from.filter,
	}
	if first == 0 { // the process that has added the webhook did not know the source
		config.DeliverPolicy = jetstream.DeliverNewPolicy
	}
	return made(ctx, stream, config)
}

// made returns a durable consumer, which is made if it is missing.
func made(ctx context.Context, stream jetstream.Stream, config jetstream.ConsumerConfig) (jetstream.Consumer, error) {
	consumer, err := stream.Consumer(ctx, config.Durable)
	if errors.Is(err, jetstream.ErrConsumerNotFound) {
		if consumer, err = stream.CreateConsumer(ctx, config); errors.Is(err, jetstream.ErrConsumerExists) { // another process was faster
			consumer, err = stream.Consumer(ctx, config.Durable)
		}
	}
	return consumer, err
}

// readSome reads the messages that there are, or waits for the next one.
func (s *Sender) readSome(ctx context.Context, from source, consumer jetstream.Consumer) error {
	batch, err := consumer.FetchNoWait(readAtOnce)
	if err != nil {
		return err
	}
	messages := collect(batch)
	if err := batch.Error(); err != nil {
		return err
	}
	if len(messages) == 0 {
		wait, cancel := context.WithTimeout(ctx, readWait)
		defer cancel()
		if batch, err = consumer.Fetch(1, jetstream.FetchContext(wait)); err != nil {
			return err
		}
		messages = collect(batch)
		if err := batch.Error(); err != nil && !errors.Is(err, context.DeadlineExceeded) {
			return err
		}
	}
	all := make([][]found, len(messages))
	has := false
	for i, msg := range messages {
		if all[i], err = from.find(msg); err != nil { // as each time
			s.log.WarnContext(ctx, "a message cannot be read for webhooks", slog.String("stream", from.stream), slog.String("subject", msg.Subject()), slog.Any("error", err))
		}
		has = has || len(all[i]) > 0
	}
	var hooks []*Hook
	if has {
		if hooks, err = s.current(ctx); err != nil {
			return err // the messages come again
		}
	}
	origins := map[protocol.SessionID]origin{} // for this batch: the same name may be that of another session later
	for i, msg := range messages {
		err := s.route(ctx, from, msg, all[i], hooks, origins)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil:
			s.log.WarnContext(ctx, "an event is not noted for webhooks yet", slog.String("subject", msg.Subject()), slog.Any("error", err))
			err = msg.NakWithDelay(opTimeout)
		default:
			err = msg.Ack()
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func collect(batch jetstream.MessageBatch) (all []jetstream.Msg) {
	for msg := range batch.Messages() {
		all = append(all, msg)
	}
	return all
}

// route notes the events of a message for the webhooks that want them.
func (s *Sender) route(ctx context.Context, from source, msg jetstream.Msg, all []found, hooks []*Hook, origins map[protocol.SessionID]origin) error {
	for _, f := range all {
		about, err := msg.Metadata()
		if err != nil {
			return err
		}
		at := session.Position{Sequence: about.Sequence.Stream, Index: f.index}
		subject := wire.ResultSubject(s.fleet.Name, f.session, f.call)
		if from.name == "s" {
			subject = wire.EventSubject(s.fleet.Name, f.session)
		}
		if msg.Subject() != subject {
			continue // no session has journaled it, or no reader gets the result
		}
		for _, h := range hooks {
			if !h.wants(f.event, f.session) || at.Sequence <= h.Since[from.name] {
				continue
			}
			o, read := origins[f.session]
			if !read {
				if o, err = s.originOf(ctx, f.session); err != nil {
					return err
				}
				origins[f.session] = o
			}
			tenant := o.owner.Tenant
			if from.name != "s" && !o.known {
				if tenant, err = s.senderOf(ctx, msg.Headers(), protocol.CallRef{SessionID: f.session, ID: f.call}); err != nil {
					return err
				}
			}
			ofAgent := f.event == TurnEnded && o.parent != "" && h.Session == ""
			if h.Tenant != judge.EveryTenant && h.Tenant != tenant || ofAgent || from.name == "s" && !o.has(at) {
				continue
			}
			if err := s.noteFor(ctx, h, len(hooks), reference{from.name, at.Sequence, at.Index, note{f.event, tenant}}); err != nil {
				return err
			}
		}
	}
	return nil
}

func (s *Sender) originOf(ctx context.Context, id protocol.SessionID) (origin, error) {
	ctx, cancel := context.WithTimeout(ctx, opTimeout)
	defer cancel()
	return originOf(ctx, s.fleet, id)
}

// noteFor notes an event for one of the webhooks, and pauses it if too many wait.
func (s *Sender) noteFor(ctx context.Context, h *Hook, webhooks int, ref reference) error {
	ctx, cancel := context.WithTimeout(ctx, opTimeout)
	defer cancel()
	if s.known.mustCount(h.ID) {
		crowded, err := s.store.crowded(ctx, h.ID, webhooks)
		if err != nil {
			return err
		}
		if crowded {
			s.log.WarnContext(ctx, "a webhook has too many deliveries that wait or have failed, and is paused", slog.String("webhook", h.ID))
			return ignoreUnknown(s.store.pause(ctx, h.ID, "too many deliveries wait or have failed"))
		}
	}
	return s.store.note(ctx, h.ID, ref)
}

// ignoreUnknown is the error of a change, but for a webhook that was removed.
func ignoreUnknown(err error) error {
	if errors.Is(err, ErrUnknown) {
		return nil
	}
	return err
}
