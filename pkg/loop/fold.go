package loop

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
)

// ErrJournalInvalid is wrapped by the error of [Runner.Run] for a journal that no
// session could have written.
var ErrJournalInvalid = errors.New("session journal is invalid")

// session is the fold of a session's events: all that a run knows. It changes by
// apply only.
type session struct {
	seed  string // "" until a turn has one
	turns []turn
	// taken is every tool call id of the conversation.
	taken map[string]bool
	jobs  []*job // in the order in which they were started
	// judged are the calls by other interfaces than turns about which something was decided.
	judged map[protocol.CallID]*judgedCall
	// dialogs are the open stateful tools, in the order in which they were opened.
	dialogs []*dialog
	scratch map[string]string // the scratchpad
	// positions are how far channels are read.
	positions map[string]uint64
	// approved are the scopes that persons have approved for the session.
	approved map[string]approved
	// leftOut are the parts of tool calls, and attachments, that requests are without, and why.
	leftOut map[Part]string
	// system and project are the instructions of its last turn.
	system  string
	project []protocol.InstructionFile
	// postponed are the inputs whose turns were postponed or refused: they begin none.
	postponed map[protocol.CallID]bool
	first     int // of turns, that is the session's own: those before it are of its origin
	length
	spending
	state SessionState
}

// approved is an approval for the session: who gave it, by which token, and in which turn.
type approved struct {
	by    string
	turn  int
	giver *protocol.Giver
}

// length is how long a conversation is.
type length struct {
	// summary stands for the steps before it; nil while all are shown.
	summary *summary
	// lastTokens is what the last reply took, 0 when that is unknown, and sinceReply how many bytes
	// came after it.
	lastTokens int64
	sinceReply int
}

// spending is what a session has used, and may use.
type spending struct {
	spent, budget protocol.Spending
	warned        bool // the model knows that most of it is used
}

type turn struct {
	number int
	input  Input
	terms  *Terms            // nil when the journal has none
	span   trace.SpanContext // of the process that began it; invalid without a trace
	steps  []step
	bill   Bill // including its sub-agents
	begun
	notes    []string        // of jobs that ended before the first step
	rewound  bool            // a person took it out of the conversation
	added    []addition      // by a person, in their order
	streamed []stepCall      // of the reply that is not there yet
	hooked   []hookedAt      // events of the turn for which hooks were asked
	stops    int             // ends that hooks have denied
	blocked  *HookNote       // of hooks that denied the turn
	refused  int             // answers that were not valid under the schema
	lastAt   int             // steps at which a budget was used up; 0 while none is
	spentErr *protocol.Error // why; nil in older journals
	result   *TurnResult     // nil while the turn is open
	// images are made by the provider and not stored yet, by the call that stores them.
	images map[string]*Image
}

// begun is how a turn began, and what it has used since.
type begun struct {
	trigger string // the trigger or schedule that began it; "" if a person did
	at      time.Time
	spent   protocol.Spending
}

// step is one reply of the model and what became of its tool calls.
type step struct {
	text      string
	reasoning *Reasoning
	cut       bool // it ended at a limit of output tokens
	calls     []stepCall
	continued bool     // it is no end: a sub-agent in the background ended behind it, or it is no valid answer
	notes     []string // of jobs that ended behind the results, before the next step
}

type stepCall struct {
	ToolCall

	hook     *HookNote // of the hooks before it; nil if none were asked
	decision *decision // of the policy about it, if one was journaled
	planned  bool      // its tool_call event is journaled
	sent     bool      // and does not say that it is refused: it may have been made
	lane     string    // where it was sent; "" for one that runs in place
	bound    *Binding  // when it was sent; nil in older journals
	about    string    // the stateful tool that it continues; "" for other calls

	content *string         // what the model sees of its result; nil while there is none
	status  protocol.Status // of that result
	image   *Image          // image or document of the result
}

// decision is what was decided about a call.
type decision struct {
	status, reason, note string
	earlier              *approved // the approval for the session that it uses; nil for a decision of its own
}

// fold returns the session that the events of a journal describe. Errors wrap
// [ErrJournalInvalid].
func fold(events []Event) (*session, error) {
	s := &session{taken: make(map[string]bool), leftOut: make(map[Part]string)}
	for i := range events {
		if err := s.apply(&events[i]); err != nil {
			return nil, fmt.Errorf("event %d: %w", i+1, err)
		}
	}
	return s, nil
}

