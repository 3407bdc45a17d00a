package worker

import (
	"context"
	"errors"

	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/internal/sandbox/driver"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// CanRun implements [lane.Host]: it reports whether this worker runs calls that need this: it has
// the handler, the level, and for what is no handler's, sandboxes. What no worker could run is
// taken, and refused.
func (w *Worker) CanRun(n lane.Need) bool {
	if w.options.Alone {
		return true
	}
	if level, err := sandbox.ParseLevel(n.Level); err == nil && level > w.options.Caps.Level {
		return false
	}
	if n.Handler {
		return w.options.Handlers.Has(n.Kind)
	}
	if k := w.kinds[n.Kind]; k != nil && k.needs <= needsFunction {
		return true
	}
	return w.options.Caps.Driver != NoSandboxes
}

// NoSandboxes is the driver of a worker that runs its handlers only.
const NoSandboxes = "none"

// ErrNothingToRun says that a worker has neither sandboxes nor handlers.
var ErrNothingToRun = errors.New("a worker without sandboxes and without handlers could run nothing")

// OpenDriver is [driver.Open], and knows [NoSandboxes], too.
func OpenDriver(ctx context.Context, name string, o *driver.Options, handlers Handlers) (sandbox.Driver, sandbox.Caps, error) {
	switch {
	case name != NoSandboxes:
		return driver.Open(ctx, name, o)
	case !handlers.Any():
		return nil, sandbox.Caps{}, ErrNothingToRun
	}
	return none{}, sandbox.Caps{Driver: NoSandboxes}, nil
}

// none is the driver that opens nothing.
type none struct{}

func (none) Name() string { return NoSandboxes }

func (none) Probe(context.Context) (sandbox.Caps, error) {
	return sandbox.Caps{Driver: NoSandboxes}, nil
}

func (none) Open(context.Context, sandbox.Spec) (sandbox.Sandbox, error) {
	return nil, errNoSandboxes
}

var errNoSandboxes = errors.New("this worker has no sandboxes (--sandbox none)")
