package fleet

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/toolfleet/toolfleet/internal/calls"
	"github.com/toolfleet/toolfleet/internal/judge"
	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
	"github.com/toolfleet/toolfleet/pkg/tools/toolset"
)

// Call is a request to run a tool, a handler or a payload. Only one of Tool, Handler and Payload is
// required. A tool defines resources, delivery, retry, timeout and pool of its calls: their zero
// values here mean what the tool defines, and other values replace that. For handlers and payloads
// zero values mean the named default. The trace context is that of ctx.
type Call struct {
	// Tool is the name of a tool of Table, and Arguments its arguments, a JSON object; "" is {}.
	Tool, Arguments string
	// Table has the tools; nil means the built-in ones.
	Table *tools.Table
	// Handler is the kind of a handler of your workers, which runs instead of a tool: 1 to 64
	// lower-case letters, digits and '_'. Args are what it gets, encoded as JSON; nil is null, for
	// which the handler gets the zero value. See [worker.Handle] and [ValueOf].
	Handler protocol.Kind
	Args    any
	// Payload is what a worker executes, instead of a tool: a payload type of package protocol.
	Payload protocol.Payload

	// Session owns the call and its result. "" means a session with the name of Sandbox; without
	// a Sandbox, a session that all such calls of the client share, and those of each tenant for
	// which it acts.
	Session protocol.SessionID
	// Sandbox is the sandbox in which the call runs; "" means the one of Session.
	Sandbox string
	// Resources are what the call uses: 1 to 64, all of one lane, see [protocol.Use]. Calls whose
	// resources conflict run one after another. Empty means what the tool defines; for a handler
	// nothing; for a payload the whole sandbox, exclusively.
	Resources []protocol.Use
	// Pool selects the workers; the default is [protocol.DefaultPool].
	Pool protocol.Pool
	// MinLevel is the minimum sandbox level for commands and files for which neither the tool nor
	// Policy names one: none, paths, full or kernel. "" means none in a fleet inside this process,
	// otherwise paths.
	MinLevel string

	// ID is the caller's own id of the call: while its result is stored, another call of the
	// session with this id gets that result. One that would run something else is rejected then,
	// with the code id_reused. "" means a new id. Tools that run in this process ignore it.
	ID protocol.CallID
	// Delivery is what may happen after a lost worker; the default is [protocol.Rollback].
	Delivery protocol.Delivery
	// Retry says when a failed call starts again; the default is never. It needs the delivery
	// [protocol.Idempotent].
	Retry *protocol.Retry
	// Timeout bounds one attempt; the default is [protocol.DefaultRunTimeout], 2 minutes.
	Timeout time.Duration
	// QueueTimeout bounds the time from acceptance to the first start; 0 means no bound.
	QueueTimeout time.Duration
	// NotBefore delays the call until that time, up to 366 days; zero means no delay.
	NotBefore time.Time
	// Deadline is when the call ends at the latest, whether it waits or runs; zero means never.
	Deadline time.Time
	// After are calls that must have ended with status ok before this one starts, up to 64, in any
	// lane and session of pools on the same servers; see [Future.Ref]. A call that waits keeps no
	// worker busy, and is sent when those that this client sends were sent. It is rejected with
	// [protocol.CodeAfterUnmet] as soon as one of them ends otherwise, or was refused or not sent
	// by this client, or when its own time is over (QueueTimeout, Deadline, else 24 hours).
	After []protocol.CallRef
	// Tenant is for whom the call runs: tenants share the slots of workers. "" means the default
	// tenant. Priority orders the calls of a tenant; "" means [protocol.Normal].
	Tenant   protocol.Tenant
	Priority protocol.Priority

	// Policy decides whether the call may be made; nil allows every call. A handler and a payload
	// are judged as a tool with the name of their kind, such as command_run. Limits on the number
	// of calls count all calls of the session by its journal, which this program must be allowed to
	// use. What Policy demands, Delivery cannot weaken.
	Policy loop.Policy
	// Hooks see, change and refuse the call ([loop.HookBefore]) and the result that this client
	// returns ([loop.HookAfter]): [Client.Submit] has the first only. They are asked each time that
	// the call is sent. The arguments of handlers and payloads cannot be changed.
	Hooks []loop.Hook
	// As are the tools that Policy judges a handler or a payload as, instead of the name of its
	// kind; the first one stands for all of them where calls are counted.
	As []string
	// Approve asks a person about a call for which Policy needs that; nil denies such calls.
	Approve func(ctx context.Context, request loop.ApprovalRequest) (protocol.Approval, error)
	// Observe gets questions that the tool asks a person while [Client.Call] waits for it, as
	// [loop.EventQuestionAsked]; nil declines them. The call waits for Observe to return. Calls of
	// [Client.Go] and [Client.Submit] do not use it: their questions are declined, unless a program
	// answers within 2 s.
	Observe func(loop.Event)
	// Guard is the check before a tool changes a file; "" means none.
	Guard protocol.Guard
	// Author is who commits with git in commands; zero means the worker's.
	Author protocol.Author
}