// apply extends the session by one event. An event that does not fit changes nothing.
// Types that it does not know are skipped: a newer version may journal more.
func (s *session) apply(e *Event) error {
	var err error
	switch e.Type {
	case EventTurnStarted:
		err = s.startTurn(e)
	case EventInputAdded:
		err = s.addInput(e)
	case EventModelReply:
		err = s.addReply(e)
	case EventNativeCall:
		if t := s.open(); t != nil && e.Image != nil {
			if t.images == nil {
				t.images = make(map[string]*Image)
			}
			t.images[e.ToolCallID] = e.Image
		}
	case EventCallJudged:
		if s.judged == nil {
			s.judged = make(map[protocol.CallID]*judgedCall)
		}
		if before := s.judged[e.CallID]; before == nil || !before.counts() { // else it was sent again
			s.judged[e.CallID] = &judgedCall{tool: e.Name, status: e.Status}
		}
	case EventToolCall:
		if s.judged[e.CallID] != nil {
			s.judged[e.CallID].turned = true
		}
		if s.addStreamed(e) {
			break
		}
		err = s.updateCall(e, func(c *stepCall) error {
			c.planned, c.sent, c.about, c.lane, c.bound = true, e.Status == "", e.About, e.Lane, e.Bound
			return nil
		})
	case EventToolResult:
		err = s.updateCall(e, func(c *stepCall) error {
			if c.content != nil {
				return errors.New("tool call has a result already")
			}
			s.sinceReply += len(e.Content)
			c.content, c.image, c.status = &e.Content, e.Image, protocol.Status(e.Status)
			delete(s.open().images, e.ToolCallID)
			if e.Job != "" {
				j := &job{CallFields: e.CallFields, name: e.Job, turn: e.Turn, step: e.Step, lane: c.lane, bound: c.bound, since: e.Time}
				j.Arguments = c.input()
				s.jobs = append(s.jobs, j)
			}
			s.noteScratch(e.Scratch)
			s.noteRead(e.Read)
			s.noteDialog(e, c)
			return nil
		})
	case EventPolicyDecision:
		if e.Scope != "" && e.Status == decisionApproved {
			if s.approved == nil {
				s.approved = make(map[string]approved)
			}
			s.approved[e.Scope] = approved{e.By, e.Turn, e.Giver}
		}
		err = s.updateCall(e, func(c *stepCall) error {
			c.decision = &decision{status: e.Status, reason: e.Text, note: e.Note}
			if e.Via == viaSession {
				c.decision.earlier = &approved{by: e.By, giver: e.Giver}
			}
			return nil
		})
	case EventQuestionAsked, EventAnswered:
		if s.jobOf(e.CallID) == nil { // a job asks at any time
			err = s.updateCall(e, func(*stepCall) error { return nil })
		}
	case EventJobEnded:
		err = s.endJob(e)
	case EventPartLeftOut:
		s.leftOut[Part{e.ToolCallID, e.Part}] = e.Text
		if isReference(e.Text) {
			s.lastTokens = 0 // of a longer conversation
		}
	case EventCompacted:
		err = s.noteSummary(e)
	case EventRewound:
		err = s.rewind(e)
	case EventImported: // its events are what a file said
		s.approved = nil
	case EventSessionForked: // what its origin used is the origin's, and what was approved in it
		s.approved = nil
		s.first, s.spent, s.warned, s.postponed = len(s.turns), protocol.Spending{}, false, nil
		s.showReferred()
	case EventTurnPostponed:
		if s.postponed == nil {
			s.postponed = make(map[protocol.CallID]bool)
		}
		s.postponed[e.CallID] = true
	case EventSessionMerged, EventRevertEnded, EventCallResolved:
		if len(s.turns) > 0 {
			s.turns[len(s.turns)-1].addNote(e.Text)
		}
	case EventBudgetLow, EventBudgetSpent:
		err = s.noteBudget(e)
	case EventHookDecided:
		err = s.noteHook(e)
	case EventAnswerRefused:
		err = s.refuseAnswer(e)
	case EventTurnEnded:
		err = s.endTurn(e)
	default:
	}
	if err == nil {
		s.noteSpent(e)
		s.state.Apply(e)
		if t := s.open(); t != nil {
			t.bill.Add(e)
		}
		return nil
	}
	return fmt.Errorf("%w: %s of turn %d, step %d: %w", ErrJournalInvalid, e.Type, e.Turn, e.Step, err)
}

