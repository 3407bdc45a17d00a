package fleet

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/toolfleet/toolfleet/internal/sandbox/driver"
	"github.com/toolfleet/toolfleet/internal/sandbox/process"
	internal "github.com/toolfleet/toolfleet/internal/worker"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/worker"
)

// WorkerOptions are the settings of a worker inside the process; nil and zero mean the
// documented default.
type WorkerOptions struct {
	// Sandbox is the sandbox driver: "auto" (the default: the best that isolates here), "ns",
	// "landlock", "process", which isolates nothing, or "none": the worker takes calls of its
	// Handlers only.
	Sandbox string
	// Pool is whose calls the worker takes; "" means the default pool.
	Pool protocol.Pool
	// Slots is how many calls run at once, up to 4096; 0 means 4.
	Slots int
	// Env is added to the environment of sandboxes.
	Env map[string]string
	// Tools is the folder with the programs of tools that are commands; "" for none.
	Tools string
	// Workspace, when set, names a directory to be used in place for a sandbox; ok is
	// false for those that live in the data directory.
	Workspace func(sandbox string) (dir string, ok bool)
	// Protect are paths in workspaces that neither commands nor file operations change: relative,
	// at most 256. nil means, in directories that are used in place, what git and editors read or
	// run there on their own, and none elsewhere; empty means none.
	Protect []string
	// Handlers execute payloads of kinds of your own.
	Handlers []worker.Handler
}

// validate reports every fault of the pool and the slots; the rest is checked where it is used.
func (o *WorkerOptions) validate() error {
	var faults []error
	if o.Slots < 0 || o.Slots > internal.MaxSlots {
		faults = append(faults, fmt.Errorf("slots %d: must be 1 to %d", o.Slots, internal.MaxSlots))
	}
	if o.Pool == protocol.SessionPool {
		faults = append(faults, fmt.Errorf("pool %q: is that of the coordinators", o.Pool))
	} else if o.Pool != "" {
		_, err := protocol.ParsePool(string(o.Pool))
		faults = append(faults, err)
	}
	return errors.Join(faults...)
}

// StartWorker runs a worker inside this process until Close, whatever becomes of ctx, which bounds
// the starting only. A fleet may have several. Workspaces are stored with the fleet, as by a worker
// program, so that any worker can continue a session. The error wraps
// [github.com/toolfleet/toolfleet/pkg/sandbox.ErrLevel] when no driver isolates on this host, and
// [wire.ErrInvalidKind] for a handler of a kind that cannot be.
func (c *Client) StartWorker(ctx context.Context, options *WorkerOptions) error {
	var o WorkerOptions
	if options != nil {
		o = *options
	}
	handlers, err := worker.ByKind(o.Handlers...)
	if err = errors.Join(o.validate(), err); err != nil {
		return err
	}
	if o.Tools != "" {
		if o.Tools, err = filepath.Abs(o.Tools); err != nil {
			return fmt.Errorf("folder of tools: %w", err)
		}
	}
	opened, caps, err := internal.OpenDriver(ctx, o.Sandbox, &driver.Options{Logger: c.logger, Data: c.data}, handlers)
	if err != nil {
		return err
	}
	if o.Sandbox == process.Name {
		c.named.Store(true)
	}
	return c.inner.StartWorker(ctx, internal.Options{
		Pool: o.Pool, Slots: o.Slots, Data: c.data, Driver: opened, Caps: caps, Env: o.Env, Tools: o.Tools,
		Workspace: o.Workspace, Protect: o.Protect, Handlers: handlers,
	})
}
