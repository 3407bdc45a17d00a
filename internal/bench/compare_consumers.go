package bench

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// keyed gives each resource a subject and a durable consumer with one message in flight, made when
// it is first used. Callers tell the workers of it; all workers then wait for its messages.
type keyed struct {
	*plain

	options   Options
	consumers sync.Map // protocol.LaneHash -> func() error
}

func startConsumers(ctx context.Context, nc *nats.Conn, o Options, w *witness) (engine, error) {
	p, err := startPlain(ctx, nc, o, w)
	if err != nil {
		return nil, err
	}
	k := &keyed{plain: p, options: o}
	p.subject = func(_ context.Context, call *protocol.Call) (string, error) {
		hash := call.Lane().Hash()
		// Whoever uses the key first makes the consumer, and the others wait; it outlives the call.
		made, known := k.consumers.Load(hash)
		if !known {
			made, _ = k.consumers.LoadOrStore(hash, sync.OnceValue(func() error { return k.make(ctx, string(hash)) }))
		}
		once, _ := made.(func() error)
		return plainSubject(o) + "." + string(hash), once()
	}
	return k, nil
}

// make makes the consumer of a key and has the workers serve it.
func (k *keyed) make(ctx context.Context, key string) error {
	_, err := k.stream.CreateConsumer(ctx, jetstream.ConsumerConfig{
		Durable: key, FilterSubject: plainSubject(k.options) + "." + key,
		AckPolicy: jetstream.AckExplicitPolicy, MaxAckPending: 1,
	})
	if err != nil {
		return fmt.Errorf("consumer of a key: %w", err)
	}
	var faults []error
	for _, worker := range k.workers {
		own, err := worker.js.Consumer(ctx, plainSubject(k.options), key)
		if err == nil {
			err = worker.consume(ctx, own)
		}
		faults = append(faults, err)
	}
	return errors.Join(faults...)
}
