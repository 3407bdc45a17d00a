package limits

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolfleet/toolfleet/internal/system/pause"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Watch is the rules of a fleet as a worker knows them. Make one with [NewWatch], call Load once,
// and let Run keep it up to date. Rules is safe for concurrent use.
type Watch struct {
	js      jetstream.JetStream
	fleet   protocol.Fleet
	logger  *slog.Logger
	changed func() // called after the rules have changed

	rules    atomic.Pointer[Rules] // nil without rules, so that a holder compares one pointer
	revision uint64
}

const (
	// readPeriod is how often the rules are read although no change was heard of.
	readPeriod = 5 * time.Second
	// readAgain is after how long they are read once more after a change: on several servers, the
	// first answer may come from one that is behind.
	readAgain   = 300 * time.Millisecond
	readTimeout = time.Second
)

// NewWatch watches nothing yet. changed is called by the goroutine of Run.
func NewWatch(js jetstream.JetStream, fleet protocol.Fleet, logger *slog.Logger, changed func()) *Watch {
	return &Watch{js: js, fleet: fleet, logger: logger, changed: changed}
}

// Rules returns the rules; nil without any, and without a watch.
func (w *Watch) Rules() *Rules {
	if w == nil {
		return nil
	}
	return w.rules.Load()
}

// Load reads the rules. After an error they are as they were.
func (w *Watch) Load(ctx context.Context) error {
	msg, err := w.request(ctx)
	switch {
	case err != nil: // without the bucket no server answers, and a listener to all requests hides that
		ctx, cancel := context.WithTimeout(ctx, readTimeout)
		defer cancel()
		if _, missing := w.js.Stream(ctx, "KV_"+wire.LimitsBucket(w.fleet)); errors.Is(missing, jetstream.ErrStreamNotFound) {
			w.store(nil, 0)
			return nil
		}
		return fmt.Errorf("read the limits of the fleet: %w", err)
	case msg.Header.Get("Status") == "404" && w.revision == 0: // later, a server that is behind has none: the key is never removed
		return nil
	case msg.Header.Get("Status") != "":
		return fmt.Errorf("read the limits of the fleet: %s %s", msg.Header.Get("Status"), msg.Header.Get("Description"))
	}
	rules, err := decode(msg.Data)
	if err != nil {
		return err
	}
	var revision uint64
	_, _ = fmt.Sscan(msg.Header.Get(jetstream.SequenceHeader), &revision)
	w.store(rules, revision)
	return nil
}

func (w *Watch) request(ctx context.Context) (*nats.Msg, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	return w.js.Conn().RequestWithContext(ctx, "$JS.API.DIRECT.GET.KV_"+wire.LimitsBucket(w.fleet)+"."+wire.LimitsSubject(w.fleet), nil)
}

// store keeps rules that are newer than those that are known; a bucket that is gone has none.
func (w *Watch) store(rules *Rules, revision uint64) {
	if revision == w.revision || revision != 0 && revision < w.revision {
		return
	}
	if w.revision = revision; len(rules.List()) == 0 {
		rules = nil
	}
	if before := w.rules.Swap(rules); before != rules {
		w.changed()
	}
}

// Run reads the rules whenever they change, until ctx ends.
func (w *Watch) Run(ctx context.Context) {
	hint := make(chan struct{}, 1)
	subscription, err := w.js.Conn().Subscribe(wire.LimitsSubject(w.fleet), func(*nats.Msg) {
		select {
		case hint <- struct{}{}:
		default:
		}
	})
	if err == nil {
		defer func() { _ = subscription.Unsubscribe() }() // fails only when the connection is closed
	}
	timer := time.NewTimer(readPeriod)
	defer timer.Stop()
	for failing := false; ; {
		again := readPeriod
		select {
		case <-ctx.Done():
			return
		case <-hint:
			again = readAgain
		case <-timer.C:
		}
		err := w.Load(ctx)
		if err != nil {
			if again = readAgain; !failing && ctx.Err() == nil {
				w.logger.WarnContext(ctx, "limits cannot be read: those that were read last stay in force", slog.Any("error", err))
			}
		}
		failing = err != nil
		timer.Reset(again)
	}
}

// LoadUntil reads the rules until that succeeds. It reports false when ctx ends first.
func (w *Watch) LoadUntil(ctx context.Context) bool {
	return pause.Until(ctx, pause.Resume, func() bool {
		err := w.Load(ctx)
		if err != nil {
			w.logger.WarnContext(ctx, "limits cannot be read: no call starts before they are", slog.Any("error", err))
		}
		return err == nil
	})
}
