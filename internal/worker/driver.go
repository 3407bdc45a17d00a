package worker

import (
	"context"
	"errors"

	"github.com/toolfleet/toolfleet/internal/sandbox/drivers"
	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/internal/worker/kinds"
	"github.com/toolfleet/toolfleet/internal/worker/sandboxes"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// NoSandboxes is the driver of a worker that runs its handlers only.
const NoSandboxes = sandboxes.NoDriver

// ErrNothingToRun says that a worker has neither sandboxes nor handlers.
var ErrNothingToRun = errors.New("a worker without sandboxes and without handlers could run nothing")

// OpenDriver is [drivers.Open], and knows [NoSandboxes], too.
func OpenDriver(ctx context.Context, name string, o *drivers.Options, handlers kinds.Handlers) (isolation.Driver, isolation.Caps, error) {
	switch {
	case name != NoSandboxes:
		return drivers.Open(ctx, name, o)
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
