// Package serve runs sessions for others: a coordinator takes lanes of the pool
// "session" as a worker takes lanes of tools, and a turn is a call like any other.
//
// The lane of a session is "session/<id>", so its turns run one after another and
// one coordinator has it at a time. When that one is lost, the call is run again
// elsewhere; the journal says how far the turn had come, and it continues from there.
package serve

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"runtime/debug"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/toolfleet/toolfleet/internal/calls/ports"
	"github.com/toolfleet/toolfleet/internal/judge"
	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/internal/mcp/mcptools"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/session/schedule"
	"github.com/toolfleet/toolfleet/internal/system/pause"
	"github.com/toolfleet/toolfleet/internal/telemetry"
	"github.com/toolfleet/toolfleet/internal/telemetry/genaiconv"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/internal/wire/signing"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
	"github.com/toolfleet/toolfleet/pkg/tools/manifest"
	"github.com/toolfleet/toolfleet/pkg/tools/mcp"
	"github.com/toolfleet/toolfleet/pkg/tools/policy"
)

// TurnTimeout bounds a turn that names no bound of its own.
const TurnTimeout = 24 * time.Hour

// Key is the resource key of a session.
func Key(session protocol.SessionID) protocol.ResourceKey {
	return protocol.ResourceKey("session/" + string(session))
}

// NewCall makes the call that runs a turn. timeout 0 means [TurnTimeout].
func NewCall(session protocol.SessionID, turn wire.TurnRun, timeout time.Duration) protocol.Call {
	if timeout <= 0 {
		timeout = TurnTimeout
	}
	return protocol.Call{
		ID: wire.RandomCallID(), SessionID: session, Tool: string(wire.KindTurnRun), Pool: protocol.SessionPool,
		Resources: []protocol.Use{{Key: Key(session), Access: protocol.Exclusive}},
		Delivery:  protocol.Idempotent, MaxAttempts: maxAttempts,
		IssuedAt: time.Now().UTC(), RunTimeout: protocol.MillisOf(timeout), Payload: turn,
	}
}

// maxAttempts is high: a turn that is taken over continues, it does not start again.
const maxAttempts = 100

// Options of a [Server]. Models and the ports are required.
type Options struct {
	Fleet protocol.Fleet
	Holder
	Dispatcher loop.Dispatcher
	Journal    loop.Journal
	Served
	Toolbox
	Rules
	Bounds
	// Tracer and Meter make spans and metrics; nil is what the process has installed.
	Tracer trace.Tracer
	Meter  metric.Meter
	Logger *slog.Logger
}

// Holder is this coordinator as a holder of lanes.
type Holder struct {
	// ID is its name.
	ID protocol.WorkerID
	// Build is the version of the program, for lists of coordinators.
	Build string
	// Slots is how many turns run at once; default 1.
	Slots int
	// AckWait is the length of leases on sessions; 0 takes what the fleet has.
	AckWait time.Duration
	// Origin is that of [lane.Options].
	Origin string
	// Keys are the trusted signers of turns; nil runs every turn. One whose signer is bound to a
	// tenant runs only in a session of that tenant.
	Keys *signing.Keys
}

// Served are the models that turns may ask for.
type Served struct {
	// Models are by name.
	Models map[string]loop.Model
	// Default is the name of the one for turns that name none.
	Default string
	// About returns what a model costs, nil when that is unknown, and when its conversations are
	// compacted, nil for never. A nil About knows nothing.
	About func(model string) (*loop.Price, *loop.Compaction)
}

// Toolbox is what turns have in addition to their toolsets.
type Toolbox struct {
	// Tools is the folder of the user's own tools and MCP servers, which every turn has as they are
	// when it begins to run; nil for none.
	Tools *manifest.Folder
	// Skills is the tool that reads skills, which every turn has; empty without skills.
	Skills []tools.Tool
	// Servers are MCP servers in addition to those of the folder. Do asks them for their tools, in
	// the sandbox of the session, when a turn begins to run; required where there are servers.
	Servers []mcp.Server
	Do      mcptools.DoFunc
	// Agents are the kinds of sub-agents that turns with the toolset agents can start.
	Agents []loop.Agent
	// Schedules has the triggers that sessions set; nil where this coordinator starts none.
	Schedules *schedule.Store
	// Sandbox is the sandbox that all sessions use; "" means one each. Pool runs the calls of tools
	// that name none; "" means [protocol.DefaultPool].
	Sandbox string
	Pool    protocol.Pool
	// Alone has this process alone run a turn of a session until release; nil is for a fleet where
	// claims suffice.
	Alone func(ctx context.Context, session protocol.SessionID) (release func(), err error)
}

