package loop

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/toolfleet/toolfleet/internal/calls/ports"
	"github.com/toolfleet/toolfleet/internal/modeltext/render"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools/policy"
)

// Agent is a kind of sub-agent that a model starts by its name with the tool agent. A sub-agent is
// a session of its own, whose id is the id of the tool call that started it. It runs in the process
// that runs its parent, under everything that binds the parent: policies, approvals, deadline,
// budget and cancel. It never has a tool that its parent does not have. A resumed parent resumes
// its sub-agents: the id of the call derives from the parent's journal, and a session answers the
// input of one call once, so none is started twice.
type Agent struct {
	Name        string
	Description string // when to start it, for the model of the parent
	System      string // system prompt; "" means the parent's
	// Model replies instead of the parent's, which nil means; then ModelName, Price and Compaction
	// are those of the parent, too.
	Model      Model
	ModelName  string
	Price      *Price
	Compaction *Compaction
	// Tools are the names of the tools that it has, of those of its parent; nil means all of them.
	// Without are the names of those that it does not have.
	Tools, Without []string
	// MaxSteps is how often its model is asked; 0 means as often as its parent's.
	MaxSteps int
	// Budget bounds it in addition to the budgets of its parents; nil does not.
	Budget *protocol.Spending
}

// Parent is the tool call that started a session.
type Parent struct {
	SessionID protocol.SessionID `json:"session_id"`
	CallID    protocol.CallID    `json:"call_id"`
	Agent     string             `json:"agent,omitempty"` // its [Agent].Name
}

// LoadAgent loads the journal of the sub-agent that a call of a session started; events are the
// session's. It is empty unless the sub-agent's own journal names that call: a call of an imported
// session may have the id of any session.
func LoadAgent(ctx context.Context, journal Journal, events []Event, call protocol.CallID) (History, error) {
	child, err := journal.Load(ctx, protocol.SessionID(call))
	if err != nil {
		return History{}, fmt.Errorf("load session %s: %w", call, err)
	}
	if len(child.Events) == 0 || child.Events[0].Parent == nil || child.Events[0].Parent.CallID != call {
		return History{}, nil
	}
	parent := child.Events[0].Parent.SessionID
	if !slices.ContainsFunc(events, func(e Event) bool {
		return e.SessionID == parent || e.Type == EventSessionForked && e.From == parent
	}) {
		return History{}, nil
	}
	return child, nil
}

// Bounds of sub-agents.
const (
	maxAgentDepth = 3  // parents that a session may have
	maxAgents     = 64 // that one run of the first session starts or resumes
)

// lineage describes the parents of a sub-agent; the zero value is a session without parents.
type lineage struct {
	parent *Parent
	depth  int
	tree   *tree    // nil without parents
	above  *account // nil without parents
	began  time.Time
	used   map[string]int // calls of the parents, by tool
}

// tree is what a run of a turn shares with all of its sub-agents.
type tree struct {
	started atomic.Int32  // sub-agents, or resumed
	asking  chan struct{} // has room while no person is asked about a call
}

// agentName is the name of a sub-agent's kind; "" of others, and of one like its parent.
func (r *Runner) agentName() string {
	if r.lineage.parent == nil {
		return ""
	}
	return r.lineage.parent.Agent
}

// agentNamed returns the kind with a name; "" is a kind without settings of its own.
func (r *Runner) agentNamed(name string) (Agent, *protocol.Error) {
	if name == "" {
		return Agent{}, nil
	}
	names := []string{}
	for _, a := range r.opts.Agents {
		if a.Name == name {
			return a, nil
		}
		names = append(names, a.Name)
	}
	if len(names) == 0 {
		return Agent{}, protocol.Errorf(protocol.CodeNotFound, "There is no agent %q, and no other one: leave agent out.", name)
	}
	return Agent{}, protocol.Errorf(protocol.CodeNotFound, "There is no agent %q. The agents are: %s.", name, strings.Join(names, ", "))
}

