package model

import (
	"context"
	"time"

	"github.com/toolfleet/toolfleet/internal/telemetry"
	"github.com/toolfleet/toolfleet/pkg/loop"
)

// measured is a model whose replies are in the metrics.
type measured struct {
	loop.Model

	metrics *telemetry.ModelMetrics
}

var _ loop.Provider = measured{}

// Reply implements [loop.Model].
func (m measured) Reply(ctx context.Context, req loop.Request, delta func(loop.Delta)) (loop.Reply, error) {
	begun := time.Now()
	reply, err := m.Model.Reply(ctx, req, delta)
	m.metrics.Replied(ctx, time.Since(begun), reply.Usage.InputTokens, reply.Usage.OutputTokens, err)
	return reply, err
}

// Provider implements [loop.Provider] with what the model says; "" when it says nothing.
func (m measured) Provider() string {
	if provider, is := m.Model.(loop.Provider); is {
		return provider.Provider()
	}
	return ""
}
