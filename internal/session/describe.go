package session

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// ErrNone says that there is no session of that id: it has no journal.
var ErrNone = errors.New("there is no such session")

// State is how a session stands: the outcome of its last turn, or one of these.
type State string

// The states in addition to those of [loop.Outcome].
const (
	// StateOpen is a turn that has not ended: it runs, or its coordinator was lost.
	StateOpen State = "open"
	// StateInUse is a session on this machine that another process runs, or one of a fleet with a
	// turn, or calls, that run or wait.
	StateInUse State = "in_use"
	// StateWaitsForApproval is a turn whose call waits for a person: see [Info.Approval].
	StateWaitsForApproval State = "waits_for_approval"
	// StateWaitsForAnswer is a turn with a running call that asks a person: see [Info.Questions].
	StateWaitsForAnswer State = "waits_for_answer"
	// StateWaitsForWorker is a turn of a fleet with calls in the session's sandbox that no worker
	// has taken: none has a free slot, or what they need, or an operator has paused the lane.
	StateWaitsForWorker State = "waits_for_worker"
	// StateWaitsForCoordinator is a turn of a fleet that was accepted and that no coordinator runs:
	// none has a free slot, or serves its model, or an operator has paused the session's lane.
	StateWaitsForCoordinator State = "waits_for_coordinator"
	// StateForked is a session that was forked and has had no turn of its own.
	StateForked State = "forked"
	// StateInvalid is a session whose journal cannot be read: it cannot be
	// continued.
	StateInvalid State = "invalid"
)

// States are all states.
func States() []State {
	return []State{
		State(loop.OutcomeAnswered), State(loop.OutcomeFailed), State(loop.OutcomeLimitReached), State(loop.OutcomeInterrupted),
		StateOpen, StateInUse, StateWaitsForApproval, StateWaitsForAnswer, StateWaitsForWorker, StateWaitsForCoordinator,
		StateForked, StateInvalid,
	}
}

// open reports whether the journal has a turn that has not ended.
func (s State) open() bool {
	return s == StateOpen || s == StateWaitsForApproval || s == StateWaitsForAnswer
}

// Approval is a call that a person was asked about and that is not decided yet, or a call that asks
// a person while it runs and has no answer yet.
type Approval struct {
	SessionID protocol.SessionID `json:"session_id"`
	CallID    protocol.CallID    `json:"call_id"`
	Tool      string             `json:"tool"`
	Arguments string             `json:"arguments"`
	Reason    string             `json:"reason"` // or what the call asks
	AskedAt   time.Time          `json:"asked_at"`
	// Question is what a running call asks, nil when it is whether the call may be made, and Lane
	// where the call runs, POOL/LANE.
	Question *protocol.Question `json:"question,omitempty"`
	Lane     string             `json:"lane,omitempty"`
}

// Pool is where a running call runs.
func (a *Approval) Pool() protocol.Pool {
	pool, _, _ := strings.Cut(a.Lane, "/")
	return cmp.Or(protocol.Pool(pool), protocol.DefaultPool)
}

// Work counts what a session has done.
type Work struct {
	Turns     int            `json:"turns"`
	Steps     int            `json:"steps"`      // replies of the model
	ToolCalls int            `json:"tool_calls"` // in those replies
	Usage     protocol.Usage `json:"usage"`
	// CostUSD is nil when the price of a reply is unknown.
	CostUSD *float64 `json:"cost_usd,omitempty"`
}

// Size is what a session takes up.
type Size struct {
	// Messages and JournalBytes are the size of the journal, Results the number of stored results,
	// Bodies and BodyBytes the number and the size of objects in the object store.
	Messages     uint64 `json:"messages"`
	JournalBytes int64  `json:"journal_bytes"`
	Results      uint64 `json:"results"`
	Bodies       int    `json:"bodies"`
	BodyBytes    uint64 `json:"body_bytes"`
	// DiskBytes is the size of the directory of a session on this machine.
	DiskBytes int64 `json:"disk_bytes,omitempty"`
}