func (s *session) startTurn(e *Event) error {
	if s.open() != nil || e.Turn != len(s.turns)+1 {
		return fmt.Errorf("turn %d is the last, and open: %t", len(s.turns), s.open() != nil)
	}
	if s.seed == "" {
		s.seed = e.Seed
	}
	if e.Terms != nil && e.Terms.System != "" {
		s.system = e.Terms.System
	}
	if e.Terms != nil && e.Terms.Project != nil {
		s.project = e.Terms.Project
	}
	if e.Terms != nil && e.Terms.Budget != nil {
		s.budget, s.warned = *e.Terms.Budget, false
	}
	input := Input{ID: e.CallID, Text: e.Input, Attachments: e.Attachments, AnswerSchema: e.AnswerSchema}
	s.sinceReply += sizeOf([]Message{input.message()})
	s.noteRead(e.Read)
	s.turns = append(s.turns, turn{number: e.Turn, input: input, terms: e.Terms, span: spanOf(e), begun: begun{trigger: e.Trigger, at: e.Time}})
	return nil
}

// has reports whether the conversation has what a part is of.
func (s *session) has(part Part) bool {
	if part.Kind != PartAttachment {
		return s.taken[part.ToolCallID]
	}
	return slices.ContainsFunc(s.turns, func(t turn) bool {
		return slices.ContainsFunc(t.input.Attachments, func(a Attachment) bool { return a.ID == part.ToolCallID })
	})
}

// place is the place of a tool call of a session.
func (s *session) place(id protocol.SessionID, turn, step, index int) tools.Place {
	return tools.Place{ID: wire.NewCallID(id, s.seed, turn, step, index), Turn: turn, Step: step, Index: index}
}

// spanOf is the span that a turn_started names; an invalid one when it names none.
func spanOf(e *Event) trace.SpanContext {
	traceID, _ := trace.TraceIDFromHex(e.TraceID)
	spanID, _ := trace.SpanIDFromHex(e.SpanID)
	return trace.NewSpanContext(trace.SpanContextConfig{TraceID: traceID, SpanID: spanID, TraceFlags: trace.FlagsSampled, Remote: true})
}

func (s *session) addReply(e *Event) error {
	t := s.open()
	switch {
	case t == nil || e.Turn != t.number:
		return errors.New("turn is not open")
	case e.Step != len(t.steps)+1 || t.answered():
		return fmt.Errorf("step %d is the last, and final: %t", len(t.steps), t.answered())
	case t.missing() > 0:
		return fmt.Errorf("step %d has calls without result", len(t.steps))
	case !t.begins(e.ToolCalls):
		return fmt.Errorf("does not begin with the %d calls that were sent", len(t.streamed))
	}
	next := step{text: e.Text, reasoning: e.Reasoning, cut: e.Finish == FinishLength, calls: make([]stepCall, len(e.ToolCalls))}
	for i, c := range e.ToolCalls {
		next.calls[i] = stepCall{ToolCall: c}
		if i < len(t.streamed) {
			next.calls[i] = t.streamed[i]
		}
		s.taken[c.ID] = true
	}
	t.streamed = nil
	t.steps = append(t.steps, next)
	s.lastTokens, s.sinceReply = 0, len(strings.Join(t.addedBehind(len(t.steps)), ""))
	if e.Usage != nil {
		s.lastTokens = e.Usage.Total()
	}
	return nil
}

func (s *session) updateCall(e *Event, update func(*stepCall) error) error {
	t := s.open()
	if t == nil || e.Turn != t.number || e.Step != len(t.steps) || e.Step == 0 {
		return errors.New("step is not open")
	}
	calls := t.steps[e.Step-1].calls
	if e.Index < 0 || e.Index >= len(calls) {
		return fmt.Errorf("index %d is beyond the %d calls of the step", e.Index, len(calls))
	}
	return update(&calls[e.Index])
}