// Result is how a call ended. Status is [protocol.StatusOK], or Error says why not. Value is nil
// for a call that did not run, and for tools that run in this process.
type Result struct {
	protocol.Result

	// Text is what a model would read. For payloads and attached calls it is the value as JSON.
	Text string
}

// Err is nil for a call with status ok. Otherwise it wraps Error, and [ErrUnknownOutcome] if the
// call may have had effects, or [ErrNotSent] if it was not sent: because of [ErrBusy] or
// [ErrQuota], or because a policy denies it or its arguments are wrong.
func (r Result) Err() error {
	switch {
	case r.Error == nil:
		return nil
	case r.Status == protocol.StatusOutcomeUnknown:
		return mayRun(r.Error)
	case r.Status == protocol.StatusRejected && r.WorkerID == "":
		return fmt.Errorf("%w: %w", ErrNotSent, r.Error)
	}
	return r.Error
}

// Ref names the call for [Client.Attach], also when its outcome is unknown.
func (r Result) Ref() protocol.CallRef {
	return protocol.CallRef{SessionID: r.SessionID, ID: r.CallID}
}

// ValueOf is what a call returned, for the results of [Client.Call] and [Future.Wait]: the output
// of the function of a handler, or a value type of package protocol. A call without the status ok
// is an error, that of [Result.Err]. [Call] has an example.
//
//	sum, err := fleet.ValueOf[int](client.Call(ctx, fleet.Call{Handler: "add", Args: numbers}))
func ValueOf[T any](r Result, err error) (value T, _ error) {
	switch {
	case err != nil:
		return value, err
	case r.Err() != nil:
		return value, fmt.Errorf("call %s: %w", r.CallID, r.Err())
	}
	if own, is := r.Value.(protocol.UnknownValue); is {
		output, err := own.Output()
		if err == nil {
			err = json.Unmarshal(output, &value)
		}
		if err != nil {
			err = fmt.Errorf("call %s: the output of handler %s is no %T: %w", r.CallID, own.Name, value, err)
		}
		return value, err
	}
	value, is := r.Value.(T)
	if !is {
		return value, fmt.Errorf("call %s: the value is a %T, and no %T", r.CallID, r.Value, value)
	}
	return value, nil
}

// handled is the payload of a handler.
func handled(kind protocol.Kind, args any) (protocol.Payload, error) {
	if _, err := wire.ParseUserKind(string(kind)); err != nil {
		return nil, err
	}
	body, err := json.Marshal(args)
	if err != nil {
		return nil, fmt.Errorf("args of %s: %w", kind, err)
	}
	return wire.NewUserPayload(kind, body)
}

