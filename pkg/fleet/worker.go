package fleet

import (
	"cmp"
	"context"
	"errors"

	"github.com/toolfleet/toolfleet/internal/fleet"
	"github.com/toolfleet/toolfleet/internal/judge"
	"github.com/toolfleet/toolfleet/internal/mcp/mcptools"
	"github.com/toolfleet/toolfleet/internal/sandbox/drivers"
	"github.com/toolfleet/toolfleet/internal/sandbox/process"
	"github.com/toolfleet/toolfleet/internal/session"
	"github.com/toolfleet/toolfleet/internal/session/approval"
	internal "github.com/toolfleet/toolfleet/internal/worker"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
	"github.com/toolfleet/toolfleet/pkg/tools/mcp"
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
	o, err := options.Setup()
	if options.Server != (worker.Server{}) {
		err = errors.Join(errors.New("server: must be zero: the worker is in the fleet of its client"), err)
	}
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

// ServerTools asks MCP servers for their tools: those of [mcp.Parse], or of a folder of manifests.
// The servers run in the sandbox of the session, or are reached from its worker. What is wrong with
// one, and tools with the name of one of taken, are problems; the tools of other servers are
// returned all the same. The error means that the fleet failed. Call it again when a turn begins:
// servers may have other tools then. Servers that a policy denies are for the caller to leave out:
// see [policy.Judge.Server].
func (c *Client) ServerTools(
	ctx context.Context, id protocol.SessionID, servers []mcp.Server, taken []tools.Tool,
) (made []tools.Tool, problems []error, err error) {
	if _, err := protocol.ParseSessionID(string(id)); err != nil {
		return nil, nil, invalid(err)
	}
	made, err = do(ctx, c, nil, func(ctx context.Context) (made []tools.Tool, err error) {
		if err := session.May(ctx, c.inner, judge.Use, id); err != nil {
			return nil, err
		}
		made, problems, err = mcptools.Open(ctx, c.inner.Dispatcher.Call, id, mcptools.Rules{MinLevel: c.least()}, servers, taken)
		return made, err
	})
	return made, problems, err
}

// AwaitApproval waits until a person approves or denies a call: by [Sessions.Approve] in any
// program of the fleet, or by coordinator approve. It is for [loop.Options] and [Call].Approve.
func (c *Client) AwaitApproval(ctx context.Context, request loop.ApprovalRequest) (protocol.Approval, error) {
	return do(ctx, c, nil, func(ctx context.Context) (protocol.Approval, error) {
		if err := session.May(ctx, c.inner, judge.Use, request.SessionID); err != nil {
			return protocol.Approval{}, err
		}
		return approval.Waiter(c.inner.NC, c.inner.Name, c.inner.Keys())(ctx, request)
	})
}
