package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolfleet/toolfleet/internal/system/pause"
	"github.com/toolfleet/toolfleet/internal/wire"
)

// Baseline is what bare NATS does on the same server.
type Baseline struct {
	// PublishPerS is JetStream publishes acknowledged, [publishers] at a time, to a
	// file stream: the ceiling of one durable write a call.
	PublishPerS float64 `json:"jetstream_publish_per_s"`
	// PublishP50US is how long a publish takes that is the only one under way.
	PublishP50US float64 `json:"jetstream_publish_p50_us"`
	// RequestReplyPerS is core NATS requests answered, as many at a time as there
	// are callers: nothing durable, no order.
	RequestReplyPerS float64 `json:"request_reply_per_s"`
}

const publishers = 64

func measureBaseline(ctx context.Context, nc *nats.Conn, o Options) (b Baseline, err error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return b, err
	}
	subject := string(o.Fleet) + "-bench-baseline"
	info, err := js.Stream(ctx, wire.CallsStream(o.Fleet))
	if err != nil {
		return b, fmt.Errorf("baseline: %w", err)
	}
	if _, err := js.CreateStream(ctx, jetstream.StreamConfig{
		Name: subject, Subjects: []string{subject + ".>"}, Storage: jetstream.FileStorage,
		Replicas: info.CachedInfo().Config.Replicas,
	}); err != nil {
		return b, fmt.Errorf("baseline: %w", err)
	}
	defer func() { err = errors.Join(err, js.DeleteStream(context.WithoutCancel(ctx), subject)) }()
	body := make([]byte, 512+o.Payload) // about what a call has
	publish := func(i int) error {
		_, err := js.Publish(ctx, fmt.Sprintf("%s.%d", subject, i), body)
		return err
	}
	if b.PublishPerS, err = rate(ctx, publishers, o.Baseline, publish); err != nil {
		return b, fmt.Errorf("baseline publish: %w", err)
	}
	var took []time.Duration
	if _, err = rate(ctx, 1, o.Baseline, func(i int) error {
		start := time.Now()
		defer func() { took = append(took, time.Since(start)) }()
		return publish(i)
	}); err != nil {
		return b, fmt.Errorf("baseline publish: %w", err)
	}
	slices.Sort(took)
	b.PublishP50US = micros(took[len(took)/2])
	other, err := o.Connect("bench responder")
	if err != nil {
		return b, err
	}
	defer other.Close()
	if _, err := other.Subscribe(subject+"-echo", func(msg *nats.Msg) { _ = msg.Respond(body) }); err != nil {
		return b, err
	}
	if err := other.Flush(); err != nil {
		return b, err
	}
	request := func(int) error {
		_, err := nc.RequestWithContext(ctx, subject+"-echo", body)
		return err
	}
	if !pause.Until(ctx, time.Millisecond, func() bool { return !errors.Is(request(0), nats.ErrNoResponders) }) {
		return b, ctx.Err() // the responder's server has not told the others yet
	}
	if b.RequestReplyPerS, err = rate(ctx, o.Callers, o.Baseline, request); err != nil {
		return b, fmt.Errorf("baseline request: %w", err)
	}
	return b, nil
}

// rate counts how often do succeeds per second, with n of them at a time. Of several errors it
// returns one.
func rate(ctx context.Context, n int, d time.Duration, do func(i int) error) (float64, error) {
	var count atomic.Int64
	var group sync.WaitGroup
	faults := make([]error, n)
	start := time.Now()
	for i := range n {
		group.Go(func() {
			for time.Since(start) < d && ctx.Err() == nil {
				if faults[i] = do(i); faults[i] != nil {
					return
				}
				count.Add(1)
			}
		})
	}
	group.Wait()
	return float64(count.Load()) / time.Since(start).Seconds(), cmp.Or(faults...)
}