// Errors that callers branch on, with [errors.Is], by what they can do. [Result.Err] and the errors
// of all methods that send calls wrap them.
var (
	// ErrNotSent means that the call was not sent, and does not run. The error also wraps the
	// reason: [ErrBusy], [ErrQuota] or [ErrUnreachable], after which it can be sent again;
	// [ErrClosed], the cause of an ended context, or what is wrong with the call.
	ErrNotSent = lane.ErrNotSent
	// ErrUnknownOutcome means that the call may run, or may have run. Check its effects before it
	// is sent again; sent again with its ID it does not run twice. If the reason is not in its
	// result, [Client.Attach] with [Result.Ref] follows the call.
	ErrUnknownOutcome error = &protocol.Error{Code: protocol.CodeOutcomeUnknown, Message: "the call may run, or may have run"}
	// ErrBusy means that as many calls wait as a lane or a pool may have. The error is a
	// [protocol.Error], whose RetryAfter says when it is worth sending the call again.
	ErrBusy = lane.ErrBusy
	// ErrQuota means that the tenant has used a quota, with RetryAfter as [ErrBusy].
	ErrQuota = lane.ErrQuota
	// ErrUnreachable means that the fleet did not answer, or that one of its streams was deleted.
	ErrUnreachable = calls.ErrUnreachable
	// ErrClosed means that the client is closed; calls that were sent continue.
	ErrClosed = calls.ErrClosed
)

// withDefaults returns the call with its session, sandbox and table, or every invalid field. Each
// error wraps [protocol.ErrInvalidCall].
func (c *Client) withDefaults(ctx context.Context, call Call) (Call, error) {
	var faults []error
	fault := func(wrong bool, format string, args ...any) {
		if wrong {
			faults = append(faults, fmt.Errorf("%w: "+format, append([]any{protocol.ErrInvalidCall}, args...)...))
		}
	}
	fault(call.Tool == "" && call.Handler == "" && call.Payload == nil, "tool: missing; name a tool or a handler, or give a payload")
	fault(call.Tool != "" && call.Payload != nil, "tool %q: must not be combined with a payload", call.Tool)
	fault(call.Handler != "" && (call.Tool != "" || call.Payload != nil), "handler %q: must not be combined with a tool or a payload", call.Handler)
	fault(call.Handler == "" && call.Args != nil, "args: need a handler; those of a tool are Arguments")
	if call.Handler != "" && call.Payload == nil {
		payload, err := handled(call.Handler, call.Args)
		fault(err != nil, "handler: %w", err)
		call.Payload = payload
	}
	fault(len(call.As) > 0 && call.Payload == nil, "as %q: is for a handler or a payload", call.As)
	fault(call.Payload != nil && wire.KindOf(call.Payload) == "", "payload %T: must be a payload type of package protocol, as a value", call.Payload)
	fault(call.Payload != nil && call.Arguments != "", "arguments %.100q: must not be combined with a payload", call.Arguments)
	fault(call.MinLevel != "" && !slices.Contains(wire.Levels(), call.MinLevel), "min level %q: must be one of %q", call.MinLevel, wire.Levels())
	fault(call.Timeout < 0, "timeout %s: must not be negative", call.Timeout)
	fault(call.QueueTimeout < 0, "queue timeout %s: must not be negative", call.QueueTimeout)
	if call.Sandbox != "" {
		_, err := protocol.ParseSessionID(call.Sandbox)
		fault(err != nil, "sandbox: %w", err)
	}
	call.Session = cmp.Or(call.Session, protocol.SessionID(call.Sandbox), c.sessionOf(ctx))
	call.Sandbox = cmp.Or(call.Sandbox, string(call.Session))
	call.Arguments = cmp.Or(call.Arguments, "{}")
	// What a tool defines is not known yet, and stands for itself here.
	planned := protocol.Call{
		ID: "planned", SessionID: call.Session, Pool: protocol.DefaultPool, IssuedAt: time.Now(),
		Resources: []protocol.Use{{Key: protocol.SandboxKey("planned"), Access: protocol.Exclusive}},
		Delivery:  protocol.Idempotent, Payload: protocol.UnknownPayload{},
	}
	call.set(&planned)
	planned.ID = cmp.Or(call.ID, planned.ID)
	if err := errors.Join(append(faults, planned.Validate())...); err != nil {
		return call, err
	}
	if call.Table == nil && call.Tool != "" {
		var err error
		call.Table, err = tools.NewTable(toolset.Core()...)
		return call, err
	}
	return call, nil
}

