package loop

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/toolfleet/toolfleet/internal/modeltext/prose"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
	"github.com/toolfleet/toolfleet/pkg/tools/policy"
)

// Policy decides which tool calls may be made. It is pure and safe for concurrent use: a
// resumed turn asks it again. What the rules of an operator say is a [policy.Judge].
type Policy interface {
	// Judge decides about one call. The zero verdict allows it.
	Judge(call policy.Call) policy.Verdict
}

// judgedBy is what a policy says to a call. What it says that cannot be understood is no, and a
// question has a time in any case.
func judgedBy(p Policy, call policy.Call) policy.Verdict {
	v := p.Judge(call)
	switch v.Decision {
	case "", policy.Allowed, policy.Denied:
	case policy.Ask:
		if v.Timeout <= 0 {
			v.Timeout = approvalTimeout
		}
	default:
		v.Reason = fmt.Sprintf("The session's policy is broken, it decided %q. Go on without the call.", v.Decision)
		v.Decision = policy.Denied
	}
	return v
}

// judgedAs is what a policy says to a call that also counts as one of other tools; nil says
// nothing, and "" is no tool.
func judgedAs(p Policy, call policy.Call, also ...string) policy.Verdict {
	if p == nil {
		return policy.Verdict{}
	}
	judged := judgedBy(p, call)
	for _, name := range also {
		if name != "" {
			call.Tool = name
			judged = judged.And(judgedBy(p, call))
		}
	}
	return judged
}

var _ Policy = (*policy.Judge)(nil)

// ApprovalRequest is what a person is asked.
type ApprovalRequest struct {
	SessionID protocol.SessionID
	CallID    protocol.CallID
	Tool      string
	Arguments string // as the model wrote them
	Reason    string // why the call needs approval
}

// approvalTimeout is how long a person has to answer unless the policy says otherwise.
const approvalTimeout = 5 * time.Minute

// maxNote is how many characters of a note are kept.
const maxNote = 2000

// The statuses of an [EventPolicyDecision].
const (
	decisionDenied   = string(policy.Denied) // by a rule
	decisionApproved = "approved"            // by a person
	decisionRefused  = "refused"             // by a person
	decisionExpired  = "expired"             // no person answered in time
)

// verdict is what was decided about a tool call of the last step.
type verdict struct {
	denied   *protocol.Error // why it is not made
	status   protocol.Status // of the result if it is denied; "" is rejected
	decision *Event          // to be journaled; nil when it is, or when nothing was decided
	minLevel string
	roots    []protocol.Roots
	once     bool   // the call must not start twice
	note     string // of the person who approved it
}

// binding is what a policy demands of a call that may be made.
func binding(v policy.Verdict) verdict {
	return verdict{minLevel: v.MinLevel, roots: v.Roots, once: v.AtMostOnce}
}

// bind puts into a call what the policy demands; where neither it nor the tool names a level of the
// sandbox, that is least.
func (v verdict) bind(call *protocol.Call, least string) {
	call.MinLevel, call.Roots = wire.HigherLevel(call.MinLevel, v.minLevel), v.roots
	if call.MinLevel == "" && call.Payload != nil && wire.Sandboxed(wire.KindOf(call.Payload)) {
		call.MinLevel = least
	}
	if v.once {
		call.Delivery = protocol.AtMostOnce
	}
}

// decide judges the tool calls of the last step that have no result, in their order,
// and asks about those that need approval, one after another. None of the step is
// dispatched before, so that their order holds. An error leaves the turn open.
func (t *turnRun) decide(ctx context.Context) (map[int]verdict, error) {
	turn := t.session.open()
	if t.opts.Policy == nil && !turn.last().decided() {
		return nil, nil //nolint:nilnil // there is no verdict
	}
	verdicts := make(map[int]verdict)
	used := t.session.used()
	for name, n := range t.lineage.used {
		used[name] += n
	}
	for i := range turn.last().calls {
		call := &turn.last().calls[i]
		if t.opts.Replay.has(&call.ToolCall) {
			continue
		}
		p := t.plan(call)
		if p.failure != nil {
			continue // it is refused whatever the policy says, and does not count
		}
		v, err := t.verdict(ctx, turn, i, policy.Call{Tool: call.Name, Plan: p.plan, Used: used}, p.about)
		if err != nil {
			return nil, err
		}
		if v.denied == nil {
			used[cmp.Or(p.about, call.Name)]++
		}
		verdicts[i] = v
	}
	return verdicts, nil
}

