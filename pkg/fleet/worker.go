package fleet

import (
	"cmp"
	"context"

	"github.com/toolfleet/toolfleet/internal/fleet"
	"github.com/toolfleet/toolfleet/internal/sandbox/drivers"
	"github.com/toolfleet/toolfleet/internal/sandbox/process"
	internal "github.com/toolfleet/toolfleet/internal/worker"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/worker"
)

// Worker is a worker inside this process. It is safe for concurrent use.
type Worker struct{ inner *fleet.Worker }

// Done is closed when nothing of the worker runs any more.
func (w *Worker) Done() <-chan struct{} { return w.inner.Done() }

// Err is why the worker ended by itself; nil while it runs, and after Drain or Close of the client.
func (w *Worker) Err() error { return w.inner.Err() }

// Drain ends the worker: it takes no more calls, and Drain returns when those that run have ended.
// When ctx ends before, they are killed, and the error is the cause of ctx: they run again on other
// workers, except for calls that may run once only. Drain waits some seconds for handlers that
// ignore the end of their contexts. Drain of a worker that has ended, also by Close of the client,
// returns [Worker.Err].
func (w *Worker) Drain(ctx context.Context) error { return w.inner.Drain(ctx) }

// StartWorker runs a worker inside this process until its Drain, or Close of the client, regardless
// of ctx, which bounds only the start. A fleet may have several. Workspaces are stored with the
// fleet, as by a worker program, so that any worker can continue a session. Invalid options are
// reported together before anything starts. The error wraps
// [github.com/toolfleet/toolfleet/pkg/sandbox.ErrLevel] when no driver isolates on this host.
func (c *Client) StartWorker(ctx context.Context, options worker.Options) (*Worker, error) {
	o, err := internal.OfClient(options)
	if err != nil {
		return nil, invalid(err)
	}
	return do(ctx, c, nil, func(ctx context.Context) (*Worker, error) { return c.startWorker(ctx, options, o) })
}

func (c *Client) startWorker(ctx context.Context, options worker.Options, o internal.Options) (_ *Worker, err error) {
	o.Data, o.Logger = cmp.Or(o.Data, c.data), cmp.Or(o.Logger, c.logger)
	o.Driver, o.Caps, err = internal.OpenDriver(ctx, options.Driver, &drivers.Options{Logger: o.Logger, Data: o.Data}, o.Handlers)
	if err != nil {
		return nil, err
	}
	if options.Driver == process.Name {
		c.named.Store(true)
	}
	started, err := c.inner.StartWorker(ctx, o)
	if err != nil {
		return nil, err
	}
	c.served.Store(cmp.Or(o.Pool, protocol.DefaultPool), true)
	return &Worker{inner: started}, nil
}