func (s *session) endTurn(e *Event) error {
	t := s.open()
	switch {
	case t == nil || e.Turn != t.number:
		return errors.New("turn is not open")
	case t.missing() > 0:
		return fmt.Errorf("step %d has calls without result", len(t.steps))
	case len(t.streamed) > 0:
		return fmt.Errorf("step %d has no reply", len(t.steps)+1)
	}
	result := t.resultSoFar(Outcome(e.Status), e.Error)
	t.result = &result
	return nil
}

// open returns the turn that was begun and has not ended, or nil.
func (s *session) open() *turn {
	if len(s.turns) == 0 {
		return nil
	}
	if last := &s.turns[len(s.turns)-1]; last.result == nil {
		return last
	}
	return nil
}

// ended returns the result of the ended turn that the input with the given id
// started, or nil; no input has an empty id.
func (s *session) ended(id protocol.CallID) *TurnResult {
	for i := range s.turns {
		if id != "" && s.turns[i].input.ID == id {
			return s.turns[i].result
		}
	}
	return nil
}

// conversation returns the messages for the model: each step is followed by its results, in the
// order of its calls, and a summary may replace the first steps. Reasoning is that of the last turn
// only.
func (s *session) conversation(system string) []Message {
	messages := []Message{{Role: RoleSystem, Text: system}}
	for i := range s.turns {
		t := &s.turns[i]
		if t.rewound {
			continue
		}
		if s.summary != nil && s.summary.turn == i && s.summary.step == 0 {
			messages = append(messages, s.summary.message())
		}
		messages = append(messages, s.inputOf(t))
		if !s.summary.covers(i, 0) {
			messages = appendNotes(messages, t.notes)
		}
		messages = t.appendAdded(messages, 0)
		for j := range t.steps {
			if s.summary.covers(i, j) {
				messages = t.appendAdded(messages, j+1) // what people say stays
				continue
			}
			if s.summary != nil && s.summary.turn == i && s.summary.step == j && j > 0 {
				messages = append(messages, s.summary.message())
			}
			messages = t.steps[j].appendTo(messages, i == len(s.turns)-1)
			messages = appendNotes(messages, slices.Concat(t.wordAfter(j), t.steps[j].notes))
			messages = t.appendAdded(messages, j+1)
		}
	}
	return messages
}

func (s *step) appendTo(messages []Message, withReasoning bool) []Message {
	reply := Message{Role: RoleAssistant, Text: s.text}
	if withReasoning {
		reply.Reasoning = s.reasoning
	}
	for i := range s.calls {
		reply.ToolCalls = append(reply.ToolCalls, s.calls[i].ToolCall)
	}
	messages = append(messages, reply)
	for i := range s.calls {
		call := &s.calls[i]
		if call.content == nil {
			continue
		}
		messages = append(messages, Message{
			Role: RoleTool, Text: *call.content, ToolCallID: call.ID, Name: call.Name, Image: visibleImage(call.image),
		})
	}
	return messages
}

// last returns the last step, or nil before the first reply.
func (t *turn) last() *step {
	if len(t.steps) == 0 {
		return nil
	}
	return &t.steps[len(t.steps)-1]
}

// answered reports whether the last reply asked for nothing, is whole, and had all to read.
func (t *turn) answered() bool {
	last := t.last()
	return last != nil && len(last.calls) == 0 && !last.cut && !last.continued && !t.unread()
}

// missing counts the calls of the last step that have no result.
func (t *turn) missing() int {
	last, missing := t.last(), 0
	for i := 0; last != nil && i < len(last.calls); i++ {
		if last.calls[i].content == nil {
			missing++
		}
	}
	return missing
}

// resultSoFar is the turn's result if it ended now.
func (t *turn) resultSoFar(outcome Outcome, failure *protocol.Error) TurnResult {
	result := TurnResult{
		Turn: t.number, Outcome: outcome, Steps: len(t.steps), Usage: t.bill.Usage, CostUSD: t.bill.CostUSD, Error: failure,
	}
	result.Text = t.text()
	result.Answer = t.value(outcome, result.Text)
	if t.span.IsValid() {
		result.TraceID = t.span.TraceID().String()
	}
	return result
}

// visibleImage is an image for a model; nil when there is none, or its data is not kept any more.
func visibleImage(image *Image) *Image {
	if image == nil || len(image.Data) == 0 {
		return nil
	}
	return image
}