// verdict is what a call's decision in the journal says, or else the policy. A call that an earlier
// run has journaled was let through: the policy decides again only if it was not sent. If it
// decides otherwise, the call cannot be sent any more.
func (t *turnRun) verdict(ctx context.Context, turn *turn, index int, asked policy.Call, about string) (verdict, error) {
	call, judged := &turn.last().calls[index], t.judge(asked, about)
	v, err := t.newVerdict(ctx, turn, index, judged)
	if err != nil || v.denied == nil || !call.sent || call.ranHere() || call.lane == "" && call.Name != wire.AgentTool {
		return v, err
	}
	sent, err := t.wasSent(ctx, call.Name, call.lane, t.pending(turn, index).place.ID, true)
	if sent { // meanwhile, by a process that was stopped before
		return binding(judged), err
	}
	return v, err
}

// newVerdict is verdict for a call that may still be sent by an earlier run.
func (t *turnRun) newVerdict(ctx context.Context, turn *turn, index int, judged policy.Verdict) (verdict, error) {
	call := &turn.last().calls[index]
	v := binding(judged)
	approved := call.decision != nil && call.decision.status == decisionApproved
	if approved {
		v.note = call.decision.note
	}
	sent := call.sent
	if stricter := judged.Decision == policy.Denied || judged.Decision == policy.Ask && !approved; sent && stricter && context.Cause(ctx) == nil {
		var err error
		if sent, err = t.wasSent(ctx, call.Name, call.lane, t.pending(turn, index).place.ID, false); err != nil {
			return v, err
		}
	}
	switch {
	case call.decision != nil && !approved:
		return v.deny(call, call.decision.reason), nil
	case sent && (!call.ranHere() || judged.Decision != policy.Denied), call.content != nil, approved && judged.Decision != policy.Denied:
		return v, nil
	case judged.Decision == policy.Denied: // also when a person said yes to another coordinator, which did not send it
		v.decision = t.decision(ctx, t.pending(turn, index), judged.Rule, answer{status: decisionDenied, reason: judged.Reason})
		return v.deny(call, judged.Reason), nil
	case judged.Decision == policy.Ask && context.Cause(ctx) == nil: // else it is cancelled, as all that was not sent
		return t.approval(ctx, turn, index, judged)
	default:
		return v, nil
	}
}

// ranHere reports whether an earlier run may have run the call in its own process.
func (c *stepCall) ranHere() bool { return c.sent && c.lane == "" && c.Name != wire.AgentTool }

// deny is the verdict that a call is not made, or not once more.
func (v verdict) deny(call *stepCall, reason string) verdict {
	if v.denied = policyDenied(reason); call.ranHere() {
		v.status, v.denied = protocol.StatusOutcomeUnknown, lostCallError(v.denied)
	}
	return v
}

// judge asks the policy. A call that goes on with a stateful tool has to be allowed by its
// own name and as a call of that tool.
func (r *Runner) judge(asked policy.Call, about string) policy.Verdict {
	return judgedAs(r.opts.Policy, asked, about)
}

func policyDenied(reason string) *protocol.Error {
	return &protocol.Error{Code: protocol.CodePolicyDenied, Message: reason}
}

// approval asks a person and journals the answer at once. The time for an answer begins when no
// other call of the session or its sub-agents is asked about, so that the call can be answered.
func (t *turnRun) approval(ctx context.Context, turn *turn, index int, judged policy.Verdict) (verdict, error) {
	v := binding(judged)
	select {
	case t.personSlot() <- struct{}{}:
		defer func() { <-t.personSlot() }()
	case <-ctx.Done():
		return v, ifDetached(ctx)
	}
	p := t.pending(turn, index)
	if t.opts.Approve != nil {
		event := p.as(EventApprovalAsked)
		event.Arguments, event.Text, event.Rule = turn.last().calls[index].Arguments, judged.Reason, judged.Rule
		if err := t.record(ctx, event); err != nil { // shows in the session that it waits
			return v, err
		}
	}
	given := askPerson(ctx, t.opts.Approve, judged, ApprovalRequest{
		SessionID: t.id, CallID: p.event.CallID, Tool: p.event.Name, Arguments: turn.last().calls[index].Arguments, Reason: judged.Reason,
	})
	if given.status == "" {
		return v, ifDetached(ctx)
	}
	if err := t.record(ctx, *t.decision(ctx, p, judged.Rule, given)); err != nil {
		return v, err
	}
	if v.note = given.note; given.status != decisionApproved {
		v.denied = policyDenied(given.reason)
	}
	return v, nil
}

// ErrAskAgain is returned by an Approve function ([Options], [SingleOptions]) if the question was
// not shown because another one was, or only now could be. It is asked again at once, with its
// whole time.
var ErrAskAgain = errors.New("the question waited for another one")

// asker asks a person.
type asker = func(ctx context.Context, request ApprovalRequest) (protocol.Approval, error)

