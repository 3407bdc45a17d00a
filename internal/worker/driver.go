package worker

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/toolfleet/toolfleet/internal/sandbox/driver"
	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/internal/telemetry"
	"github.com/toolfleet/toolfleet/internal/worker/kinds"
	"github.com/toolfleet/toolfleet/internal/worker/sandboxes"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// NoSandboxes is the driver of a worker that runs its handlers only.
const NoSandboxes = sandboxes.NoDriver

// ErrNothingToRun says that a worker has neither sandboxes nor handlers.
var ErrNothingToRun = errors.New("a worker without sandboxes and without handlers could run nothing")

// OpenDriver is [driver.Open], and knows [NoSandboxes], too.
func OpenDriver(ctx context.Context, name string, o *driver.Options, handlers kinds.Handlers) (isolation.Driver, isolation.Caps, error) {
	switch {
	case name != NoSandboxes:
		return driver.Open(ctx, name, o)
	case !handlers.Any():
		return nil, isolation.Caps{}, ErrNothingToRun
	}
	return none{}, isolation.Caps{Driver: NoSandboxes}, nil
}

// none is the driver that opens nothing.
type none struct{}

func (none) Name() string { return NoSandboxes }

func (none) Probe(context.Context) (isolation.Caps, error) {
	return isolation.Caps{Driver: NoSandboxes}, nil
}

func (none) Open(context.Context, isolation.Spec) (sandbox.Sandbox, error) {
	return nil, errNoSandboxes
}

var errNoSandboxes = errors.New("this worker has no sandboxes (--sandbox none)")

// measuredDriver opens sandboxes that are counted, with the commands in them.
type measuredDriver struct {
	isolation.Driver

	metrics *telemetry.WorkerMetrics
}

// Open implements [isolation.Driver].
func (d measuredDriver) Open(ctx context.Context, spec isolation.Spec) (sandbox.Sandbox, error) {
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

// Listens implements [isolation.Dialer].
func (s *measuredSandbox) Listens(port uint16) bool {
	dialer, ok := s.Sandbox.(isolation.Dialer)
	return ok && dialer.Listens(port)
}

// Dial implements [isolation.Dialer].
func (s *measuredSandbox) Dial(ctx context.Context, port uint16) (net.Conn, error) {
	if dialer, ok := s.Sandbox.(isolation.Dialer); ok {
		return dialer.Dial(ctx, port)
	}
	return nil, sandbox.ErrUnsupported
}
