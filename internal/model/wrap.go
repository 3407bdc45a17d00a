package model

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/toolfleet/toolfleet/internal/model/endpoint"
	"github.com/toolfleet/toolfleet/internal/system/pause"
	"github.com/toolfleet/toolfleet/internal/telemetry"
	"github.com/toolfleet/toolfleet/pkg/loop"
)

// Limits are the limits of providers that the processes of a fleet share.
type Limits interface {
	// SpendModel takes a request and tokens, or returns after how long to try again.
	SpendModel(ctx context.Context, provider string, tokens int64) (wait time.Duration, err error)
	// CorrectModel takes further tokens, or gives some back.
	CorrectModel(ctx context.Context, provider string, tokens int64) error
}

// Gate has models wait for the limits of their providers, once these are known: models are opened
// before the fleet is. Limits that cannot be asked stop no request: the provider has its own.
type Gate struct{ limits atomic.Pointer[Limits] }

// Bind sets the limits.
func (g *Gate) Bind(limits Limits) { g.limits.Store(&limits) }

// enter waits until a request of about so many tokens may be sent, and says to delta why it waits.
// leave is called with what the reply used.
func (g *Gate) enter(ctx context.Context, provider string, expected int64, delta func(loop.Delta)) (leave func(used int64), err error) {
	if g == nil || g.limits.Load() == nil {
		return func(int64) {}, nil
	}
	limits := *g.limits.Load()
	for {
		wait, err := limits.SpendModel(ctx, provider, expected)
		if err != nil {
			return func(int64) {}, nil //nolint:nilerr // see Gate
		}
		if wait <= 0 {
			return func(used int64) {
				_ = limits.CorrectModel(context.WithoutCancel(ctx), provider, used-expected) // see Gate
			}, nil
		}
		delta(loop.Delta{
			Waits: fmt.Sprintf("the limit of model/%s is used up; next request in %v", provider, max(wait.Round(100*time.Millisecond), 100*time.Millisecond)),
			Pause: wait,
		})
		if !pause.For(ctx, wait) {
			return nil, fmt.Errorf("wait for the limit of model/%s: %w", provider, context.Cause(ctx))
		}
	}
}

// measured is a model whose requests wait for the limits of its provider, and whose replies are in
// the metrics.
type measured struct {
	loop.Model

	provider string
	gate     *Gate
	metrics  *telemetry.ModelMetrics
}

var _ loop.Provider = measured{}

// Reply implements [loop.Model].
func (m measured) Reply(ctx context.Context, req loop.Request, delta func(loop.Delta)) (loop.Reply, error) {
	asked := req.Tokens()
	came := time.Now()
	leave, err := m.gate.enter(ctx, m.provider, asked, delta)
	if waited := time.Since(came); waited > time.Millisecond {
		m.metrics.Waited(ctx, waited)
	}
	if err != nil {
		return loop.Reply{}, err
	}
	begun, first, failed := time.Now(), time.Duration(0), int64(0)
	reply, err := m.Model.Reply(ctx, req, func(d loop.Delta) {
		switch {
		case d.Failed != nil:
			failed += d.Failed.Usage.Total()
		case first == 0 && d.Waits == "":
			first = time.Since(begun)
		}
		delta(d)
	})
	if err == nil {
		reply.Usage = reply.Counted(asked)
	}
	leave(failed + reply.Usage.Total())
	m.metrics.Replied(ctx, time.Since(begun), first, telemetry.Tokens{
		Input: reply.Usage.InputTokens, Output: reply.Usage.OutputTokens,
		Cached: reply.Usage.CachedTokens, Reasoning: reply.Usage.ReasoningTokens,
	}, err)
	return reply, err
}

// Provider implements [loop.Provider] with what the model says; "" when it says nothing.
func (m measured) Provider() string { return providerOf(m.Model) }

// Views implements [loop.Viewer] with what the model says; true when it says nothing.
func (m measured) Views(mediaType string) bool { return views(m.Model, mediaType) }

func views(m loop.Model, mediaType string) bool {
	viewer, is := m.(loop.Viewer)
	return !is || viewer.Views(mediaType)
}

func providerOf(m loop.Model) string {
	if provider, is := m.(loop.Provider); is {
		return provider.Provider()
	}
	return ""
}

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
// made its attempts, and for a minute without asking it. It has the native tools of first.
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
