package store

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// Clock tells the server's time, so that ages of messages are right even when
// the clocks of machines differ.
type Clock struct{ offset atomic.Int64 } // server minus local, in nanoseconds

// Sync measures the offset once; on failure the old one stays.
func (c *Clock) Sync(ctx context.Context, stream jetstream.Stream) error {
	ctx, cancel := context.WithTimeout(ctx, OpTimeout)
	defer cancel()
	before := time.Now()
	info, err := stream.Info(ctx)
	if err != nil {
		return err
	}
	middle := before.Add(time.Since(before) / 2)
	c.offset.Store(int64(info.TimeStamp.Sub(middle)))
	return nil
}

// Age is how long ago the server stored something, never negative.
func (c *Clock) Age(stored time.Time) time.Duration { return c.AgeAt(time.Now(), stored) }

// AgeAt is how long before a moment by this machine's clock the server stored something, never
// negative.
func (c *Clock) AgeAt(at, stored time.Time) time.Duration {
	return max(at.Add(time.Duration(c.offset.Load())).Sub(stored), 0)
}