// runAgent has a sub-agent work on its prompt, and settles the call that asked for that. An error
// is one of the fleet or of a journal: then the call has no result, and the next run resumes it.
func (b *batch) runAgent(ctx context.Context, p *pendingCall) error {
	ctx, span := b.startTool(ctx, p)
	defer span.End()
	kind, unknown := b.agentNamed(p.agent().Agent)
	event, err := b.agent(ctx, p, b.subRunner(kind, p, p.agent()), unknown)
	if err != nil {
		return err
	}
	if event.Error != nil {
		failSpan(span, event.Error)
	}
	b.finish(ctx, p, event)
	return nil
}

// followAgent has a sub-agent work as a job. A cancel and a deadline of the turn end it; another
// end of the turn leaves it as it is, until the run of the next turn. It does not begin if it is
// denied now. The lock is held.
func (w *followers) followAgent(p *pendingCall, denied *protocol.Error) *follower {
	ctx, stop := context.WithCancelCause(w.ctx)
	f := w.newFollower(p.event.CallID, stop)
	f.tool, p.denied = p.tool, denied
	kind, unknown := w.agentNamed(p.agent().Agent)
	runner := w.subRunner(kind, p, p.agent())
	p.fork = w.newFork(ctx, p, true)
	w.group.Go(func() {
		defer close(f.done)
		defer f.accept()
		ctx, span := w.startTool(ctx, p)
		defer span.End()
		if p.fork != nil {
			p.fork.sent = w.dispatcher.Send(ctx, []protocol.Call{p.fork.call}, func(Update) { f.accept() })[0]
			<-p.fork.sent.Done()
		}
		f.accept()
		event, err := w.agent(ctx, p, runner, unknown)
		if err == nil {
			f.ended = &event
			return
		}
		if f.err, f.counted = err, p.counted; !detached(ctx) {
			w.logger.WarnContext(ctx, "sub-agent in the background stopped, it continues with the turn", slog.String("call_id", string(p.event.CallID)), slog.Any("error", err))
		}
	})
	return f
}

// awaitAgent waits until a sub-agent in the background has ended, of which the model reads before
// its turn ends, or which ends with a turn that is stopped. It reports whether there was one.
func (w *followers) awaitAgent(ctx context.Context) (bool, error) {
	for _, j := range w.jobs() {
		if j.ended != nil || j.Name != wire.AgentTool || w.opts.Replay.has(&ToolCall{Name: j.Name}) {
			continue
		}
		f := w.followerOf(ctx, &j, false)
		<-f.done // soon after the end of ctx
		switch {
		case detached(ctx):
			return true, context.Cause(ctx)
		case !f.knowsOutcome():
			return true, f.err
		}
		return true, w.recordEndedJobs(ctx)
	}
	return false, nil
}

