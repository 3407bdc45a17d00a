package workspace

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolfleet/toolfleet/internal/pause"
)

// SweepAge is how old a body is at least that is removed as garbage. It is more than [Store.Put]
// takes for new.
const SweepAge = 2 * refresh

// SweepEvery is the time between two sweeps of [KeepSwept], half of it at least.
const SweepEvery = time.Hour

// KeepSwept calls sweep now and then until ctx ends; failed has what goes wrong.
func KeepSwept(ctx context.Context, sweep func(context.Context) error, failed func(error)) {
	for pause.For(ctx, SweepEvery/2+rand.N(SweepEvery)) { //nolint:gosec // spreads them, no secret
		if err := sweep(ctx); err != nil && ctx.Err() == nil {
			failed(err)
		}
	}
}

// Sweep removes the bodies that no checkpoint needs and that are at least age old, and returns how
// many these were. They are left by commits that never happened and by workspaces that were
// removed. It can run at any time, and in several processes.
func (s *Store) Sweep(ctx context.Context, age time.Duration) (int, error) {
	if err := s.sweepUploads(ctx, time.Now().Add(-uploadsKept)); err != nil {
		return 0, fmt.Errorf("sweep uploads: %w", err)
	}
	old, err := s.bodies.before(ctx, time.Now().Add(-age))
	if err != nil {
		return 0, fmt.Errorf("sweep workspaces: %w", err)
	}
	if len(old) == 0 {
		return 0, nil
	}
	needed, err := s.needed(ctx) // after the list: what is stored from now on is too young to be in it
	if err != nil {
		return 0, fmt.Errorf("sweep workspaces: %w", err)
	}
	old = slices.DeleteFunc(old, func(o stored) bool { return needed[o.name] })
	if err := s.bodies.remove(ctx, old); err != nil {
		return 0, fmt.Errorf("sweep workspaces: %w", err)
	}
	return len(old), nil
}

// needed are the names of the bodies that checkpoints need.
func (s *Store) needed(ctx context.Context) (map[string]bool, error) {
	info, err := s.stream.Info(ctx)
	if err != nil {
		return nil, err
	}
	needed := map[string]bool{}
	if info.State.Msgs == 0 {
		return needed, nil
	}
	consumer, err := s.stream.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{HeadersOnly: true})
	if err != nil {
		return nil, err
	}
	messages, err := consumer.Messages()
	if err != nil {
		return nil, err
	}
	defer messages.Stop()
	for {
		msg, err := messages.Next(jetstream.NextContext(ctx))
		if err != nil {
			return nil, err
		}
		for name := range strings.SplitSeq(msg.Headers().Get(headerBodies), ",") {
			needed[name] = true
		}
		meta, err := msg.Metadata()
		if err != nil {
			return nil, err
		}
		if meta.NumPending == 0 {
			return needed, nil
		}
	}
}
