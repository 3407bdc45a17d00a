package bench

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

const partitions = 64

// startPartitions gives each of a fixed number of partitions a subject and a durable consumer with
// one message in flight. Any worker takes the next message of any partition. Resources that share a
// partition wait for each other.
func startPartitions(ctx context.Context, nc *nats.Conn, o Options, w *witness) (engine, error) {
	p, err := startPlain(ctx, nc, o, w)
	if err != nil {
		return nil, err
	}
	p.subject = func(_ context.Context, call *protocol.Call) (string, error) {
		return fmt.Sprintf("%s.%d.%s", plainSubject(o), partition(call.Lane(), partitions), wire.HashLane(call.Lane())), nil
	}
	for i := range partitions {
		consumer, err := p.stream.CreateConsumer(ctx, jetstream.ConsumerConfig{
			Durable: fmt.Sprintf("partition-%d", i), FilterSubject: fmt.Sprintf("%s.%d.*", plainSubject(o), i),
			AckPolicy: jetstream.AckExplicitPolicy, MaxAckPending: 1,
		})
		if err != nil {
			return nil, errors.Join(fmt.Errorf("partition %d: %w", i, err), p.end(ctx))
		}
		for _, worker := range p.workers {
			own, err := worker.js.Consumer(ctx, plainSubject(o), consumer.CachedInfo().Name)
			if err == nil {
				err = worker.consume(ctx, own)
			}
			if err != nil {
				return nil, errors.Join(fmt.Errorf("partition %d: %w", i, err), p.end(ctx))
			}
		}
	}
	return p, nil
}

// partition is where a lane belongs, for ever.
func partition(l protocol.Lane, n int) int {
	h := fnv.New32a()
	_, _ = h.Write([]byte(l)) // a hash takes everything
	return int(h.Sum32() % uint32(n))
}
