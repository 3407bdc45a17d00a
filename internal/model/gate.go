package model

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/toolfleet/toolfleet/internal/pause"
	"github.com/toolfleet/toolfleet/internal/telemetry"
	"github.com/toolfleet/toolfleet/pkg/loop"
)

// Limits are the limits of providers that the processes of a fleet share.
type Limits interface {
	// TakeModel takes a request and tokens, or returns after how long to try again.
	TakeModel(ctx context.Context, provider string, tokens int64) (wait time.Duration, err error)
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
		wait, err := limits.TakeModel(ctx, provider, expected)
		if err != nil {
			return func(int64) {}, nil //nolint:nilerr // see Gate
		}
		if wait <= 0 {
			return func(used int64) {
				_ = limits.CorrectModel(context.WithoutCancel(ctx), provider, used-expected) // see Gate
			}, nil
		}
		delta(loop.Delta{Waits: fmt.Sprintf("the limit of model/%s is used up; next request in %v", provider, max(wait.Round(100*time.Millisecond), 100*time.Millisecond))})
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
	leave, err := m.gate.enter(ctx, m.provider, asked, delta)
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