// agent runs a sub-agent to its end, which is the result of its call.
func (t *turnRun) agent(ctx context.Context, p *pendingCall, runner *Runner, unknown *protocol.Error) (Event, error) {
	child, start := protocol.SessionID(p.event.CallID), time.Now()
	loading, cancel := context.WithTimeout(context.WithoutCancel(ctx), journalTimeout) // a stopped one has to be ended
	rec, err := runner.newRecorder(loading, child)
	cancel()
	begun := rec != nil && !rec.fresh
	var refused Event
	switch cause := context.Cause(ctx); {
	case err != nil:
		return Event{}, err
	case errors.Is(cause, ErrDetached):
		return Event{}, cause
	case !begun && rec.removed.Outlived(t.sequence(), time.Time{}):
		return p.localResult(protocol.StatusCancelled, "",
			protocol.Errorf(protocol.CodeCancelled, "The agent was not started: another process has refused it, or has removed its session."),
			0), nil
	case !begun && cmp.Or(p.denied, unknown) != nil:
		refused = p.localResult(protocol.StatusRejected, "", cmp.Or(p.denied, unknown), 0)
	case !begun && cause != nil: // the call's result says so
		refused = p.localResult(protocol.StatusCancelled, "", protocol.Errorf(protocol.CodeCancelled, "The agent was not started: the turn was stopped before."), 0)
	case runner.lineage.tree.started.Add(1) > maxAgents && !begun:
		refused = p.localResult(protocol.StatusRejected, "",
			protocol.Errorf(protocol.CodeLimitReached, "This session has started %d agents, which is as many as it may.", maxAgents),
			0)
	}
	if refused.Type != "" {
		if err = t.fence(ctx, child, rec.last); errors.Is(err, ErrJournalConflict) { // it has begun meanwhile
			return t.agent(ctx, p, runner, unknown)
		}
		return refused, err
	}
	if !begun {
		if failed, err := p.fork.ready(ctx); err != nil || failed != nil {
			if failed != nil {
				return p.localResult(failed.Status, "", failed.Error, 0), nil
			}
			return Event{}, err
		}
	}
	rec.above = runner.lineage.above
	rec.above.add(withoutTime(rec.session.spent))
	result, err := runner.runLoaded(ctx, rec, Input{Text: p.agent().Prompt, ID: p.event.CallID})
	used := withoutTime(rec.session.spent)
	if err != nil {
		p.counted = used
		return Event{}, fmt.Errorf("agent %s: %w", child, err)
	}
	rec.above.add(subtract(protocol.Spending{}, used)) // the event has it from now on
	event := t.agentEnded(ctx, p, result, used)
	if p.fork != nil {
		merged, err := t.merge(ctx, p, result.Outcome)
		if err != nil {
			return Event{}, err
		}
		event.Content += "\n\n" + merged
	}
	event.RunMS = new(float64(time.Since(start)) / float64(time.Millisecond))
	return event, nil
}

// fence has no process that was stopped begin a sub-agent which this one refuses.
func (t *turnRun) fence(ctx context.Context, child protocol.SessionID, last uint64) error {
	fencer, is := t.Runner.journal.(ports.Fencer)
	if !is {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), journalTimeout)
	defer cancel()
	if err := fencer.Fence(ctx, child, last); err != nil {
		return fmt.Errorf("refuse agent %s: %w", child, err)
	}
	return nil
}

// withoutTime returns an amount without its time: the time of a sub-agent is part of its parent's.
func withoutTime(s protocol.Spending) protocol.Spending {
	s.TimeMS = 0
	return s
}

// subtract returns a minus b.
func subtract(a, b protocol.Spending) protocol.Spending {
	return a.Add(protocol.Spending{Steps: -b.Steps, Calls: -b.Calls, Tokens: -b.Tokens, TimeMS: -b.TimeMS, USD: -b.USD})
}

// agentEnded is the result of the call of a sub-agent.
func (t *turnRun) agentEnded(ctx context.Context, p *pendingCall, result TurnResult, used protocol.Spending) Event {
	text := fullOutput{p.tool, t.fleet, t.opts.Logger, t.id}.textFor(ctx, p.event.CallID, result.Text)
	event := p.localResult(protocol.StatusOK, text, nil, 0)
	if result.Outcome != OutcomeAnswered {
		failure := result.Error
		if failure == nil {
			failure = protocol.Errorf(protocol.CodeToolFailed, "The agent ended as %s.", result.Outcome)
		}
		status := protocol.StatusFailed
		if result.Outcome == OutcomeInterrupted {
			status = protocol.StatusCancelled
		}
		event = p.localResult(status, "", failure, 0)
		if text != "" {
			event.Content += "\n\nThe last that the agent said:\n" + text
		}
	}
	event.Usage, event.CostUSD, event.Spent = &result.Usage, result.CostUSD, &used
	return event
}

// as is the runner with the model of a kind of sub-agent.
func (r *Runner) as(kind Agent) *Runner {
	other := *r
	if kind.Model != nil {
		other.model, other.opts.ModelName, other.opts.Price, other.opts.Compaction = kind.Model, kind.ModelName, kind.Price, kind.Compaction
	}
	return &other
}

