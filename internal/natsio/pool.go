package natsio

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

const (
	maxHeldLanes    = 1 << 20 // MaxAckPending: every held lane is one unacknowledged message
	maxWaitingPulls = 1 << 16

	maxReaping   = 1 << 20         // entries that workers look after right now, and calls that wait for their time
	leastReaping = 1 << 16         // what fleets of earlier versions have
	reaperWait   = 5 * time.Second // after which another worker looks after what a lost one was about to
)

func readyConfig(fleet protocol.Fleet, pool protocol.Pool, ackWait time.Duration) jetstream.ConsumerConfig {
	return jetstream.ConsumerConfig{
		Durable: wire.ReadyConsumer(pool), FilterSubject: wire.ReadySubject(fleet, pool, "*"),
		AckPolicy: jetstream.AckExplicitPolicy, AckWait: cmp.Or(ackWait, DefaultAckWait),
		MaxDeliver: -1, MaxAckPending: maxHeldLanes, MaxWaiting: maxWaitingPulls,
	}
}

func reaperConfig(fleet protocol.Fleet, pool protocol.Pool) jetstream.ConsumerConfig {
	return jetstream.ConsumerConfig{
		Durable: wire.CareConsumer(pool), FilterSubject: wire.MailboxesFilter(fleet, pool),
		AckPolicy: jetstream.AckExplicitPolicy, AckWait: reaperWait, MaxDeliver: -1, MaxAckPending: maxReaping, HeadersOnly: true,
	}
}

// MakePool makes what [EnsurePool] and [EnsureReaper] check where it is missing, for workers that
// have no right to: who may make a consumer may change it, and with it which lanes a pool gets.
func MakePool(ctx context.Context, js jetstream.JetStream, fleet protocol.Fleet, pool protocol.Pool) error {
	for _, want := range []jetstream.ConsumerConfig{readyConfig(fleet, pool, 0), reaperConfig(fleet, pool)} {
		if _, _, err := ensureConsumer(ctx, js, wire.CallsStream(fleet), want); err != nil {
			return fmt.Errorf("make pool %s: %w", pool, err)
		}
	}
	return nil
}

// RemovePool removes what [MakePool] makes. No worker of the pool may run. What waits in it stays.
func RemovePool(ctx context.Context, js jetstream.JetStream, fleet protocol.Fleet, pool protocol.Pool) error {
	var errs []error
	for _, name := range []string{wire.ReadyConsumer(pool), wire.CareConsumer(pool)} {
		err := js.DeleteConsumer(ctx, wire.CallsStream(fleet), name)
		if err != nil && !errors.Is(err, jetstream.ErrConsumerNotFound) {
			errs = append(errs, fmt.Errorf("remove pool %s: %w", pool, err))
		}
	}
	return errors.Join(errs...)
}

// Pools lists the pools of a server that a worker has served, or that were made, sorted.
func Pools(ctx context.Context, js jetstream.JetStream, fleet protocol.Fleet) (pools []protocol.Pool, err error) {
	stream, err := js.Stream(ctx, wire.CallsStream(fleet))
	if err != nil {
		return nil, fmt.Errorf("list pools: %w", err)
	}
	names := stream.ConsumerNames(ctx)
	for name := range names.Name() {
		if pool, is := strings.CutPrefix(name, wire.ReadyConsumer("")); is {
			pools = append(pools, protocol.Pool(pool))
		}
	}
	if err := names.Err(); err != nil {
		return nil, fmt.Errorf("list pools: %w", err)
	}
	slices.Sort(pools)
	return pools, nil
}

// EnsurePool makes or checks the consumer that hands out a pool's ready lanes, and returns it with
// its lease length. An ackWait of 0 takes what exists, or [DefaultAckWait] for a new consumer;
// another value must match. Errors about a consumer that exists wrap [ErrTopology], those about
// what the NATS user may not do [ErrRights]. It is safe to run from many processes at once.
func EnsurePool(ctx context.Context, js jetstream.JetStream, fleet protocol.Fleet, pool protocol.Pool, ackWait time.Duration) (jetstream.Consumer, time.Duration, error) {
	want := readyConfig(fleet, pool, ackWait)
	if err := CheckRights(ctx, js.Conn(), PoolRights(fleet, pool)); err != nil {
		return nil, 0, fmt.Errorf("take calls of pool %s: %w", pool, err)
	}
	consumer, differences, err := ensureConsumer(ctx, js, wire.CallsStream(fleet), want)
	if err != nil {
		return nil, 0, err
	}
	have := consumer.CachedInfo().Config
	if ackWait != 0 && have.AckWait != ackWait {
		differences = append(differences, fmt.Errorf("the pool's lease is %s, not %s, and --lease does not change it: omit --lease", have.AckWait, ackWait))
	}
	if have.AckWait > MaxAckWait {
		differences = append(differences, fmt.Errorf("lease is %s, must be at most %s: nats consumer edit --wait", have.AckWait, MaxAckWait))
	}
	if len(differences) > 0 {
		return nil, 0, differs(wire.CallsStream(fleet), want.Durable, differences)
	}
	return consumer, have.AckWait, nil
}

