package loop

import (
	"slices"

	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// SessionState is what the events of a journal say of a session as a whole: what has not ended, what a
// person is asked, which outcomes are unknown, and what the replies took. [SessionState.Apply] accepts
// every event, so that a journal is described too which no [Runner] could continue.
type SessionState struct {
	// Turn is the beginning of the turn that has not ended; nil without one.
	Turn *Event
	// Calls are the tool calls of that turn without a result: each as its tool_call, or without a
	// CallID while only the reply has it. Jobs are the results of the calls that continue in the
	// background, with the Arguments and the Lane of the calls.
	Calls, Jobs []Event
	// Approval is the call that waits for a person's approval; nil without one. Questions are what
	// running calls ask: each call asks one question after another.
	Approval  *Event
	Questions []Event
	// Unknown are the ends of the calls of unknown outcome that no person has resolved, with the
	// Arguments of the calls.
	Unknown []Event
	// Bill is that of the session without its sub-agents, and without the origin of a fork.
	Bill Bill

	sent map[protocol.CallID]Event // the beginnings of calls that have not ended
}

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
	if e.Type != EventJobEnded { // any other event comes after the answer
		s.Approval = nil
	}
	s.noteQuestion(e)
	switch e.Type {
	case EventTurnStarted:
		s.Turn, s.Calls = new(*e), nil
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
		s.Turn, s.Calls = nil, nil
	case EventSessionForked: // what its origin used is the origin's
		s.Bill = Bill{}
	default:
	}
	if e.Spent == nil {
		s.Bill.Add(e)
	}
}

// sameCall reports whether two events are about the same tool call of a turn.
func sameCall(e *Event) func(Event) bool {
	return func(call Event) bool { return call.Turn == e.Turn && call.Step == e.Step && call.Index == e.Index }
}

// addReply adds the calls of a reply; some may have been sent before it was whole.
func (s *SessionState) addReply(e *Event) {
	for i, c := range e.ToolCalls {
		call := Event{
			Type: EventToolCall, SessionID: e.SessionID, Time: e.Time, Turn: e.Turn, Step: e.Step,
			CallFields: CallFields{Index: i, Name: c.Name, ToolCallID: c.ID, Arguments: c.Arguments},
		}
		if !slices.ContainsFunc(s.Calls, sameCall(&call)) {
			s.Calls = append(s.Calls, call)
		}
	}
}

// begin notes that a call is sent.
func (s *SessionState) begin(e *Event) {
	if s.sent == nil {
		s.sent = make(map[protocol.CallID]Event)
	}
	s.sent[e.CallID] = *e
	if e.Type != EventToolCall {
		return
	}
	if at := slices.IndexFunc(s.Calls, sameCall(e)); at >= 0 {
		s.Calls[at] = *e
	} else {
		s.Calls = append(s.Calls, *e)
	}
}

// end notes the end of a call, or that it continues in the background.
func (s *SessionState) end(e *Event) {
	ended := *e
	ended.Arguments, ended.Lane = s.sent[e.CallID].Arguments, s.sent[e.CallID].Lane
	switch e.Type {
	case EventToolResult:
		s.Calls = slices.DeleteFunc(s.Calls, sameCall(e))
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
	s.Questions = slices.DeleteFunc(s.Questions, func(q Event) bool {
		switch e.Type {
		case EventTurnEnded:
			return true
		case EventToolResult, EventQuestionAsked:
			return q.CallID == e.CallID
		case EventAnswered:
			return q.CallID == e.CallID && e.Question != nil && q.Question.ID == e.Question.ID
		default:
			return false
		}
	})
	if e.Type == EventQuestionAsked && e.Question != nil {
		s.Questions = append(s.Questions, *e)
	}
}

func without(events []Event, id protocol.CallID) []Event {
	return slices.DeleteFunc(events, func(e Event) bool { return e.CallID == id })
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
