package loop

import (
	"cmp"
	"maps"
	"slices"

	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// SessionState is what the events of a journal say of a session as a whole: what has not ended,
// what a person is asked, which outcomes are unknown, and what the replies took.
// [SessionState.Apply] accepts every event, so that a journal is described too which no [Runner]
// could continue.
type SessionState struct {
	// Turn is the beginning of the turn that has not ended; nil without one.
	Turn *Event
	// Jobs are the results of the calls that continue in the background, with the Arguments and the
	// Lane of the calls.
	Jobs []*Event
	// Approval is the call that waits for a person's approval; nil without one. Questions are what
	// running calls ask: each call asks one question after another.
	Approval  *Event
	Questions []*Event
	// Unknown are the ends of the calls of unknown outcome that no person has resolved, with the
	// Arguments of the calls.
	Unknown []*Event
	// Changes are the beginnings of what people have begun to change between two turns, and that
	// has not ended; see [CompleteChanges].
	Changes []*Event
	// Bill is what the session took, without its sub-agents, and without the origin of a fork.
	Bill Bill

	calls map[callAt]*Event          // of the open turn, see [SessionState.Calls]
	sent  map[protocol.CallID]*Event // the beginnings of calls that have not ended
}

// callAt identifies a tool call of a session.
type callAt struct{ turn, step, index int }

func (e *Event) at() callAt { return callAt{e.Turn, e.Step, e.Index} }

// StateOf returns the state behind some events.
func StateOf(events []Event) (s SessionState) {
	for i := range events {
		s.Apply(&events[i])
	}
	return s
}

// Apply extends the state by one event of the journal.
func (s *SessionState) Apply(e *Event) {
	if e.Type == EventCopyStarted { // what is before was interrupted
		*s = SessionState{}
	}
	ofJob := slices.ContainsFunc(s.Jobs, func(j *Event) bool { return j.CallID == e.CallID })
	if !ofJob && e.Type != EventJobEnded { // any other event comes after the answer
		s.Approval = nil
	}
	s.noteQuestion(e)
	s.noteChange(e)
	switch e.Type {
	case EventTurnStarted:
		s.Turn, s.calls = new(*e), nil
	case EventModelReply:
		s.addReply(e)
	case EventApprovalAsked:
		s.Approval = new(*e)
	case EventToolCall, EventRevertStarted:
		s.begin(e)
	case EventToolResult, EventJobEnded, EventRevertEnded:
		s.end(e)
	case EventCallResolved:
		s.Unknown = without(s.Unknown, e.CallID)
	case EventTurnEnded:
		s.Turn, s.calls = nil, nil
	case EventSessionForked: // what its origin used is the origin's
		s.Bill = Bill{}
	default:
	}
	if e.Spent == nil {
		s.Bill.Add(e)
	}
}

// Clone returns a state that is extended while others read this one.
func (s *SessionState) Clone() SessionState {
	made := *s
	made.Jobs, made.Questions, made.Unknown, made.Changes = slices.Clone(s.Jobs), slices.Clone(s.Questions), slices.Clone(s.Unknown), slices.Clone(s.Changes)
	made.calls, made.sent = maps.Clone(s.calls), maps.Clone(s.sent)
	return made
}

// Calls are the tool calls of the open turn that have no result, in their order: each as its
// tool_call, or without a CallID while only the reply has it.
func (s *SessionState) Calls() []*Event {
	return slices.SortedFunc(maps.Values(s.calls), func(a, b *Event) int {
		return cmp.Or(a.Step-b.Step, a.Index-b.Index)
	})
}

// noteChange notes that a change begins or ends.
func (s *SessionState) noteChange(e *Event) {
	switch e.Type {
	case EventChangeStarted, EventRevertStarted:
		if len(e.Call) > 0 { // else it is one of the origin of this session
			s.Changes = append(s.Changes, new(*e))
		}
	case EventChangeEnded, EventRevertEnded:
		s.Changes = without(s.Changes, e.CallID)
	default:
	}
}

// addReply adds the calls of a reply; some may have been sent before it was whole.
func (s *SessionState) addReply(e *Event) {
	for i, c := range e.ToolCalls {
		call := &Event{
			Type: EventToolCall, SessionID: e.SessionID, Time: e.Time, Turn: e.Turn, Step: e.Step,
			CallFields: CallFields{Index: i, Name: c.Name, ToolCallID: c.ID, Arguments: c.Arguments},
		}
		if s.calls[call.at()] == nil {
			setEvent(&s.calls, call.at(), call)
		}
	}
}

// begin notes that a call is sent.
func (s *SessionState) begin(e *Event) {
	call := new(*e)
	setEvent(&s.sent, e.CallID, call)
	if e.Type == EventToolCall {
		setEvent(&s.calls, e.at(), call)
	}
}

// end notes the end of a call, or that it continues in the background.
func (s *SessionState) end(e *Event) {
	ended := new(*e)
	if begun := s.sent[e.CallID]; begun != nil {
		ended.Arguments, ended.Lane = begun.Arguments, begun.Lane
	}
	switch e.Type {
	case EventToolResult:
		delete(s.calls, e.at())
	case EventJobEnded:
		s.Jobs = without(s.Jobs, e.CallID)
	default:
	}
	if !e.EndsCall() && e.Type != EventRevertEnded {
		s.Jobs = append(s.Jobs, ended)
		return
	}
	if protocol.Status(e.Status) == protocol.StatusOutcomeUnknown {
		s.Unknown = append(s.Unknown, ended)
	}
	delete(s.sent, e.CallID)
}

// noteQuestion notes what a running call asks, or that it asks it no more.
func (s *SessionState) noteQuestion(e *Event) {
	s.Questions = slices.DeleteFunc(s.Questions, func(q *Event) bool {
		switch e.Type {
		case EventTurnEnded:
			return true
		case EventToolResult, EventJobEnded, EventQuestionAsked:
			return q.CallID == e.CallID
		case EventAnswered:
			return q.CallID == e.CallID && e.Question != nil && q.Question.ID == e.Question.ID
		default:
			return false
		}
	})
	if e.Type == EventQuestionAsked && e.Question != nil {
		s.Questions = append(s.Questions, new(*e))
	}
}

func without(events []*Event, id protocol.CallID) []*Event {
	return slices.DeleteFunc(events, func(e *Event) bool { return e.CallID == id })
}

func setEvent[K comparable](m *map[K]*Event, key K, e *Event) {
	if *m == nil {
		*m = make(map[K]*Event)
	}
	(*m)[key] = e
}

// EndsCall reports whether an event is the end of a tool call. The result of a call that continues
// in the background is none.
func (e *Event) EndsCall() bool {
	return e.Type == EventJobEnded || e.Type == EventToolResult && e.Job == ""
}

// Bill is the sum of what replies took.
type Bill struct {
	Usage protocol.Usage
	// CostUSD is nil while there is no reply, and if the price of one is unknown.
	CostUSD *float64

	unpriced bool
}

// Add adds what an event says that replies took: failed ones and summaries too, and those of a
// sub-agent, which the result of its call has.
func (b *Bill) Add(e *Event) {
	switch e.Type {
	case EventModelReply:
	case EventCompacted, EventReplyFailed:
		if e.Usage == nil {
			return
		}
	case EventToolResult, EventJobEnded:
		if e.Spent == nil {
			return
		}
	default:
		return
	}
	if e.Usage != nil {
		b.Usage = b.Usage.Add(*e.Usage)
	}
	switch {
	case e.CostUSD == nil:
		b.CostUSD, b.unpriced = nil, true
	case b.unpriced:
	case b.CostUSD == nil:
		b.CostUSD = new(*e.CostUSD)
	default:
		b.CostUSD = new(*b.CostUSD + *e.CostUSD)
	}
}
