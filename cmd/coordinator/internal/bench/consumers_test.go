package bench

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// keyed gives each resource a subject and a durable consumer with one message in flight, made when
// it is first used. Callers tell the workers of it; all workers then wait for its messages.
type keyed struct {
	*plain

	options   Options
	consumers sync.Map // wire.LaneHash -> *keyConsumer
}

// keyConsumer is the consumer of a key: making it is tried once.
type keyConsumer struct{ ready func() error }

func startConsumers(ctx context.Context, nc *nats.Conn, o Options, w *witness) (engine, error) {
	p, err := startPlain(ctx, nc, o, w)
	if err != nil {
		return nil, err
	}
	k := &keyed{plain: p, options: o}
	p.subject = func(_ context.Context, call *protocol.Call) (string, error) {
		hash := wire.HashLane(call.Lane())
		return plainSubject(o) + "." + string(hash), k.ensure(ctx, hash)
	}
	return k, nil
}

// ensure returns when a key has its consumer. Whoever uses the key first makes it, and the others
// wait; after a failure the next call tries again.
func (k *keyed) ensure(ctx context.Context, hash wire.LaneHash) error {
	made, known := k.consumers.Load(hash)
	if !known {
		made, _ = k.consumers.LoadOrStore(hash, &keyConsumer{sync.OnceValue(func() error { return k.make(ctx, string(hash)) })})
	}
	key, _ := made.(*keyConsumer)
	err := key.ready()
	if err != nil {
		k.consumers.CompareAndDelete(hash, key)
		k.options.Logger.WarnContext(ctx, "key has no consumer", slog.Any("error", err))
	}
	return err
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
