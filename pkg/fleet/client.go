// Package fleet is the client of a fleet: a Go program runs tool calls, payloads and sessions
// with it, on workers that any process may have started.
//
//	client, err := fleet.Connect(ctx, fleet.Options{URL: "nats://127.0.0.1:4222"})
//	result, err := client.Call(ctx, fleet.Call{Tool: "bash", Arguments: `{"command": "make"}`})
//
// The ways in:
//
//   - [Client.Call] runs one call and waits for its [Result].
//   - [Client.Go] starts a call and returns a [Future]: wait for it, cancel it, read its output.
//   - [Client.Submit] stores a call that outlives this process, and [Client.Attach] follows a call
//     that any process has sent.
//   - [Client.Stream] is a queue of calls that run one at a time, with events across queues.
//   - [Client.Runner] runs sessions: a model calls the tools of a table.
//   - [Client.StartWorker] runs a worker in this process, with handlers of your own.
//   - [Client.Lanes] and [Client.Workers] report what waits, what runs and who runs it.
//   - [Client.Sessions] shows, follows, forks, merges and removes sessions, and has their files.
//   - [Client.Limits], [Client.Schedules], [Client.Templates] and [Client.Tokens] are settings of the
//     fleet.
//   - [Sessions.Approve] and [Sessions.Answer] answer what calls and sessions ask a person.
//
// Without a URL the NATS server is inside the process too, so one program can be a whole fleet.
//
// A call that ran and failed has a [Result], whose Error says why; [Result.Err] has it as a Go
// error. A method returns an error when the fleet failed, or the input was wrong. Both kinds say
// what the caller can do:
//
//   - [protocol.ErrInvalidCall]: correct the call; nothing was sent.
//   - [ErrNotSent]: the call does not run. Send it again if the error also wraps [ErrBusy] or
//     [ErrQuota], which say when, or [ErrUnreachable]; otherwise correct what the error names.
//   - [ErrUnknownOutcome]: check the effects first, the call may run; [Client.Attach] follows it.
//   - [ErrInvalid], [ErrNotFound], [ErrExists]: correct the name, the id or the setting.
//   - [ErrNoFleet], [ErrRights], [ErrVersion]: change the options, the user's rights or the program.
//
// # How methods end
//
//   - A closed client: [ErrClosed], at once, also from methods that wait. What runs something has
//     [ErrNotSent] or [ErrUnknownOutcome], too. A [Future] or [Worker] that has ended by then has
//     no error.
//   - An ended context: its cause, at once. [Client.Call] and [Client.Go] then cancel their call, and
//     [Sessions.Run] and [Sessions.Compact] their turn; all other methods leave what is in the fleet
//     as it is. If their call was sent, [Client.Call] and [Client.Go] have no error: [Result.Err] is
//     [ErrUnknownOutcome], unless a worker has answered.
//   - A server that is away: [ErrUnreachable] and, if the context has ended, its cause. [Client.Call],
//     [Client.Go] and [Client.Submit] wait for the server until their context ends; other methods
//     wait some seconds. What runs something has [ErrNotSent] or [ErrUnknownOutcome], too. The
//     client connects again by itself.
//   - A fleet of another version: [Connect] and [worker.Run] return [ErrVersion], and change nothing.
//     If they accept the fleet's streams, programs of different versions work together: a worker
//     ignores fields that it does not know, and rejects a payload that it does not know.
//   - nil observers are ignored. A nil model or table is an error of [Client.Runner].
//
// Zero values of the types with methods, but for [Limit] and [Result], cannot be used: get them
// from a [Client].
package fleet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolfleet/toolfleet/internal/fleet"
	"github.com/toolfleet/toolfleet/internal/judge"
	"github.com/toolfleet/toolfleet/internal/model"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/session"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
)

// Client is a connection to a fleet. It is safe for concurrent use.
type Client struct {
	inner   *fleet.Fleet
	data    string
	cleanup func() error
	logger  *slog.Logger
	session protocol.SessionID // of calls that name none
	ledger  *loop.Ledger       // of calls with a policy

	open  context.Context //nolint:containedctx // ends with [ErrClosed] when the client is closed
	close context.CancelCauseFunc

	elsewhere bool        // it may have workers that this process does not know
	named     atomic.Bool // a worker without isolation was started here, by its name
	served    sync.Map    // of each pool of which a worker was started here

	tails func() *session.Tails // of sessions that are followed
	known session.Known         // of sessions that were described
	index *searchIndex
}

// least is the sandbox level of commands and files for which nothing else names one.
func (c *Client) least() string {
	if c.elsewhere && !c.named.Load() {
		return "paths"
	}
	return ""
}

// Close ends the workers of this process, the embedded server, and the connection. Calls that still
// run in such a worker have 5 s to end. [Client.Call] cancels its call; futures end with
// [ErrClosed], and their calls continue; other methods return [ErrClosed], from now on too. Close
// takes some 20 s at most, even if functions and handlers of the program ignore the end of their
// contexts. A second Close does nothing.
func (c *Client) Close() error {
	c.close(ErrClosed)
	c.index.close()
	c.inner.Close()
	cleanup := c.cleanup
	c.cleanup = func() error { return nil }
	return cleanup()
}

