package model

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/toolfleet/toolfleet/internal/model/endpoint"
	"github.com/toolfleet/toolfleet/pkg/loop"
)

// coolDown is how long a model is not asked whose provider was down, while the fallback replies.
const coolDown = time.Minute

// fallback is a model with another one for when its provider is down.
type fallback struct {
	first, other loop.Model
	name         string
	as           loop.Fallback // other

	mu   sync.Mutex
	down time.Time // when the provider of first was down last
}

var _ loop.Provider = (*fallback)(nil)

// WithFallback returns a model that asks other when the provider of first is down: once first has
// made its attempts, and for a minute without asking it. Native tools are those of first.
func WithFallback(first loop.Model, name string, other loop.Model, as loop.Fallback) loop.Model {
	return &fallback{first: first, name: name, other: other, as: as}
}

// Provider implements [loop.Provider].
func (f *fallback) Provider() string { return providerOf(f.first) }

// Fallback is the model that replies when the provider of the first one is down.
func (f *fallback) Fallback() loop.Fallback { return f.as }

// Views implements [loop.Viewer] with what the first model says.
func (f *fallback) Views(mediaType string) bool { return views(f.first, mediaType) }

// Reply implements [loop.Model].
func (f *fallback) Reply(ctx context.Context, req loop.Request, delta func(loop.Delta)) (loop.Reply, error) {
	var down error
	if !f.isDown() {
		mine := req
		mine.Messages = slices.Clone(req.Messages) // a request is the callee's
		reply, err := f.first.Reply(ctx, mine, delta)
		failure, is := errors.AsType[*endpoint.Error](err)
		if !is || !failure.Down() || ctx.Err() != nil {
			return reply, err
		}
		down = err
		f.mu.Lock()
		f.down = time.Now()
		f.mu.Unlock()
	}
	why := "the model " + f.name + " was down less than a minute ago"
	if down != nil {
		why = down.Error()
	}
	delta(loop.Delta{Waits: fmt.Sprintf("%s; %s replies instead", why, f.as.Model)})
	reply, err := f.other.Reply(ctx, req, func(d loop.Delta) {
		if d.Failed != nil {
			d.Failed.Fallback = &f.as
		}
		delta(d)
	})
	if err != nil {
		if down != nil {
			return reply, fmt.Errorf("%w (asked after: %w)", err, down)
		}
		return reply, err
	}
	reply.Fallback = &f.as
	return reply, nil
}

func (f *fallback) isDown() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return !f.down.IsZero() && time.Since(f.down) < coolDown
}