// Rules say which tool calls turns may make.
type Rules struct {
	// MinLevel is that of [loop.Options].
	MinLevel string
	// Policies bind the tool calls of every turn, in addition to those that the turn brings.
	Policies []policy.Policy
	// Approve asks a person about calls for which a policy demands it; with nil they are refused.
	Approve func(ctx context.Context, request loop.ApprovalRequest) (protocol.Approval, error)
	// GiverValid is that of [loop.Options].
	GiverValid func(ctx context.Context, giver protocol.Giver) bool
	// Hooks see, change and refuse what turns do.
	Hooks []loop.Hook
	// TakeOn lets a call know that the answer to its question [loop.EventQuestionAsked] may come
	// from elsewhere; with nil it is declined unless a follower of the turn answers it.
	TakeOn func(asked loop.Event)
}

// Bounds are for turns that ask for more, or for nothing.
type Bounds struct {
	MaxSteps  int
	MaxTokens int64
	// PromoteAfter is for turns that leave it open; see [loop.Options].
	PromoteAfter time.Duration
	// Settings are for turns that leave them open; the lesser MaxOutput holds.
	Settings loop.Settings
	// Unattended bounds what a session does without a person; its Firing is not used.
	Unattended ports.Unattended
}

func (o Options) withDefaults() Options {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	o.Tracer = cmp.Or(o.Tracer, telemetry.Tracer())
	o.Meter = cmp.Or(o.Meter, telemetry.Meter())
	return o
}

// Server takes turns and executes them. Make one with [New] and run it once.
type Server struct {
	lane.DefaultHost

	options Options
	nc      *nats.Conn
	holder  *lane.Holder
	metrics *telemetry.HolderMetrics
	turns   *telemetry.TurnMetrics
}

var _ lane.Host = (*Server)(nil)

// New makes a server on the streams of a fleet, which must exist. Its live events go out through
// nc.
func New(ctx context.Context, nc *nats.Conn, o Options) (*Server, error) {
	o = o.withDefaults()
	s := &Server{
		options: o, nc: nc,
		metrics: telemetry.NewHolderMetrics(o.Meter, string(protocol.SessionPool)), turns: telemetry.NewTurnMetrics(o.Meter),
	}
	var err error
	s.holder, err = lane.NewHolder(ctx, nc, s, lane.Options{
		Fleet: o.Fleet, Pool: protocol.SessionPool, Worker: o.ID, Slots: o.Slots, AckWait: o.AckWait, Origin: o.Origin, Keys: o.Keys, Logger: o.Logger,
	})
	return s, err
}

// Run takes turns until ctx ends, then drains: turns that run may end until drain ends, and are
// left to another coordinator then. It returns when nothing of it runs any more.
func (s *Server) Run(ctx, drain context.Context) error {
	defer s.metrics.Observe(ctx, s.holder.Load)()
	defer natsio.Describe(ctx, s.nc, s.options.Fleet, protocol.SessionPool, s.info, s.options.Logger)()
	return s.holder.Run(ctx, drain)
}

// Running is how many turns run.
func (s *Server) Running() int {
	_, used, _ := s.holder.Load()
	return used
}

// CanRun implements [lane.Host]: a turn that names a model waits for a coordinator that serves it.
// Any coordinator takes, and refuses, a call that is no turn.
func (s *Server) CanRun(n lane.Requirements) bool {
	return n.Model == "" || s.options.Models[n.Model] != nil
}

// Admit implements [lane.Host].
func (s *Server) Admit(ctx context.Context, run *lane.Run) (leave func(), refusal *protocol.Result) {
	if s.options.Alone == nil {
		return s.DefaultHost.Admit(ctx, run)
	}
	leave, err := s.options.Alone(ctx, run.Call.SessionID)
	if err != nil {
		refused := wire.NewResult(run.Call, protocol.StatusRejected, protocol.Errorf(protocol.CodeBusy, "%v", err))
		return func() {}, &refused
	}
	return leave, nil
}