// Info is what is known of a session. Of one that is in use there are only its id, when it
// changed and its size on disk.
type Info struct {
	SessionID protocol.SessionID `json:"session_id"`
	State     State              `json:"state"`
	Start
	UpdatedAt time.Time `json:"updated_at"`
	Work
	Size
	// Waits has a sentence about each call that no worker may take, of a session in use.
	Waits []string `json:"waits,omitempty"`
	// Approval is what the session waits for in [StateWaitsForApproval].
	Approval *Approval `json:"approval,omitempty"`
	// Questions are what it waits for in [StateWaitsForAnswer], the oldest first.
	Questions []Approval `json:"questions,omitempty"`
	// Unknown are calls of unknown outcome, until a person resolves them.
	Unknown []Unknown `json:"unknown,omitempty"`
	// History has the turns; only [Reader.Show] returns them.
	History []Turn `json:"history,omitempty"`

	wrote map[protocol.CallID]string // arguments of calls without result
}

// Unknown is a call that may have had its effects or not.
type Unknown struct {
	CallID    protocol.CallID `json:"call_id"`
	Tool      string          `json:"tool"`
	Arguments string          `json:"arguments,omitempty"`
}

// Start is how a session began.
type Start struct {
	Prompt    string     `json:"prompt,omitempty"` // of the first turn
	By        string     `json:"by,omitempty"`     // who asked for it, as git names them
	Model     string     `json:"model,omitempty"`
	Workspace string     `json:"workspace,omitempty"` // directory that it was started on
	CreatedAt *time.Time `json:"created_at,omitempty"`
}

// Turn is one turn of a session.
type Turn struct {
	Turn      int       `json:"turn"`
	State     State     `json:"state"`
	StartedAt time.Time `json:"started_at"`
	Steps     int       `json:"steps"`
	ToolCalls int       `json:"tool_calls"`
	Input     string    `json:"input"`
	TraceID   string    `json:"trace_id,omitempty"` // where its trace was exported
}

// apply extends what is known by one event of the journal.
func (i *Info) apply(e *loop.Event) {
	if i.CreatedAt == nil {
		created := e.Time
		i.CreatedAt = &created
	}
	i.UpdatedAt = e.Time
	last := len(i.History) - 1
	if i.Approval != nil && e.Type != loop.EventJobEnded { // any other event comes after the answer
		i.Approval, i.State = nil, StateOpen
	}
	i.ask(e)
	i.wonder(e)
	switch e.Type {
	case loop.EventApprovalAsked:
		i.State = StateWaitsForApproval
		i.Approval = &Approval{SessionID: e.SessionID, CallID: e.CallID, Tool: e.Name, Arguments: e.Arguments, Reason: e.Text, AskedAt: e.Time}
	case loop.EventSessionStarted:
		i.Model, i.Workspace = e.Model, e.Workspace
	case loop.EventTurnStarted:
		if i.Turns, i.State = i.Turns+1, StateOpen; i.Turns == 1 {
			i.Prompt, i.By = e.Input, e.By
		}
		i.History = append(i.History, Turn{Turn: e.Turn, State: StateOpen, StartedAt: e.Time, Input: e.Input, TraceID: e.TraceID})
	case loop.EventModelReply:
		i.Steps, i.ToolCalls = i.Steps+1, i.ToolCalls+len(e.ToolCalls)
		if e.Usage != nil {
			i.Usage = i.Usage.Add(*e.Usage)
		}
		switch {
		case e.CostUSD == nil || i.Steps > 1 && i.CostUSD == nil:
			i.CostUSD = nil
		case i.CostUSD == nil:
			i.CostUSD = new(*e.CostUSD)
		default:
			*i.CostUSD += *e.CostUSD
		}
		if last >= 0 {
			i.History[last].Steps++
			i.History[last].ToolCalls += len(e.ToolCalls)
		}
	case loop.EventSessionForked:
		i.State = StateForked
	case loop.EventTurnEnded:
		i.State = State(e.Status)
		if last >= 0 {
			i.History[last].State = i.State
		}
	default:
	}
}

// wonder extends what is known of calls of unknown outcome by one event.
func (i *Info) wonder(e *loop.Event) {
	switch {
	case e.Type == loop.EventToolCall, e.Type == loop.EventRevertStarted:
		if i.wrote == nil {
			i.wrote = make(map[protocol.CallID]string)
		}
		i.wrote[e.CallID] = e.Arguments
	case e.Type == loop.EventCallResolved:
		i.Unknown = slices.DeleteFunc(i.Unknown, func(u Unknown) bool { return u.CallID == e.CallID })
	case e.Type == loop.EventToolResult && e.Job == "", e.Type == loop.EventJobEnded, e.Type == loop.EventRevertEnded:
		if protocol.Status(e.Status) == protocol.StatusOutcomeUnknown {
			i.Unknown = append(i.Unknown, Unknown{CallID: e.CallID, Tool: e.Name, Arguments: i.wrote[e.CallID]})
		}
		delete(i.wrote, e.CallID)
	}
}