// whileOpen returns a context that ends with ctx, and with [ErrClosed] when the client is closed.
func (c *Client) whileOpen(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	if c.open.Err() != nil {
		cancel(ErrClosed)
	}
	stop := context.AfterFunc(c.open, func() { cancel(ErrClosed) })
	return ctx, func() {
		stop()
		cancel(nil)
	}
}

// closed returns [ErrClosed] for a closed client.
func (c *Client) closed() error { return context.Cause(c.open) }

// do calls a method with a context that ends when the client is closed, if the user of the
// connection has the rights for it: the server does not answer requests without them. The error is
// an outcome.
func do[T any](ctx context.Context, c *Client, rights []natsio.Rights, method func(context.Context) (T, error)) (result T, err error) {
	ctx, done := c.whileOpen(ctx)
	defer done()
	if err = context.Cause(ctx); err == nil && len(rights) > 0 {
		err = c.inner.CheckRights(ctx, rights...)
	}
	if err == nil {
		result, err = method(ctx)
	}
	return result, c.outcome(ctx, err)
}

// act is do for a method without a result.
func act(ctx context.Context, c *Client, rights []natsio.Rights, method func(context.Context) error) error {
	_, err := do(ctx, c, rights, func(ctx context.Context) (struct{}, error) { return struct{}{}, method(ctx) })
	return err
}

// outcome adds to the error of a method what callers branch on if the method was
// interrupted: [ErrClosed], the cause of its context, or [ErrUnreachable].
func (c *Client) outcome(ctx context.Context, err error) error {
	if !isInterruption(err) {
		return hidden(err)
	}
	for _, kind := range []error{c.closed(), context.Cause(ctx)} {
		if kind != nil && !errors.Is(err, kind) {
			err = fmt.Errorf("%w: %w", kind, err)
		}
	}
	if c.closed() == nil && (ctx.Err() == nil || !c.connected()) && !errors.Is(err, ErrUnreachable) {
		err = fmt.Errorf("%w: %w", ErrUnreachable, err)
	}
	return err
}

// hidden is an error, as one who must not learn of objects of other tenants gets it.
func hidden(err error) error {
	refusal, is := errors.AsType[*judge.RefusalError](err)
	if !is || !refusal.Hides() {
		return err
	}
	return codes.As(ErrNotFound, fmt.Errorf("there is no such %s: %s", refusal.On.Kind, refusal.On.ID))
}

// interrupted is the error of a result, with the cause if ctx ended before it was known.
func (c *Client) interrupted(ctx context.Context, result *protocol.Result) error {
	if result.Status == protocol.StatusOutcomeUnknown && ctx.Err() != nil {
		return fmt.Errorf("%w: %w", context.Cause(ctx), result.Error)
	}
	return result.Error
}

func isInterruption(err error) bool {
	return slices.ContainsFunc(interruptions, func(kind error) bool { return errors.Is(err, kind) })
}

// interruptions are how requests fail that the server does not answer.
var interruptions = []error{ //nolint:gochecknoglobals // a constant table
	context.Canceled, context.DeadlineExceeded, nats.ErrTimeout, nats.ErrNoResponders, nats.ErrConnectionClosed,
	nats.ErrDisconnected, nats.ErrReconnectBufExceeded, nats.ErrNoServers, jetstream.ErrNoStreamResponse,
}

// connected reports whether the servers of all pools are connected.
func (c *Client) connected() bool {
	return !slices.ContainsFunc(c.inner.Parts(), func(part *fleet.Fleet) bool { return !part.NC.IsConnected() })
}

// OpenModel opens a model by its spec, such as "openai:NAME", "anthropic:NAME", "google:NAME" or
// "script:FILE", with the settings of the environment (such as OPENAI_API_KEY and OPENAI_BASE_URL).
// Runner takes any [loop.Model] of yours as well.
func OpenModel(spec string) (loop.Model, error) {
	opened, _, err := model.Open(spec, os.Getenv)
	return opened, err
}

// Runner returns a runner of sessions, with a model and the tools of a table. An empty
// [loop.Options].MinLevel means "paths" in a fleet that has a URL: workers without isolation get no
// commands and files. It means none in a fleet inside this process, and after this process has
// started a worker without isolation. nil options are the defaults.
func (c *Client) Runner(m loop.Model, table *tools.Table, options *loop.Options) (*loop.Runner, error) {
	var o loop.Options
	if options != nil {
		o = *options
	}
	o.MinLevel = cmp.Or(o.MinLevel, c.least())
	if o.GiverValid == nil {
		o.GiverValid = c.inner.GiverValid
	}
	return loop.New(m, c.inner.Dispatcher, c.inner.Journal, table, &o)
}
