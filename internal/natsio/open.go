package natsio

import (
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go"
)

const (
	// openTry bounds one question for a stream or a bucket, and openPatience all of them.
	openTry      = 5 * time.Second
	openPatience = 30 * time.Second
)

// Open asks for a stream or a bucket, and again while nobody answers, for up to 30 s or until ctx
// ends: servers that choose a leader are silent, and a question put to them then is lost.
// The question is a method of [jetstream.JetStream].
func Open[T any](ctx context.Context, ask func(ctx context.Context, name string) (T, error), name string) (T, error) {
	for began := time.Now(); ; {
		try, cancel := context.WithTimeout(ctx, openTry)
		found, err := ask(try, name)
		cancel()
		silent := errors.Is(err, context.DeadlineExceeded) || errors.Is(err, nats.ErrTimeout)
		if !silent || ctx.Err() != nil || time.Since(began) >= openPatience {
			return found, err
		}
	}
}
