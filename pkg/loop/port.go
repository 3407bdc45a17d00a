package loop

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
)

// Model answers a conversation. Implementations are safe for concurrent use.
type Model interface {
	// Reply returns the model's next reply, and soon after ctx ends. While it streams, it is
	// passed to delta piece by piece (delta is never nil, and not called after Reply has
	// returned). Retries are the model's own; an error ends the turn as failed, with its text.
	//
	// A request is the whole conversation, however long: a model that takes less returns an
	// error that wraps [ErrTooLong], and is asked again with less. One whose server refuses a
	// part of it returns a [RefusedError], and is asked again without. The request is the
	// callee's, but for the data of images, which is only read.
	Reply(ctx context.Context, req Request, delta func(Delta)) (Reply, error)
}

// Delta is a piece of a reply that streams.
type Delta struct {
	// Text is a piece of the answer, Reasoning one of the model's thoughts; either may be empty.
	Text, Reasoning string
	// Call is a tool call of the reply whose arguments are complete, and Index its position there.
	// An adapter passes calls in their order, from the first one again if the reply begins again;
	// it may stop after any of them.
	Call  *ToolCall
	Index int
	// Waits says why there is no reply yet, such as a provider that is down, and what comes next:
	// a request after the Pause, unless that is 0.
	Waits string
	Pause time.Duration
	// Failed is an attempt that gave no reply although its server reported a Usage: that is billed.
	// Its other field is Fallback.
	Failed *Reply
}

// Fallback is a model that replies when the one that was asked cannot.
type Fallback struct {
	Model string // its name
	Price *Price // nil is unknown
}

// Provider is implemented by a [Model] whose provider runs tools itself. The tools of a
// session that are native ([tools.Definition]) are left out for all other models, with
// their hints.
type Provider interface {
	// Provider is the name of the provider in a tool's declaration, "openai".
	Provider() string
}

// Role says who speaks.
type Role string

// The roles.
const (
	RoleSystem    Role = "system"
	RoleUser      Role = "user"
	RoleAssistant Role = "assistant"
	RoleTool      Role = "tool"
)

// Message is one entry of a conversation.
type Message struct {
	Role Role
	Text string
	// ToolCalls are what an assistant message asked for.
	ToolCalls []ToolCall
	// Reasoning is what the model thought before an assistant message of this turn; nil of
	// earlier turns, whose reasoning no provider wants back.
	Reasoning *Reasoning
	// ToolCallID and Name say which tool call a tool message answers.
	ToolCallID string
	Name       string
	// Image is an image or document of a tool message, for models that take it.
	Image *Image
	// Attachments are the images and documents that a user message carries; its text names them.
	Attachments []Attachment
}

// Image is a picture or a document for a model.
type Image struct {
	// MediaType is image/png, image/jpeg, image/gif, image/webp or application/pdf.
	MediaType string `json:"media_type"`
	// Data is the file, of at most 4 MiB.
	Data []byte `json:"data,omitempty"`
	// Blob names an object in the fleet's store with the Data that fits into no message of
	// a journal, which sets it, and looks there when it loads.
	Blob string `json:"blob,omitempty"`
}

// Request is everything that a model needs for one reply.
type Request struct {
	// Session is whose conversation it is. What a server rejects of a session's requests changes
	// those of no other one.
	Session  protocol.SessionID
	Messages []Message
	// Tools are sorted by name. There may be none although the conversation has tool calls.
	Tools []tools.Definition
	// Replies is how many replies the conversation had, those that a summary stands for included.
	Replies int
	// Turn and Step are those of the reply, from 1; 0 of a request for a summary.
	Turn, Step int
	// Settings are those of [Options]; an adapter leaves out what its provider does not know.
	Settings Settings
}

// Tokens estimates the tokens of the request from the length of its texts.
func (r *Request) Tokens() int64 {
	size := sizeOf(r.Messages)
	for i := range r.Tools {
		size += len(r.Tools[i].Description) + len(r.Tools[i].Schema)
	}
	return int64(size/bytesPerToken) + 1
}

