package loop

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
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

// verdict is what was decided about a tool call.
type verdict struct {
	denied   *protocol.Error // why it is not made
	status   protocol.Status // of the result if it is denied; "" is rejected
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
	if t.opts.Policy == nil && !turn.last().decided() && !turn.last().hooked() {
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
func (t *turnRun) verdict(ctx context.Context, turn *turn, index int, asked policy.Call, about string) (v verdict, err error) {
	call, stopped := &turn.last().calls[index], context.Cause(ctx) != nil
	judged := call.hook.verdict().And(t.judge(asked, about))
	v, p, sent := binding(judged), t.pending(turn, index), call.sent
	denied := judged.Decision == policy.Denied
	approved := call.decision != nil && call.decision.status == decisionApproved
	if approved && !sent && call.decision.earlier != nil { // a resumed turn asks again whether that counts
		approved = t.approvalCounts(ctx, *call.decision.earlier)
	}
	if approved {
		v.note = call.decision.note
	}
	if sent && !stopped && (denied || judged.Decision == policy.Ask && !approved) {
		if sent, err = t.wasSent(ctx, call.Name, call.lane, p.place.ID, denied); err != nil {
			return v, err
		}
	}
	switch {
	case call.decision != nil && call.decision.status != decisionApproved:
		v = v.deny(call, call.decision.reason)
	case sent && (!denied || !call.ranHere()), call.content != nil, approved && !denied:
		return v, nil
	case denied, judged.Decision == policy.Ask && !stopped: // denied also when a person said yes to another coordinator, which did not send it
		if v, err = t.decideCall(ctx, p, asked, about, judged); err != nil || v.denied == nil {
			return v, err
		}
		v = v.deny(call, v.denied.Message)
	default: // it is cancelled, as all that was not sent
		return v, nil //nolint:nilerr // the cause of the end is no failure of the decision
	}
	if !call.sent || call.ranHere() || call.lane == "" && call.Name != wire.AgentTool {
		return v, nil
	}
	if !denied || stopped { // else it was looked for
		sent, err = t.wasSent(ctx, call.Name, call.lane, p.place.ID, true)
	}
	if sent { // meanwhile, by a process that was stopped before
		return binding(judged), err
	}
	return v, err
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

// judging is a tool call that a policy decides about, and a person where it says so: a call of a
// turn, or a single one.
type judging struct {
	policy  Policy
	asked   policy.Call
	also    []string // other tools as calls of which it is judged
	approve asker    // nil refuses what a person has to approve
	request ApprovalRequest
	event   Event // of the decision: a policy_decision of a call of a turn, a call_judged of others
	// journal stores the event that decided returns. It passes the calls that count before this one
	// if others came first, else nil.
	journal func(ctx context.Context, decided func(used map[string]int) Event) error
	scope   string // what an approval for the session covers
	counts  bool   // a call that is allowed is journaled, too
	later   bool   // a person's answer may come later
	logger  *slog.Logger
}

// errUndecided means that ctx ended before a person answered, or that the answer comes later.
var errUndecided = errors.New("it is not decided whether the call may be made")

// decide carries out what the policy has judged, and journals what was decided before the call is
// made. The verdict is valid also with the error of the journal.
func (j *judging) decide(ctx context.Context, judged policy.Verdict) (verdict, error) {
	v, rule, given := binding(judged), judged.Rule, answer{status: string(policy.Allowed)}
	switch {
	case judged.Decision == policy.Denied:
		given = answer{status: decisionDenied, reason: judged.Reason}
	case judged.Decision == policy.Ask:
		j.request.Reason = judged.Reason
		if given = askPerson(ctx, j.approve, judged, j.request); given.status == "" || given.later && j.later {
			return v, errUndecided
		}
	case !j.counts:
		return v, nil
	}
	err := j.journal(ctx, func(used map[string]int) Event {
		if used != nil && given.passes() { // others came first
			j.asked.Used = used
			if now := judgedAs(j.policy, j.asked, j.also...); now.Decision == policy.Denied {
				given, rule = answer{status: decisionDenied, reason: now.Reason}, now.Rule
			}
		}
		decided := j.event.decided(rule, given)
		if given.status == decisionApproved && given.forSession {
			decided.Scope = j.scope
		}
		if decided.Scope != "" || given.via == viaSession {
			decided.Giver = given.giver
		}
		return decided
	})
	if given.status != string(policy.Allowed) {
		audit(ctx, j.logger, j.event.decided(rule, given))
	}
	if v.note = given.note; !given.passes() {
		v.denied = policyDenied(given.reason)
	}
	return v, err
}

// decided returns the event of a decision.
func (e Event) decided(rule string, given answer) Event {
	e.Status, e.Rule, e.Text, e.By, e.Via, e.Note = given.status, rule, given.reason, given.by, given.via, given.note
	e.Time = time.Now().UTC()
	return e
}

// decideCall has a call of the turn decided about. The time for a person's answer begins when no
// other call of the session or its sub-agents is asked about, so that the call can be answered.
func (t *turnRun) decideCall(ctx context.Context, p *pendingCall, asked policy.Call, about string, judged policy.Verdict) (verdict, error) {
	j := judging{
		policy: t.opts.Policy, asked: asked, also: []string{about}, approve: t.opts.Approve, event: t.decision(p), logger: t.logger,
		request: ApprovalRequest{SessionID: t.id, CallID: p.event.CallID, Tool: p.event.Name, Arguments: p.input},
		journal: func(ctx context.Context, decided func(map[string]int) Event) error {
			return t.record(ctx, decided(nil))
		},
	}
	if judged.Decision == policy.Ask {
		select {
		case t.tree.asking <- struct{}{}:
			defer func() { <-t.tree.asking }()
		case <-ctx.Done():
			return binding(judged), ifDetached(ctx)
		}
	}
	j.scope, _ = ScopeOf(p.event.Name, p.input)
	if before, is := t.session.approved[j.scope]; is && t.opts.Approve != nil && t.approvalCounts(ctx, before) {
		j.approve = func(context.Context, ApprovalRequest) (protocol.Approval, error) {
			return protocol.Approval{Granted: true, By: before.by, Via: viaSession, Giver: before.giver}, nil
		}
	} else if judged.Decision == policy.Ask && t.opts.Approve != nil {
		event := p.as(EventApprovalAsked)
		event.Arguments, event.Text, event.Rule, event.Source, event.Scope = p.input, judged.Reason, judged.Rule, judged.Source, j.scope
		err := t.record(ctx, event) // shows in the session that it waits
		switch {
		case errors.Is(err, ErrEventTooLarge): // a person approves what is shown whole
			judged.Decision, judged.Reason = policy.Denied, "a person has to approve it, and its arguments are too long to be shown"
		case err != nil:
			return binding(judged), err
		}
	}
	v, err := j.decide(ctx, judged)
	if errors.Is(err, errUndecided) {
		err = ifDetached(ctx)
	}
	return v, err
}

// viaSession is the way of an answer that an approval for the session has given.
const viaSession = "session"

// approvalCounts reports whether an approval for the session still counts: its giver could give it
// now.
func (r *Runner) approvalCounts(ctx context.Context, a approved) bool {
	switch {
	case a.giver == nil:
		return true
	case !a.giver.Until.IsZero() && !time.Now().Before(a.giver.Until), r.opts.GiverValid == nil:
		return false
	}
	return r.opts.GiverValid(ctx, *a.giver)
}

// editors are the tools that do nothing but change the file of the argument named path.
var editors = []string{"write", "edit", "multi_edit", "json_write"} //nolint:gochecknoglobals // a constant table

// maxScope bounds the path of a scope, in bytes: its question has the arguments, too.
const maxScope = 4 << 10

// ScopeOf returns which calls an approval for the whole session covers, as an unambiguous text and
// in words: the call as it is shown, or every change of its file by the same built-in tool. The
// arguments of other tools may be programs under any name.
func ScopeOf(tool, arguments string) (scope, words string) {
	var args map[string]any
	if json.Unmarshal([]byte(arguments), &args) == nil && slices.Contains(editors, tool) {
		if file, _ := args["path"].(string); file != "" && len(file) <= maxScope {
			words = fmt.Sprintf("every call of %s for %q", tool, file)
			return words, words
		}
	}
	words = "this very call of " + tool
	return fmt.Sprintf("%s sha256:%x", words, sha256.Sum256([]byte(arguments))), words
}

// ErrAskAgain is returned by an Approve function ([Options], [SingleOptions]) if the question was
// not shown because another one was, or only now could be. It is asked again at once, with its
// whole time.
var ErrAskAgain = errors.New("the question waited for another one")

// asker asks a person.
type asker = func(ctx context.Context, request ApprovalRequest) (protocol.Approval, error)

// answer is what came of a question to a person, or a rule's own decision.
type answer struct {
	status     string // "" when ctx ended before there was an answer
	reason     string // for the model when the call is not made
	by         string
	via        string // the way by which the answer came
	note       string // what the person said
	forSession bool
	giver      *protocol.Giver // of an approval for the session
	later      bool            // the answer comes with the same call, sent again
}

func askPerson(ctx context.Context, approve asker, judged policy.Verdict, request ApprovalRequest) answer {
	if approve == nil {
		return answer{status: decisionRefused, reason: fmt.Sprintf("The call of %s needs approval, and there is nobody to ask. Go on without it.", request.Tool)}
	}
	said, expired, err := askOnce(ctx, approve, judged.Timeout, request)
	for errors.Is(err, ErrAskAgain) && ctx.Err() == nil {
		said, expired, err = askOnce(ctx, approve, judged.Timeout, request)
	}
	given := answer{reason: judged.Reason, by: prose.Valid(said.By), via: said.Via, note: noteOf(said), forSession: said.Session, giver: said.Giver}
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
		given.status, given.reason = decisionExpired,
			fmt.Sprintf("The call needs approval, and nobody answered within %s. Go on without it, or say what you need.", judged.Timeout)
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

// passes reports whether a call may be made.
func (a answer) passes() bool {
	return a.status == string(policy.Allowed) || a.status == decisionApproved
}

// noteOf is the note of an answer, cut when it is very long.
func noteOf(said protocol.Approval) string {
	return prose.Short(strings.TrimSpace(prose.Valid(said.Note)), maxNote)
}

// decision is the event of a decision about a call of the turn, without what was decided.
func (t *turnRun) decision(p *pendingCall) Event {
	event := p.as(EventPolicyDecision)
	event.SessionID = t.id
	return event
}

// audit logs a decision. With the journal this is the audit log.
func audit(ctx context.Context, logger *slog.Logger, e Event) {
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

// hooked reports whether hooks have decided about a call of the step.
func (s *step) hooked() bool {
	return slices.ContainsFunc(s.calls, func(c stepCall) bool { return c.hook != nil })
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
