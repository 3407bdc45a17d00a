package store

import (
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go"
)

// Request sends a message, and waits for the answer no longer than limit. [NotStored] tells whether
// its error says that nothing was sent.
func (s *Store) Request(ctx context.Context, limit time.Duration, msg *nats.Msg) (*nats.Msg, error) {
	if err := ctx.Err(); err != nil {
		return nil, unsent{err}
	}
	if s.NC.IsClosed() {
		return nil, unsent{nats.ErrConnectionClosed}
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	answer, err := s.NC.RequestMsgWithContext(ctx, msg)
	for _, before := range []error{
		nats.ErrReconnectBufExceeded, nats.ErrDisconnected, nats.ErrConnectionDraining, nats.ErrMaxPayload,
	} {
		if errors.Is(err, before) {
			return nil, unsent{err}
		}
	}
	return answer, err // of a connection that breaks or is closed now, maybe behind the message
}

// unsent is the error of a request that did not leave this process.
type unsent struct{ error }

func (u unsent) Unwrap() error { return u.error }