// Reasoning is what a model thought before a reply.
type Reasoning struct {
	// Text is for people; "" where the provider shows none.
	Text string `json:"text,omitempty"`
	// Opaque is what the adapter needs to send it back; no one else reads it. It may be nil.
	Opaque json.RawMessage `json:"opaque,omitempty"`
}

// ToolCall is a model's request to run a tool.
type ToolCall struct {
	// ID is unique within its reply.
	ID   string `json:"id"`
	Name string `json:"name"`
	// Arguments is what the model wrote: supposed to be a JSON object, but not checked.
	Arguments string `json:"arguments"`
}

// Reply is one reply of a model. One without tool calls ends the turn, unless it was cut, and then
// the model is asked once more, with a note; an empty reply is asked for once more.
type Reply struct {
	Text      string
	ToolCalls []ToolCall
	// Usage is what this reply took. What the provider does not say is estimated: see
	// [Reply.Counted].
	Usage protocol.Usage
	// Model is the name by which the provider calls itself, ID what it calls the reply, and Finish
	// why that ended, in its word; each may be empty.
	Model, ID, Finish string
	// Reasoning is what the model thought before; nil when it does not say.
	Reasoning *Reasoning
	// Cut says that the reply ended at a limit of output tokens, not because it was complete.
	// Its last tool call may be half.
	Cut bool
	// Native are the calls that the provider ran for the reply.
	Native []NativeCall
	// Fallback is the model that replied instead of the one that was asked; nil when none did.
	Fallback *Fallback
	// Scripted says that the reply is not billed: its Usage is not estimated.
	Scripted bool
}

// maxReplyTokens is more than the tokens of any reply, and small enough that sums do not overflow.
const maxReplyTokens = 1 << 40

// Counted is the usage of the reply to a request of about so many tokens ([Request.Tokens]). A
// number that the server does not report, or that makes no sense, is estimated from the texts: a
// reply without a usage would pass every limit.
func (r *Reply) Counted(asked int64) protocol.Usage {
	u := r.Usage
	sensible := func(n int64) bool { return (n > 0 || n == 0 && r.Scripted) && n < maxReplyTokens }
	if !sensible(u.InputTokens) {
		u.InputTokens, u.CachedTokens, u.CacheWriteTokens, u.Estimated = asked, 0, 0, true
	}
	said := len(r.Text)
	for _, call := range r.ToolCalls {
		said += len(call.Name) + len(call.Arguments)
	}
	if r.Reasoning != nil {
		said += len(r.Reasoning.Text)
	}
	if !sensible(u.OutputTokens) && (said > 0 || u.OutputTokens != 0) {
		u.OutputTokens, u.ReasoningTokens, u.Estimated = int64(said/bytesPerToken)+1, 0, true
	}
	u.CachedTokens = min(max(u.CachedTokens, 0), u.InputTokens)
	u.CacheWriteTokens = min(max(u.CacheWriteTokens, 0), u.InputTokens-u.CachedTokens)
	u.ReasoningTokens = min(max(u.ReasoningTokens, 0), u.OutputTokens)
	return u
}

// Dispatcher carries calls to workers and results back. Implementations are safe for concurrent
// use.
type Dispatcher interface {
	// Send sends calls in their order, and returns a handle for each, and then one for each of
	// held. It does not wait. Calls whose ids the fleet knows already do not run again: they have
	// the results that they had.
	//
	// The handles of held, which an earlier Send of the same dispatcher returned, end as if they
	// were detached. Those that are returned for them belong to this Send, as if it had sent their
	// calls.
	//
	// When ctx ends, calls that have not ended are cancelled. Each handle then ends with the result
	// that could be learned; otherwise that is "outcome_unknown", or "cancelled" for a call that
	// was not sent. A ctx that has ended sends nothing. With [ErrDetached] as the cause of its end
	// all handles end as if they were detached.
	//
	// observe, which may be nil, gets every change as it happens, one at a time. The last update of
	// each call carries its result, before its handle ends. A call that is held is observed from
	// then on: what happened before is repeated only if it is a question without answer, or the
	// end.
	Send(ctx context.Context, calls []protocol.Call, observe func(Update), held ...Handle) []Handle
}

