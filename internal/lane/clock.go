package lane

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// clock tells the server's time, so that ages of messages are right even when
// the clocks of machines differ.
type clock struct{ offset atomic.Int64 } // server minus local, in nanoseconds

// sync measures the offset once; on failure the old one stays.
func (c *clock) sync(ctx context.Context, stream jetstream.Stream) error {
	ctx, cancel := context.WithTimeout(ctx, opTimeout)
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

// age is how long ago the server stored something, never negative.
func (c *clock) age(stored time.Time) time.Duration {
	return max(time.Now().Add(time.Duration(c.offset.Load())).Sub(stored), 0)
}
