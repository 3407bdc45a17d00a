package natsio

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

const (
	// lastSubjects is how many subjects are looked up by one consumer.
	lastSubjects = 256
	// lastBatch is how many messages are asked for at once, and bareBatch without their bodies.
	lastBatch, bareBatch = 256, 1024
	// lastWait is how long messages are waited for that a server has announced; those that are
	// removed meanwhile never come.
	lastWait = 5 * time.Second
	// lastIdle is when the server forgets a consumer whose reader was lost.
	lastIdle = time.Minute
)

// EachLast tells the last message of each subject of a stream; subjects may have wildcards. Bare
// ones come without their bodies. It asks once for many of them, and may be answered by a replica
// that is behind: whoever knows that a subject has a message, and is told none, asks the stream's
// leader. A subject that gets a message meanwhile may be told twice, the new one last. It ends with
// the first error of tell.
func EachLast(ctx context.Context, stream jetstream.Stream, subjects []string, bare bool, tell func(jetstream.Msg) error) error {
	for some := range slices.Chunk(subjects, lastSubjects) {
		if err := eachLast(ctx, stream, some, bare, tell); err != nil {
			return fmt.Errorf("read the last messages of stream %s: %w", stream.CachedInfo().Config.Name, err)
		}
	}
	return nil
}

func eachLast(ctx context.Context, stream jetstream.Stream, subjects []string, bare bool, tell func(jetstream.Msg) error) error {
	consumer, err := stream.CreateConsumer(ctx, jetstream.ConsumerConfig{
		FilterSubjects: subjects, DeliverPolicy: jetstream.DeliverLastPerSubjectPolicy, HeadersOnly: bare,
		AckPolicy: jetstream.AckNonePolicy, MemoryStorage: true, InactiveThreshold: lastIdle,
	})
	if err != nil {
		return err
	}
	defer func() { // else it is forgotten by itself
		_ = stream.DeleteConsumer(context.WithoutCancel(ctx), consumer.CachedInfo().Name)
	}()
	batch := uint64(lastBatch)
	if bare {
		batch = bareBatch
	}
	for left := consumer.CachedInfo().NumPending; left > 0 && err == nil; {
		left, err = fetch(ctx, consumer, min(left, batch), tell)
	}
	return err
}

// fetch tells so many messages at most, and returns how many are left; 0 when none came in time.
func fetch(ctx context.Context, consumer jetstream.Consumer, most uint64, tell func(jetstream.Msg) error) (left uint64, err error) {
	wait, cancel := context.WithTimeout(ctx, lastWait)
	defer cancel()
	messages, err := consumer.Fetch(int(most), jetstream.FetchContext(wait)) //nolint:gosec // at most a batch
	if err != nil {
		return 0, err
	}
	for msg := range messages.Messages() {
		about, err := msg.Metadata()
		if err == nil {
			err = tell(msg)
		}
		if err != nil {
			return 0, err
		}
		left = about.NumPending
	}
	if err := messages.Error(); ctx.Err() != nil || !errors.Is(err, context.DeadlineExceeded) {
		return left, err
	}
	return left, nil
}