// info describes this coordinator.
func (s *Server) info() wire.WorkerInfo {
	info := wire.WorkerInfo{
		WorkerID: s.options.ID, Pool: protocol.SessionPool, Build: s.options.Build,
		Driver: "none", Level: "none", Network: "none", Languages: []string{}, Models: s.models(), SignKey: s.signKey(),
	}
	s.holder.Describe(&info)
	return info
}

// signKey names the key of this coordinator's schedules.
func (s *Server) signKey() string {
	if s.options.Schedules == nil {
		return ""
	}
	return s.options.Schedules.Signer.ID()
}

// models are the names of the models, sorted.
func (s *Server) models() []string { return slices.Sorted(maps.Keys(s.options.Models)) }

// OnSettled implements [lane.Host]: it counts a turn whose result is stored, and ends a failed turn
// in the journal. Its coordinator may have been lost in the middle of it, and the turn's tool calls
// would run until the session's next turn. The session's next turn waits meanwhile.
func (s *Server) OnSettled(ctx context.Context, c *protocol.Call, r *protocol.Result) {
	s.metrics.Ended(ctx, c.Tool, string(r.Status), r.Error.ErrorType())
	s.metrics.Waited(ctx, string(c.Tenant), wire.WaitsByReason(&r.Waits))
	if r.Status != protocol.StatusOK {
		s.conclude(ctx, c, r)
	}
}

// OnAlreadySettled implements [lane.Host] for a turn whose coordinator was lost after it stored the
// result.
func (s *Server) OnAlreadySettled(ctx context.Context, c *protocol.Call) {
	r, err := s.holder.Result(ctx, c.SessionID, c.ID)
	switch {
	case err != nil:
		s.options.Logger.WarnContext(ctx, "result of a turn cannot be read", slog.String("session_id", string(c.SessionID)), slog.Any("error", err))
	case r != nil && r.Status != protocol.StatusOK:
		s.conclude(ctx, c, r)
	}
}

// conclude ends the turn of a finished call in the journal: it records a turn that never began, so
// that readers see its outcome, and ends an open one.
func (s *Server) conclude(ctx context.Context, c *protocol.Call, r *protocol.Result) {
	switch {
	case r.Error == nil:
	case r.Error.Code == codes.TurnPostponed: // the journal says so
		return
	case r.Error.Code == codes.NotSigned: // the sender may have no right to write into the session
		return
	case r.Error.Code == protocol.CodeNotFound: // the session was removed, and is not begun by this
		return
	}
	recorded, err := s.recordRefused(ctx, c, r)
	if err == nil && !recorded {
		err = s.endGivenUp(ctx, c)
	}
	if err != nil && !errors.Is(err, loop.ErrRemoved) && !errors.Is(err, loop.ErrUncompleted) { // no turn is open there
		s.options.Logger.WarnContext(ctx, "turn is left to the session's next one, which ends it",
			slog.String("session_id", string(c.SessionID)), slog.Any("error", err))
	}
}

// recordRefused reports whether it has recorded a turn that never began.
func (s *Server) recordRefused(ctx context.Context, c *protocol.Call, r *protocol.Result) (bool, error) {
	need := lane.RequirementsOf(c)
	if need.Kind != wire.KindTurnRun || c.Lane() != Key(c.SessionID).Lane() {
		return false, nil // the journal of a session whose lane this coordinator does not hold is not its to write
	}
	if turn, read := c.Payload.(wire.TurnRun); read && turn.Compact {
		return true, nil // it asked for no turn
	}
	prompt := "(a prompt that was too large for a message, and was not read)"
	if turn, read := c.Payload.(wire.TurnRun); read {
		prompt = turn.Prompt
	}
	owner := judge.Owner{Tenant: c.Tenant, By: c.By}
	if s.options.Keys != nil { // who has signed it is not known here
		owner.Tenant = cmp.Or(owner.Tenant, judge.DefaultTenant)
	}
	ctx = judge.With(ctx, judge.PrincipalOf(owner))
	return refused{
		id: c.ID, madeAfter: c.MadeAfter, madeAt: c.IssuedAt, tenant: c.Tenant, by: c.By, input: prompt,
		model: cmp.Or(need.Model, s.options.Default), outcome: outcome(r), err: r.Error,
	}.record(ctx, s.options.Journal, c.SessionID)
}