// answer is what came of a question to a person, or a rule's own decision.
type answer struct {
	status string // "" when ctx ended before there was an answer
	reason string // for the model when the call is not made
	by     string
	via    string // the way by which the answer came
	note   string // what the person said
	later  bool   // the answer comes with the same call, sent again
}

func askPerson(ctx context.Context, approve asker, judged policy.Verdict, request ApprovalRequest) answer {
	if approve == nil {
		return answer{status: decisionRefused, reason: fmt.Sprintf("The call of %s needs approval, and there is nobody to ask. Go on without it.", request.Tool)}
	}
	said, expired, err := askOnce(ctx, approve, judged.Timeout, request)
	for errors.Is(err, ErrAskAgain) && ctx.Err() == nil {
		said, expired, err = askOnce(ctx, approve, judged.Timeout, request)
	}
	given := answer{reason: judged.Reason, by: prose.Valid(said.By), via: said.Via, note: noteOf(said)}
	switch {
	case err == nil && said.Granted:
		given.status = decisionApproved
	case err == nil:
		given.status, given.reason = decisionRefused, "A person was asked about this call and said no."
		if given.note != "" {
			given.reason += " They said: " + given.note
		}
	case ctx.Err() != nil:
		return answer{}
	case expired:
		given.status, given.reason = decisionExpired, fmt.Sprintf("The call needs approval, and nobody answered within %s. Go on without it, or say what you need.", judged.Timeout)
	default:
		given.status, given.reason = decisionRefused, fmt.Sprintf("The call needs approval, and nobody could be asked (%v). Go on without it.", err)
		given.later = errors.Is(err, ErrAnsweredLater)
	}
	return given
}

// askOnce puts the question once, and reports whether the time for an answer is over.
func askOnce(ctx context.Context, approve asker, most time.Duration, request ApprovalRequest) (said protocol.Approval, expired bool, err error) {
	limited, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	said, err = approve(limited, request)
	return said, limited.Err() != nil, err
}

// noteOf is the note of an answer, cut when it is very long.
func noteOf(said protocol.Approval) string {
	return prose.Short(strings.TrimSpace(prose.Valid(said.Note)), maxNote)
}

// decision is the event of a decision, which is also logged.
func (t *turnRun) decision(ctx context.Context, p *pendingCall, rule string, given answer) *Event {
	event := p.as(EventPolicyDecision)
	event.Status, event.Rule, event.Text, event.By, event.Note = given.status, rule, given.reason, given.by, given.note
	event.SessionID, event.Via = t.id, given.via
	audit(ctx, t.logger, &event)
	return &event
}

// audit logs a decision. With the journal this is the audit log.
func audit(ctx context.Context, logger *slog.Logger, e *Event) {
	level := slog.LevelWarn
	if e.Status == decisionApproved {
		level = slog.LevelInfo
	}
	logger.LogAttrs(ctx, level, "tool call decided by policy",
		slog.String("session_id", string(e.SessionID)), slog.String("call_id", string(e.CallID)), slog.String("tool", e.Name),
		slog.String("decision", e.Status), slog.String("rule", e.Rule), slog.String("by", e.By), slog.String("note", e.Note), slog.String("via", e.Via), slog.String("interface", e.Interface), slog.Time("at", time.Now().UTC()))
}

// deniedByRoots returns the rule that a worker found broken, where a path led; "" for
// every other result: a tool of one's own may deny by itself.
func deniedByRoots(r *protocol.Result, plan tools.Plan, roots []protocol.Roots) string {
	if len(roots) == 0 || r == nil || r.Error == nil || r.Error.Code != protocol.CodePolicyDenied {
		return ""
	}
	if slices.ContainsFunc(plan.Resources, func(u protocol.Use) bool { return u.Access == protocol.Shared }) {
		return "paths.read"
	}
	return "paths.write"
}

// decided reports whether the journal has a decision about a call of the step.
func (s *step) decided() bool {
	for i := range s.calls {
		if s.calls[i].decision != nil {
			return true
		}
	}
	return false
}

// used counts the calls of all steps before the last that were not refused, by tool.
func (s *session) used() map[string]int { return s.usedBefore(max(len(s.open().steps)-1, 0)) }

// usedBefore counts those of all turns before the last one, of that so many steps, and the calls by
// other interfaces.
func (s *session) usedBefore(count int) map[string]int {
	used := make(map[string]int)
	for _, call := range s.judged {
		if call.counts() {
			used[call.tool]++
		}
	}
	for i := range s.turns {
		steps := s.turns[i].steps
		if i == len(s.turns)-1 {
			steps = steps[:count]
		}
		for j := range steps {
			for k := range steps[j].calls {
				if call := &steps[j].calls[k]; call.status != protocol.StatusRejected {
					used[cmp.Or(call.about, call.Name)]++
				}
			}
		}
	}
	return used
}
