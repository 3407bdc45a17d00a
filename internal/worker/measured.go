package worker

import (
	"context"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/toolfleet/toolfleet/internal/telemetry"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// measuredDriver opens sandboxes that are counted, with the commands in them.
type measuredDriver struct {
	sandbox.Driver

	metrics *telemetry.WorkerMetrics
}

// Open implements [sandbox.Driver].
func (d measuredDriver) Open(ctx context.Context, spec sandbox.Spec) (sandbox.Sandbox, error) {
	begun := time.Now()
	opened, err := d.Driver.Open(ctx, spec)
	d.metrics.Opened(ctx, time.Since(begun), err)
	if err != nil {
		return nil, err
	}
	return &measuredSandbox{Sandbox: opened, metrics: d.metrics}, nil
}

type measuredSandbox struct {
	sandbox.Sandbox

	metrics *telemetry.WorkerMetrics
	closed  sync.Once
}

// Exec implements [sandbox.Sandbox].
func (s *measuredSandbox) Exec(ctx context.Context, cmd sandbox.Cmd) (sandbox.Result, error) {
	r, err := s.Sandbox.Exec(ctx, cmd)
	if err == nil {
		s.metrics.CommandEnded(ctx, string(r.Reason))
		trace.SpanFromContext(ctx).SetAttributes(telemetry.KeyReason.String(string(r.Reason)), telemetry.KeyExitCode.Int(r.ExitCode))
	}
	return r, err
}

// Close implements [sandbox.Sandbox].
func (s *measuredSandbox) Close() error {
	s.closed.Do(func() { s.metrics.Closed(context.Background()) }) //nolint:forbidigo // closing has no context
	return s.Sandbox.Close()
}

// OnSettled implements [lane.Host] for metrics and checkpoints.
func (w *Worker) OnSettled(ctx context.Context, c *protocol.Call, r *protocol.Result) {
	w.sandboxes.Box(c.Lane()).Checkpoints().Settled(c.ID)
	w.metrics.Ended(ctx, c.Tool, string(r.Status), r.Error.ErrorType())
}