// outcome is how a turn ended that never began.
func outcome(r *protocol.Result) loop.Outcome {
	switch r.Status {
	case protocol.StatusCancelled:
		return loop.OutcomeInterrupted
	case protocol.StatusTimeout:
		return loop.OutcomeLimitReached
	default:
		return loop.OutcomeFailed
	}
}

// endTimeout bounds how long ending a turn without a coordinator may take, most of it for calls
// whose workers do not answer.
const endTimeout = 30 * time.Second

// endGivenUp ends a turn that is open although its call is over.
func (s *Server) endGivenUp(ctx context.Context, c *protocol.Call) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	turn, _ := c.Payload.(wire.TurnRun)
	if len(turn.Toolsets) == 0 {
		turn.Toolsets = []string{"core"}
	}
	sets := append(slices.Clone(turn.Toolsets), "agents")             // its sub-agents end with it, also if the payload cannot be read
	runner, fault := s.runner(wire.TurnRun{Toolsets: sets}, nil, nil) // the journal has what else binds it
	if fault != nil {
		return fault
	}
	ctx, cancel := context.WithTimeout(ctx, endTimeout)
	defer cancel()
	return runner.EndGivenUp(s.unattended(s.withTriggers(ctx, c), c), c.SessionID, c.ID)
}

// OnLost implements [lane.Host].
func (s *Server) OnLost(ctx context.Context, _ protocol.Lane) { s.metrics.Lost(ctx) }

// OnWorkerLost implements [lane.Host].
func (s *Server) OnWorkerLost(ctx context.Context, id protocol.WorkerID) {
	s.metrics.LostWorker(ctx)
	s.options.Logger.InfoContext(ctx, "a coordinator was lost: its sessions go to others", slog.String("worker_id", string(id)))
}

// Release implements [lane.Executor]: a session keeps nothing here.
func (s *Server) Release(protocol.Lane) {}

// Execute implements [lane.Executor].
func (s *Server) Execute(ctx context.Context, run *lane.Run) (r protocol.Result) {
	defer func() {
		if p := recover(); p != nil { // of a model: the others' turns must not end with it
			s.options.Logger.ErrorContext(ctx, "turn panicked", slog.Any("panic", p), slog.String("stack", string(debug.Stack())))
			r = wire.NewResult(run.Call, protocol.StatusFailed, protocol.Errorf(protocol.CodePanic, "the turn panicked: %v", p))
		}
	}()
	ctx, process := s.options.Tracer.Start(telemetry.Extract(ctx, run.Header), telemetry.SpanProcess,
		trace.WithSpanKind(trace.SpanKindConsumer), trace.WithAttributes(append(telemetry.Processed(wire.CallsStream(s.options.Fleet)),
			telemetry.KeyCallID.String(string(run.Call.ID)), genaiconv.ConversationID.String(string(run.Call.SessionID)),
			telemetry.KeyPool.String(string(run.Call.Pool)), telemetry.KeyWorkerID.String(string(s.options.ID)), telemetry.KeyAttempt.Int(run.Attempt))...))
	defer func() {
		if r.Error != nil {
			telemetry.Fail(process, r.Error)
		}
		process.End()
	}()
	s.metrics.Started(ctx, run.Call.Tool, run.Attempt, run.Queued, run.InLane)
	turn, ok := run.Call.Payload.(wire.TurnRun)
	if !ok {
		return wire.NewResult(run.Call, protocol.StatusRejected,
			protocol.Errorf(codes.UnknownPayload, "coordinators run turns, not %q", wire.KindOf(run.Call.Payload)))
	}
	ctx = judge.With(wire.WithFlow(ctx, run.Call.Tenant, run.Call.Priority), principal(run))
	if run.Call.Lane() != Key(run.Call.SessionID).Lane() {
		return wire.NewResult(run.Call, protocol.StatusRejected,
			protocol.Errorf(codes.InvalidPayload, "a turn of session %s needs the resource key %s", run.Call.SessionID, Key(run.Call.SessionID)))
	}
	if refusal := s.orphaned(ctx, run.Call, turn.Trigger); refusal != nil {
		return wire.NewResult(run.Call, protocol.StatusRejected, refusal)
	}
	events := &events{server: s, run: run}
	events.started()
	runner, fault := s.patientRunner(ctx, run.Call, &turn, events.send)
	if status, interrupted, is := lane.Interrupted(ctx); is && fault != nil {
		return wire.NewResult(run.Call, status, interrupted)
	}
	if fault != nil {
		history, err := s.options.Journal.Load(ctx, run.Call.SessionID)
		if err = cmp.Or(err, mayAdd(ctx, run.Call.SessionID, history)); errors.Is(err, judge.ErrRefused) {
			fault = refusedTurn(err) // which is not recorded there
		}
		return wire.NewResult(run.Call, protocol.StatusRejected, fault)
	}
	// Losing the session, or draining, must not cancel its calls: the next holder waits for them.
	ctx, detach := context.WithCancelCause(ctx)
	defer detach(nil)
	running, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancel(nil)
	stop := context.AfterFunc(ctx, func() {
		cancel(turnCause(context.Cause(ctx), run.Call))
	})
	defer stop()
	if turn.Compact {
		r := s.compact(running, runner, run.Call)
		if status, fault, interrupted := lane.Interrupted(ctx); interrupted && r.Status != protocol.StatusOK {
			r.Status, r.Error = status, fault
		}
		return r
	}
	begun := time.Now()
	result, err := s.persist(running, runner, run.Call, turn)
	if err == nil { // else it is open, and may continue elsewhere
		s.turns.Ended(ctx, s.model(turn), string(result.Outcome), result.Error.ErrorType(), result.CostUSD, time.Since(begun))
	}
	r = s.result(run.Call, result, err)
	if errors.Is(err, judge.ErrRefused) {
		return r
	}
	if result.Outcome == loop.OutcomeInterrupted || err != nil {
		if status, fault, interrupted := lane.Interrupted(ctx); interrupted { // which knows a timeout from a cancel
			r.Status, r.Error = status, fault
		}
	}
	return r
}

