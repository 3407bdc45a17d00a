// Package pause waits for time to pass, for as long as somebody wants it to.
package pause

import (
	"context"
	"time"
)

// For waits for d and reports true, or reports false as soon as ctx has ended. With a
// d of 0 or less it waits for nothing, and reports whether ctx goes on.
func For(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