// sessionOf is the session of calls that name none: one for the operator, and one for each tenant,
// since a session belongs to the tenant that uses it first.
func (c *Client) sessionOf(ctx context.Context) protocol.SessionID {
	if !judge.Bounded(ctx) {
		return c.session
	}
	sum := sha256.Sum256([]byte(judge.Of(ctx).Owner().Tenant))
	return c.session + protocol.SessionID("-"+hex.EncodeToString(sum[:8]))
}

// set replaces what the fields of the call name.
func (call *Call) set(planned *protocol.Call) {
	if len(call.Resources) > 0 {
		planned.Resources = call.Resources
	}
	if call.Retry != nil {
		planned.Retry = call.Retry
	}
	planned.Pool = cmp.Or(call.Pool, planned.Pool)
	planned.Delivery = cmp.Or(call.Delivery, planned.Delivery)
	planned.RunTimeout = cmp.Or(protocol.MillisOf(call.Timeout), planned.RunTimeout)
	planned.QueueTimeout = protocol.MillisOf(call.QueueTimeout)
	planned.NotBefore, planned.Deadline = call.NotBefore, call.Deadline
	planned.Tenant, planned.Priority, planned.After = call.Tenant, call.Priority, call.After
}

// planned is a call that was planned and judged.
type planned struct {
	session protocol.SessionID
	call    *protocol.Call // nil when there is an outcome already
	single  *loop.Single   // nil for a call that is attached to
}

// plan plans a call that has its defaults, and has Policy judge it.
func (c *Client) plan(ctx context.Context, call *Call) (*planned, error) {
	options := &loop.SingleOptions{
		Sandbox: call.Sandbox, Guard: call.Guard, Hooks: call.Hooks, Policy: call.Policy, Ledger: c.ledger,
		Interface: "go", ID: call.ID, MinLevel: cmp.Or(call.MinLevel, c.least()),
		Author: call.Author, Approve: call.Approve, Observe: call.Observe, Dispatcher: c.inner.Dispatcher, Logger: c.logger,
	}
	p := &planned{session: call.Session}
	if call.Payload == nil {
		p.single = loop.PlanSingle(ctx, call.Table, call.Session, call.Tool, call.Arguments, options)
	} else {
		kind, plan := string(wire.KindOf(call.Payload)), tools.Plan{Payload: call.Payload, Resources: call.Resources} // nil: the whole sandbox
		if call.Handler != "" && len(call.Resources) == 0 {
			plan.Resources = []protocol.Use{}
		}
		as := call.As
		if len(as) == 0 {
			as = []string{kind}
		}
		p.single = loop.PlanAct(ctx, call.Session, string(call.Handler), as, plan, kind, options)
		if fault := p.single.Error; fault != nil && fault.Code == protocol.CodeInternal {
			return nil, fmt.Errorf("%w: %w", protocol.ErrInvalidCall, fault)
		}
	}
	if p.call = p.single.Call; p.call == nil {
		return p, nil
	}
	call.set(p.call)
	p.single.Bind(p.call)
	return p, errors.Join(p.call.Validate(), c.checkServed(p.call.Pool))
}

