package natsio

import (
	"context"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// objectPatience is how long a reader of an object waits before it looks whether it is still
// wanted.
const objectPatience = time.Second

// GetObject opens an object as [jetstream.ObjectStore].Get does, for a reader that notices
// that ctx was cancelled. The client's own sleeps until ctx's deadline when no more comes, as after
// the loss of the connection, and whoever stops meanwhile would have to wait for that.
func GetObject(ctx context.Context, store jetstream.ObjectStore, name string) (jetstream.ObjectResult, error) {
	return store.Get(restless{ctx}, name) //nolint:contextcheck // it ends with ctx
}

// restless is a context whose deadline is always a moment away. Nothing ends then: readers
// that wait for it look at Done, and wait again.
type restless struct{ context.Context } //nolint:containedctx // it is one

// Deadline implements [context.Context].
func (restless) Deadline() (time.Time, bool) { return time.Now().Add(objectPatience), true }
