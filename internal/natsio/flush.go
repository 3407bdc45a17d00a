package natsio

import (
	"context"
	"time"

	"github.com/nats-io/nats.go"
)

// Flush waits until the server has taken what was sent, for a time at most, also when ctx has
// ended: it is for the last words of a process. A connection that is lost keeps nothing to send
// later, so there it returns at once.
func Flush(ctx context.Context, nc *nats.Conn, most time.Duration) error {
	if !nc.IsConnected() {
		return nats.ErrDisconnected
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), most)
	defer cancel()
	return nc.FlushWithContext(ctx)
}