// Handle is a call that was sent.
type Handle interface {
	// Done is closed when the handle has ended.
	Done() <-chan struct{}
	// Result is the result of a call whose handle has ended. An error says that the fleet could not
	// be reached, or is [ErrDetached].
	Result() (*protocol.Result, error)
	// Detach ends the handle with [ErrDetached], and leaves the call to itself: it continues in the
	// fleet.
	Detach()
}

// runCall sends a call, and waits for its result.
func runCall(ctx context.Context, dispatcher Dispatcher, call protocol.Call) (*protocol.Result, error) {
	h := dispatcher.Send(ctx, []protocol.Call{call}, nil)[0]
	<-h.Done() // soon after the end of ctx
	result, err := h.Result()
	if err == nil && result == nil {
		err = fmt.Errorf("call %s: the fleet returned no result", call.ID)
	}
	return result, err
}

// ErrDetached is the cause with which a context is cancelled when this process
// must leave a session to another one without stopping its calls: because it
// drains, or because it can no longer extend the journal. See [context.Cause].
var ErrDetached = errors.New("detached from the session")

// State is how far a call has come.
type State string

// The states of a call, in their order.
const (
	StateQueued  State = "queued"
	StateRunning State = "running"
	StateDone    State = "done"
)

// Update is one change of a call.
type Update struct {
	CallID   protocol.CallID
	State    State
	WorkerID protocol.WorkerID // of running
	Attempt  int               // of running
	// Waits is, of a call that is queued for long, the requirement that no worker meets; "" if one
	// does. Another update follows when that changes.
	Waits string
	// Lost says, of a call that is running, that its worker is lost, and what comes next; "" when
	// the worker is there again.
	Lost string
	// Question is a running call's question to a person. Observers get it ([EventQuestionAsked]),
	// and only they may answer.
	Question *protocol.Question
	// Answered is the outcome of the question, without the content of the answer:
	// [protocol.ActionCancel] if there was none.
	Answered *protocol.Answer
	// Result is set for, and only for, done.
	Result *protocol.Result
	// Times are set for done, as far as they are known.
	Times CallTimes
}

// ErrJournalConflict says that another process has extended the session since the
// expected sequence was read, or that this sequence never was. Nothing was appended.
var ErrJournalConflict = errors.New("another process has extended the session; one process at a time may run it, and submit queues turns")

// ErrEventTooLarge says that an event is larger than the journal keeps; nothing was appended. An
// input that is, is refused, a reply ends its turn as failed with payload_too_large,
// and of a result the beginning is kept.
var ErrEventTooLarge = errors.New("too large for the session journal")

// Errors of [Journal.Load] for what is no session, or not any more: no turn begins in it.
var (
	// ErrRemoved says that the session is being removed, or was removed since its turn began.
	ErrRemoved = errors.New("the session was removed, or is being removed (session rm completes that); a turn that is asked for after that begins a new session")
	// ErrUncompleted says that a fork or an import was interrupted before it had stored everything.
	ErrUncompleted = errors.New("the fork or import that makes the session was not completed: the same command again completes it, and session rm removes it")
)