// EnsureReaper makes or checks the consumer by which a pool's workers find what waits in its
// mailboxes. Errors are those of [EnsurePool], whose rights include all that it takes but to make
// it.
func EnsureReaper(ctx context.Context, js jetstream.JetStream, fleet protocol.Fleet, pool protocol.Pool) (jetstream.Consumer, error) {
	want := reaperConfig(fleet, pool)
	consumer, differences, err := ensureConsumer(ctx, js, wire.CallsStream(fleet), want)
	if err == nil && len(differences) > 0 {
		err = differs(wire.CallsStream(fleet), want.Durable, differences)
	}
	return consumer, err
}

// ensureConsumer makes a missing consumer, and returns how an existing one differs.
func ensureConsumer(ctx context.Context, js jetstream.JetStream, stream string, want jetstream.ConsumerConfig) (jetstream.Consumer, []error, error) {
	consumer, err := js.Consumer(ctx, stream, want.Durable)
	if errors.Is(err, jetstream.ErrConsumerNotFound) {
		create := Rights{Publish: []string{"$JS.API.CONSUMER.CREATE." + stream + "." + want.Durable + "." + want.FilterSubject}}
		if err := CheckRights(ctx, js.Conn(), create); err != nil {
			return nil, nil, fmt.Errorf("make consumer %s of stream %s: %w; coordinator serve --pools makes those of a pool", want.Durable, stream, err)
		}
		consumer, err = js.CreateConsumer(ctx, stream, want)
		if errors.Is(err, jetstream.ErrConsumerExists) { // another process was faster
			consumer, err = js.Consumer(ctx, stream, want.Durable)
		}
	}
	if err != nil {
		return nil, nil, fmt.Errorf("consumer %s of stream %s: %w", want.Durable, stream, err)
	}
	return consumer, comparePool(consumer.CachedInfo().Config, want), nil
}

func differs(stream, consumer string, differences []error) error {
	return fmt.Errorf("consumer %s of stream %s: %w: %w", consumer, stream, ErrTopology, errors.Join(differences...))
}

// comparePool names every setting with which lanes would be lost.
func comparePool(have, want jetstream.ConsumerConfig) []error {
	var differences []error
	check := func(setting string, same bool, have, want any) {
		if !same {
			differences = append(differences, fmt.Errorf("%s is %v, must be %v", setting, have, want))
		}
	}
	check("filter_subject", have.FilterSubject == want.FilterSubject, have.FilterSubject, want.FilterSubject)
	check("ack_policy", have.AckPolicy == want.AckPolicy, have.AckPolicy, want.AckPolicy)
	check("max_deliver", have.MaxDeliver <= 0, have.MaxDeliver, want.MaxDeliver)
	least := want.MaxAckPending
	if want.HeadersOnly { // the reaper's
		least = leastReaping
	}
	check("max_ack_pending", have.MaxAckPending <= 0 || have.MaxAckPending >= least, have.MaxAckPending, fmt.Sprintf("%d or more", least))
	return differences
}

// Describe answers requests for the list of a pool's workers or coordinators, until stop is called.
// From the end of ctx on the process drains.
// Without the right to do so the process works all the same.
func Describe(ctx context.Context, nc *nats.Conn, fleet protocol.Fleet, pool protocol.Pool, self func() wire.WorkerInfo, logger *slog.Logger) (stop func()) {
	requests, err := nc.Subscribe(wire.WhoSubject(fleet, pool), func(request *nats.Msg) {
		info := self()
		info.Draining = ctx.Err() != nil
		body, err := wire.Encode(&info)
		if err == nil {
			err = request.Respond(body)
		}
		if err != nil {
			logger.DebugContext(ctx, "request for the list of workers cannot be answered", slog.Any("error", err))
		}
	})
	if err != nil {
		logger.WarnContext(ctx, "this process is not in lists of workers", slog.Any("error", err))
		return func() {}
	}
	return func() { _ = requests.Unsubscribe() } // fails only when the connection is closed
}