// subRunner makes the runner of a sub-agent, which is bound by all that binds this turn.
func (t *turnRun) subRunner(kind Agent, p *pendingCall, request wire.AgentRequest) *Runner {
	child := *t.as(kind)
	child.opts.System = cmp.Or(kind.System, t.session.system, t.opts.System)
	child.opts.Project = t.session.project
	child.opts.Budget = kind.Budget
	child.opts.Sandbox = ""
	if request.Workspace != wire.AgentWorkspaceEmpty && request.Workspace != wire.AgentWorkspaceFork {
		child.opts.Sandbox = t.scope(t.id).Sandbox
	}
	if kind.MaxSteps > 0 {
		child.opts.MaxSteps = least(t.opts.MaxSteps, kind.MaxSteps)
	}
	child.opts.Timeout = 0 // the parent's ends ctx
	child.opts.Observe, child.opts.Additions = t.relay(p), nil
	child.lineage = lineage{
		parent: &Parent{SessionID: t.id, CallID: p.event.CallID, Agent: request.Agent}, depth: t.lineage.depth + 1, tree: t.tree,
		above: &t.account, began: time.Now(), used: t.session.used(),
	}
	for name, n := range t.lineage.used {
		child.lineage.used[name] += n
	}
	names := slices.DeleteFunc(t.table.Names(), func(name string) bool {
		return kind.Tools != nil && !slices.Contains(kind.Tools, name) || slices.Contains(kind.Without, name) ||
			name == wire.AgentTool && child.lineage.depth >= maxAgentDepth
	})
	child.table = t.table.Only(names)
	return &child
}

// relay reports a sub-agent's events to the observer of its parent: questions unchanged, since
// their answers name session and call, and all others as a sentence about the parent's call.
func (t *turnRun) relay(p *pendingCall) func(Event) {
	return func(e Event) {
		about := p.as(EventAgentMoved)
		switch e.Type {
		case EventQuestionAsked, EventAnswered, EventApprovalAsked:
			t.mu.Lock()
			defer t.mu.Unlock()
			t.observe(e)
			return
		case EventAgentMoved: // of a sub-agent of its own
			about.Text = e.Text
		case EventModelReply:
			about.Text = e.Text
		case EventToolCall:
			about.Text = e.Name + " " + e.Arguments
		default:
			return
		}
		t.notify(about)
	}
}

// agentsHint names the agents, for the system prompt of a session that can start them.
func (c *conversation) agentsHint() string {
	if _, has := c.table.Lookup(wire.AgentTool); !has || len(c.opts.Agents) == 0 {
		return ""
	}
	lines := []string{"Agents that the tool agent can start:"}
	for _, a := range c.opts.Agents {
		lines = append(lines, "- "+a.Name+": "+strings.Join(strings.Fields(a.Description), " "))
	}
	return strings.Join(lines, "\n")
}

// validateAgents returns every fault of agents.
func validateAgents(agents []Agent) error {
	var errs []error
	names := map[string]bool{}
	for _, a := range agents {
		switch {
		case strings.TrimSpace(a.Name) == "":
			errs = append(errs, errors.New("agent: name: missing"))
		case names[a.Name]:
			errs = append(errs, fmt.Errorf("agent %s: is there twice", a.Name))
		case a.MaxSteps < 0:
			errs = append(errs, fmt.Errorf("agent %s: max steps %d: must not be negative", a.Name, a.MaxSteps))
		}
		names[a.Name] = true
		errs = append(errs, validateBudget(a.Budget))
	}
	return errors.Join(errs...)
}

// fork is a sub-agent's fork of the workspace of its parent. Two calls in the parent's lane make
// it and merge it: the first is one of the calls of the step, in their order, the second comes when
// the sub-agent has ended. Their ids derive from the journal, as all do, and both can be repeated.
type fork struct {
	call protocol.Call
	sent Handle // of the call
}

// Where the calls of a fork are in the session of the sub-agent, which has no turn 0.
const (
	forkIndex  = 0
	mergeIndex = 1
)

// forkTimeout bounds the run of each of the two calls.
const forkTimeout = 10 * time.Minute