// Journal keeps sessions: each is an append-only history of events, stored as their JSON. An
// event with an image may have 6 MB, one with attachments 17 MB. Implementations are safe for
// concurrent use; package looptest tests them.
type Journal interface {
	// Load returns every event of a session in order; none for a new session. An error wraps
	// [ErrJournalInvalid] when what is there are no events, and trying again is in vain; or
	// [ErrRemoved] or [ErrUncompleted], with what is stored as [History.Whole] returns it.
	Load(ctx context.Context, session protocol.SessionID) (History, error)
	// Append adds events behind the sequence that the caller saw last, and returns the new last
	// sequence, which grows with each event that is stored; nothing to add changes nothing. An
	// error wraps [ErrJournalConflict] when expected is not the last sequence, or
	// [ErrEventTooLarge], and then nothing was added. After any other error the first of the
	// events, or all, may have been stored: the run ends with the turn open, and the next one
	// continues with what Load returns. A journal without room wraps a [protocol.Error] with
	// [protocol.CodeFleetFull].
	Append(ctx context.Context, session protocol.SessionID, expected uint64, events ...Event) (uint64, error)
}

// History is what a journal holds of a session.
type History struct {
	Events []Event
	// Last is the sequence to pass to [Journal.Append]; 0 for a new session.
	Last uint64
	// Removed is the last removal of a session of this name, as long as the journal has its record:
	// Events are those behind it.
	Removed Removal
}

// Removal is the record of a session that was removed. It fences requests that were made before.
type Removal struct {
	Sequence uint64    // in the sequences of [History.Last]; 0 is none
	At       time.Time // by the clock of the process that completed it
}

// Outlived reports whether a request was made before the removal, so that it begins no session of
// that name. madeAfter is the last sequence of all journals when the request was made. If that is
// not known, 0, the time decides at which it was made; the zero time is not known, either.
func (r Removal) Outlived(madeAfter uint64, at time.Time) bool {
	if madeAfter > 0 {
		return r.Sequence > madeAfter
	}
	return r.Sequence > 0 && !at.IsZero() && !at.After(r.At)
}

// Whole returns the history of what a journal stores: without the attempts at a fork or an import
// before the one that was completed. The error is [ErrRemoved] or [ErrUncompleted] where there is
// no session; the last event then is the mark that says so.
func (h History) Whole() (History, error) {
	begun := -1
	for i := range h.Events {
		switch e := &h.Events[i]; e.Type {
		case EventRemoved:
			return History{h.Events[:i+1], h.Last, h.Removed}, ErrRemoved
		case EventCopyStarted:
			begun = i
		default:
		}
	}
	if begun < 0 {
		return h, nil
	}
	mark, copied := h.Events[begun], h.Events[begun+1:]
	if slices.ContainsFunc(copied, mark.completedBy) {
		return History{copied, h.Last, h.Removed}, nil
	}
	return History{[]Event{mark}, h.Last, h.Removed}, ErrUncompleted
}

// completedBy reports whether an event completes the fork or import that e begins.
func (e Event) completedBy(other Event) bool {
	return (other.Type == EventSessionForked || other.Type == EventImported) && other.CallID == e.CallID
}

// Tenant returns the tenant that owns the session; "" if there is none yet.
func (h History) Tenant() protocol.Tenant {
	if len(h.Events) == 0 {
		return ""
	}
	return cmp.Or(h.Events[0].Tenant, wire.DefaultTenant)
}

// Owned reports whether the journal says who owns the session, or the one that is being copied.
func (h History) Owned() bool {
	return len(h.Events) > 0 && (h.Events[0].Type == EventSessionStarted || h.Events[0].Type == EventCopyStarted && h.Events[0].Tenant != "")
}

// By returns the principal that owns the session, such as token:ann; "" is the fleet's operator.
func (h History) By() string {
	if !h.Owned() {
		return ""
	}
	return h.Events[0].By
}

// Turns returns the number of turns, and whether the last one is open: it has not ended. The error
// wraps [ErrJournalInvalid].
func (h History) Turns() (turns int, open bool, err error) {
	s, err := fold(h.Events)
	if err != nil {
		return 0, false, err
	}
	return len(s.turns), s.open() != nil, nil
}
