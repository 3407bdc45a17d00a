package store

import (
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Consumer is what the server says about a pool's consumer; nil when there is none.
func (s *Store) Consumer(ctx context.Context, pool protocol.Pool) (*jetstream.ConsumerInfo, error) {
	ctx, cancel := context.WithTimeout(ctx, OpTimeout)
	defer cancel()
	consumer, err := s.Calls.Consumer(ctx, s.Fleet.ReadyConsumer(pool))
	if errors.Is(err, jetstream.ErrConsumerNotFound) {
		return nil, nil //nolint:nilnil // none is an answer
	}
	if err != nil {
		return nil, fmt.Errorf("consumer of pool %s: %w", pool, err)
	}
	return consumer.CachedInfo(), nil
}