// checkServed returns an error for a pool that has no worker and gets none: no other process
// reaches an embedded fleet, and all workers of this one serve other pools.
func (c *Client) checkServed(pool protocol.Pool) error {
	if _, served := c.served.Load(pool); served || c.elsewhere {
		return nil
	}
	var others []string
	for other := range c.served.Range {
		others = append(others, fmt.Sprint(other))
	}
	if len(others) == 0 { // one may be started later
		return nil
	}
	slices.Sort(others)
	return fmt.Errorf("%w: pool %s: no worker serves it, and no other process reaches this fleet; the workers of this process serve %s: set Pool of the call to that, or start a worker with Options.Pool %q",
		protocol.ErrInvalidCall, pool, strings.Join(others, ", "), pool)
}

// finish is the result of a call that was sent.
func (p *planned) finish(ctx context.Context, result *protocol.Result) Result {
	if p.single == nil {
		return Result{Result: *result, Text: (*tools.Tool)(nil).Text(result)}
	}
	return resultOf(p.session, p.single.Finish(ctx, result))
}

// failed is the result of a call that has none because of an error, and that error.
func (p *planned) failed(err error) (Result, error) {
	r, err := failed(p.session, err)
	r.CallID = p.call.ID
	if p.single != nil {
		r.Text = p.single.Failed(r.Status, r.Error).Text
	}
	return r, err
}

// Call runs a call and waits for its result. What goes wrong with the tool, or is not allowed by
// Policy, is in the [Result]. An error wraps one of three: [protocol.ErrInvalidCall] for wrong
// input; [ErrNotSent] if the fleet failed and the call does not run; and [ErrUnknownOutcome] if it
// may: [Client.Attach] with [Result.Ref] follows it. The Status of the Result is then
// [protocol.StatusRejected], or [protocol.StatusOutcomeUnknown].
//
// Call returns within about 0.1 s of the end of ctx. A ctx that has already ended sends nothing and
// is [ErrNotSent]. Otherwise the call is cancelled: the Result is a worker's answer within that
// time, or [protocol.StatusOutcomeUnknown]. While the server is away, Call tries until ctx ends.
func (c *Client) Call(ctx context.Context, call Call) (Result, error) {
	ctx, done := c.whileOpen(ctx)
	defer done()
	f, err := c.prepare(ctx, call)
	if err != nil {
		return f.outcome()
	}
	p := f.plan
	if p.call == nil {
		return resultOf(p.session, p.single), nil
	}
	options := calls.CallOptions{Brief: true}
	if call.Observe != nil {
		options.Observe = p.single.Update
	}
	result, err := c.inner.Dispatcher.CallWith(ctx, p.call, options)
	if err != nil {
		return p.failed(err)
	}
	return p.finish(ctx, result), nil
}

// resultOf is the result of a call that has ended.
func resultOf(session protocol.SessionID, o *loop.Single) Result {
	if o.Result == nil {
		return Result{Result: protocol.Result{SessionID: session, Status: o.Status, Error: o.Error}, Text: o.Text}
	}
	return Result{Result: *o.Result, Text: o.Text}
}

// mayRun is the error of a call that may run, or nil.
func mayRun(err error) error {
	if err == nil || errors.Is(err, ErrUnknownOutcome) || errors.Is(err, ErrNotSent) || errors.Is(err, protocol.ErrInvalidCall) {
		return err
	}
	return fmt.Errorf("%w: %w", ErrUnknownOutcome, err)
}

// failed returns the result and the error of [Client.Call] for an error of a call.
func failed(session protocol.SessionID, err error) (Result, error) {
	status, code := protocol.StatusOutcomeUnknown, protocol.CodeOutcomeUnknown
	switch {
	case errors.Is(err, protocol.ErrInvalidCall):
		status, code = protocol.StatusRejected, codes.InvalidPayload
	case errors.Is(err, ErrNotSent):
		status, code = protocol.StatusRejected, protocol.CodeFleetUnavailable
	}
	fault := protocol.Errorf(code, "%v", err)
	r := Result{Result: protocol.Result{SessionID: session, Status: status, Error: fault}}
	r.Text = (*tools.Tool)(nil).Failure(&r.Result)
	return r, mayRun(err)
}