// patientRunner makes the runner of a turn, and names the turn's model. While the fleet cannot be
// asked for the tools of MCP servers, it is asked again until ctx ends: the turn may have begun
// elsewhere, and a refusal would end it.
func (s *Server) patientRunner(ctx context.Context, c *protocol.Call, turn *wire.TurnRun, observe func(loop.Event)) (runner *loop.Runner, fault *protocol.Error) {
	pause.Until(ctx, pause.Resume, func() bool {
		var model string
		if model, fault = s.modelOf(ctx, c.SessionID, *turn); fault == nil {
			turn.Model = model
			runner, fault = s.runner(*turn, func(rules mcptools.Rules, own []tools.Tool, servers []mcp.Server) ([]tools.Tool, error) {
				return s.served(ctx, c, rules, own, servers)
			}, observe)
		}
		if fault == nil || fault.Code != protocol.CodeFleetUnavailable {
			return true
		}
		s.options.Logger.WarnContext(ctx, "turn does not begin yet", slog.String("session_id", string(c.SessionID)), slog.Any("error", fault))
		return false
	})
	return runner, fault
}

// principal is who acts in a turn: whom its call was made for, with the tenant of the call. A call
// without a tenant reaches what its signer reaches.
func principal(run *lane.Run) judge.Principal {
	who := judge.PrincipalOf(run.Owner())
	if who.Tenant = run.Call.Tenant; who.Tenant == "" && run.Signer != nil {
		who.Tenant = run.Signer.Tenant
	}
	return who
}

// mayAdd judges a turn in a session with a journal.
func mayAdd(ctx context.Context, id protocol.SessionID, history loop.History) error {
	if len(history.Events) == 0 {
		return nil
	}
	return judge.Judge(ctx, judge.Use, judge.Object{Kind: judge.Session, ID: string(id), Owner: judge.OwnerOf(history)})
}

// refusedTurn is the error of a turn that its principal may not add.
func refusedTurn(err error) *protocol.Error {
	return protocol.Errorf(codes.NotSigned, "%v; the turn was not run", err)
}