// ask extends what the calls of the open turn ask by one event.
func (i *Info) ask(e *loop.Event) {
	before := len(i.Questions)
	i.Questions = slices.DeleteFunc(i.Questions, func(q Approval) bool {
		switch e.Type {
		case loop.EventTurnEnded:
			return true
		case loop.EventToolResult, loop.EventQuestionAsked: // a call asks one after another
			return q.CallID == e.CallID
		case loop.EventAnswered:
			return q.CallID == e.CallID && e.Question != nil && q.Question.ID == e.Question.ID
		default:
			return false
		}
	})
	if e.Type == loop.EventQuestionAsked && e.Question != nil {
		i.Questions = append(i.Questions, Approval{
			SessionID: e.SessionID, CallID: e.CallID, Tool: e.Name, Reason: e.Question.Message, AskedAt: e.Time, Question: e.Question, Lane: e.Lane,
		})
		i.State = StateWaitsForAnswer
	}
	if before > 0 && len(i.Questions) == 0 {
		i.Questions, i.State = nil, StateOpen
	}
}

// Show describes a session. The error wraps [ErrNone] when there is none.
func (r *Reader) Show(ctx context.Context, id protocol.SessionID) (*Info, error) {
	turn, err := r.turn(ctx, id) // before the journal, which then has a turn that began meanwhile
	if err != nil {
		return nil, fmt.Errorf("session %s: %w", id, err)
	}
	info, err := r.journal(ctx, id)
	if errors.Is(err, ErrNone) {
		info, err = accepted(id, turn)
	}
	if err != nil {
		return nil, fmt.Errorf("session %s: %w", id, err)
	}
	asked := askedOf(id, turn)
	asked.see(info)
	if err := r.seeWorkers(ctx, info); err != nil {
		return nil, fmt.Errorf("session %s: %w", id, err)
	}
	kept, err := r.bodies(ctx, map[protocol.SessionID]bool{id: true})
	if err != nil {
		return nil, fmt.Errorf("session %s: %w", id, err)
	}
	return info, r.sizes(ctx, info, kept)
}

// journal reads the journal.
func (r *Reader) journal(ctx context.Context, id protocol.SessionID) (*Info, error) {
	info, invalid := &Info{SessionID: id}, false
	for next := uint64(1); ; info.Messages++ {
		msg, err := r.events.GetMsg(ctx, next, jetstream.WithGetMsgSubject(wire.EventSubject(r.fleet, id)))
		switch {
		case errors.Is(err, jetstream.ErrMsgNotFound) && info.Messages == 0:
			return nil, ErrNone
		case errors.Is(err, jetstream.ErrMsgNotFound):
			if invalid {
				info.State = StateInvalid
			}
			return info, nil
		case err != nil:
			return nil, fmt.Errorf("read the journal: %w", err)
		}
		var events []loop.Event
		if json.Unmarshal(msg.Data, &events) != nil {
			invalid, events, info.UpdatedAt = true, nil, msg.Time
		}
		for i := range events {
			info.apply(&events[i])
		}
		info.JournalBytes += int64(len(msg.Data))
		next = msg.Sequence + 1
	}
}

// sizes adds the size of what is stored of a session outside of its journal.
func (r *Reader) sizes(ctx context.Context, info *Info, all map[protocol.SessionID]body) error {
	for _, results := range r.results {
		n, err := messagesOf(ctx, results, wire.ResultSubject(r.fleet, info.SessionID, "*"))
		if err != nil {
			return fmt.Errorf("session %s: %w", info.SessionID, err)
		}
		info.Results += n
	}
	kept := all[info.SessionID]
	info.Bodies, info.BodyBytes = kept.objects, kept.bytes
	return nil
}

// messagesOf counts the messages of a stream on a subject, which may have wildcards.
func messagesOf(ctx context.Context, stream jetstream.Stream, subject wire.Subject) (messages uint64, err error) {
	info, err := stream.Info(ctx, jetstream.WithSubjectFilter(subject))
	if err != nil {
		return 0, fmt.Errorf("look for %s: %w", subject, err)
	}
	for _, n := range info.State.Subjects {
		messages += n
	}
	return messages, nil
}