// newFork plans the fork of a sub-agent; nil when it does not work on one.
func (t *turnRun) newFork(ctx context.Context, p *pendingCall, sent bool) *fork {
	request, is := p.plan.Session.(wire.AgentRequest)
	if !is || request.Workspace != wire.AgentWorkspaceFork {
		return nil
	}
	f := &fork{}
	f.call = t.forkCall(ctx, p, forkIndex, protocol.Shared, wire.WorkspaceFork{To: string(p.event.CallID)})
	f.call.Again = sent
	return f
}

// forkCall is a call about the fork of a sub-agent, in the lane of this session's sandbox. It is
// bound as each call of the turn that started the sub-agent.
func (t *turnRun) forkCall(ctx context.Context, p *pendingCall, index int, access protocol.Access, payload protocol.Payload) protocol.Call {
	child := protocol.SessionID(p.event.CallID)
	call := protocol.Call{
		ID: wire.NewCallID(child, t.session.seed, 0, 0, index), SessionID: t.id, ToolCallID: p.event.ToolCallID, Tool: string(wire.KindOf(payload)),
		Turn: p.place.Turn, Step: p.place.Step, Index: p.place.Index, Pool: cmp.Or(p.plan.Pool, protocol.DefaultPool),
		Resources: []protocol.Use{{Key: protocol.SandboxKey(t.scope(t.id).Sandbox), Access: access}},
		IssuedAt:  time.Now().UTC(), RunTimeout: protocol.MillisOf(forkTimeout), Payload: payload,
	}
	bound, err := t.under(t.session.turns[p.place.Turn-1].terms)
	if err != nil {
		bound = t.Runner // of the turn that runs
	}
	binding(bound.judge(policy.Call{Tool: p.event.Name, Plan: p.plan}, "")).bind(&call, bound.opts.MinLevel)
	call.Delivery = protocol.Idempotent // whatever the policy says of the tool: it is done once
	endWith(ctx, &call)
	return call
}

// ready waits for the fork. It returns the failure of the call that makes it; an error is the
// fleet's, or the cause of the end of ctx.
func (f *fork) ready(ctx context.Context) (*protocol.Result, error) {
	if f == nil {
		return nil, nil //nolint:nilnil // there is nothing to wait for
	}
	<-f.sent.Done() // soon after the end of ctx
	switch result, err := f.sent.Result(); {
	case result == nil && ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case result == nil:
		return nil, fmt.Errorf("call %s that forks the workspace came back without result: %w", f.call.ID, err)
	case result.Status != protocol.StatusOK:
		return result, nil
	default:
		return nil, nil //nolint:nilnil // it is there
	}
}

// merge merges a sub-agent's changes into the workspace, and returns a text for the model. Changes
// of a stopped sub-agent are not merged.
func (t *turnRun) merge(ctx context.Context, p *pendingCall, outcome Outcome) (string, error) {
	child := string(p.event.CallID)
	cause := context.Cause(ctx)
	if errors.Is(cause, ErrDetached) { // the process that continues the turn merges them
		return "", cause
	}
	if cause != nil || outcome == OutcomeInterrupted {
		return fmt.Sprintf("[What the agent changed is not merged: it was stopped. Its files are in the workspace of session %s.]", child), nil //nolint:nilerr // the text says it
	}
	call := t.forkCall(ctx, p, mergeIndex, protocol.Exclusive, wire.WorkspaceMerge{From: child})
	call.Again = true // an earlier run may have sent it
	result, err := runCall(ctx, t.dispatcher, call)
	switch {
	case detached(ctx):
		return "", context.Cause(ctx)
	case err != nil:
		return "", fmt.Errorf("merge the workspace of agent %s: %w", child, err)
	}
	merged, is := result.Value.(wire.WorkspaceMergeResult)
	if !is {
		message := string(result.Status)
		if result.Error != nil {
			message = result.Error.Message
		}
		return fmt.Sprintf("[What the agent changed is not merged: %s. Its files are in the workspace of session %s.]", message, child), nil
	}
	return render.Merge(merged), nil
}