// compact has a summary written instead of a turn, again after a failure of the fleet.
func (s *Server) compact(ctx context.Context, runner *loop.Runner, c *protocol.Call) protocol.Result {
	for {
		done, err := runner.Compact(ctx, c.SessionID, c.ID)
		switch {
		case err == nil:
			r := wire.NewResult(c, protocol.StatusOK, nil)
			r.Value = wire.TurnRunResult{Outcome: string(loop.OutcomeAnswered), Compacted: done}
			return r
		case errors.Is(err, judge.ErrRefused):
			return wire.NewResult(c, protocol.StatusRejected, refusedTurn(err))
		case errors.Is(err, loop.ErrNotCompacted):
			return wire.NewResult(c, protocol.StatusFailed, protocol.Errorf(protocol.CodeModelFailed, "%v", err))
		case stays(err), ctx.Err() != nil:
			return wire.NewResult(c, protocol.StatusFailed, protocol.Errorf(protocol.CodeFleetUnavailable, "%v", err))
		}
		s.options.Logger.WarnContext(ctx, "summary interrupted, going on", slog.String("session_id", string(c.SessionID)), slog.Any("error", err))
		pause.For(ctx, pause.Resume)
	}
}

// turnCause says in words of the session loop why a turn has to stop.
func turnCause(cause error, c *protocol.Call) error {
	switch {
	case errors.Is(cause, lane.ErrLost), errors.Is(cause, lane.ErrDraining):
		return loop.ErrDetached
	case errors.Is(cause, lane.ErrRunTimeout):
		return codes.TimeLimit(c.RunFor())
	case errors.Is(cause, lane.ErrDeadline):
		return codes.TimeLimit(c.LifeTime())
	default:
		return cause
	}
}

// persist runs the turn, again after a failure of the fleet: the turn is open then and continues.
// Once ctx has ended, one try is made to end the turn in the journal, whatever the cause; if it
// fails, conclude ends the turn when the call has its result.
func (s *Server) persist(ctx context.Context, runner *loop.Runner, c *protocol.Call, turn wire.TurnRun) (loop.TurnResult, error) {
	input := loop.Input{Text: turn.Prompt, ID: c.ID, Attachments: attachments(turn), AnswerSchema: turn.AnswerSchema, MadeAfter: c.MadeAfter, MadeAt: c.IssuedAt}
	for {
		stopped := ctx.Err() != nil
		result, err := runner.Run(s.unattended(s.withTriggers(ctx, c), c), c.SessionID, input)
		input.Again = input.Again || result.Turn > 0
		if err == nil || stays(err) || stopped || ctx.Err() != nil && result.Outcome == loop.OutcomeInterrupted {
			return result, err
		}
		s.options.Logger.WarnContext(ctx, "turn interrupted, going on", slog.String("session_id", string(c.SessionID)), slog.Any("error", err))
		pause.For(ctx, pause.Resume) // one that is stopped meanwhile says so itself
	}
}

// stays reports whether a fault is there again however often a turn is run; each time, the model
// would be asked again.
func stays(err error) bool {
	return errors.Is(err, loop.ErrJournalInvalid) || errors.Is(err, loop.ErrNoInput) || errors.Is(err, judge.ErrRefused) ||
		errors.Is(err, loop.ErrRemoved) || errors.Is(err, loop.ErrUncompleted) ||
		errors.Is(err, loop.ErrEventTooLarge) || errors.Is(err, &protocol.Error{Code: protocol.CodeFleetFull})
}

// result translates the end of a turn.
func (s *Server) result(c *protocol.Call, t loop.TurnResult, err error) protocol.Result {
	status := protocol.StatusOK
	fault := t.Error
	switch {
	case errors.Is(err, judge.ErrRefused):
		return wire.NewResult(c, protocol.StatusRejected, refusedTurn(err))
	case err != nil && fault == nil:
		status, fault = protocol.StatusFailed, protocol.Errorf(protocol.CodeFleetUnavailable, "%v", err)
	case err != nil, t.Outcome == loop.OutcomeFailed, t.Outcome == loop.OutcomeLimitReached:
		status = protocol.StatusFailed
	case t.Outcome == loop.OutcomeInterrupted:
		status = protocol.StatusCancelled
	}
	if status == protocol.StatusOK {
		fault = nil
	} else if fault == nil {
		fault = protocol.Errorf(protocol.CodeInternal, "the turn ended as %s", t.Outcome)
	}
	r := wire.NewResult(c, status, fault)
	r.Value = wire.TurnRunResult{Outcome: string(t.Outcome), Text: t.Text, Answer: t.Answer, Steps: t.Steps, Usage: t.Usage}
	return r
}
