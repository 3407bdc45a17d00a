package loop

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"time"

	"github.com/toolfleet/toolfleet/internal/modeltext/render"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
	"github.com/toolfleet/toolfleet/pkg/tools/policy"
)

// CompleteChanges completes what people have begun to change of a session between two turns: a
// merge of a fork, a restore of the workspace, a revert of an effect. A change is one call, and
// three writes:
//
//	change_started, with the call ──► the call ──► change_ended, with session_merged
//	revert_started, with the call ──► the call ──► revert_ended
//
// Its beginning is journaled behind what its process has read, so no turn is open then. A turn that
// begins later, and a further change, first complete it: they send the same call, which runs once,
// and journal its end. CompleteChanges returns the results of the changes that it has ended.
func CompleteChanges(ctx context.Context, journal Journal, dispatcher Dispatcher, id protocol.SessionID) (ended []protocol.Result, err error) {
	for {
		history, err := journal.Load(ctx, id)
		if err != nil {
			return ended, fmt.Errorf("load session %s: %w", id, err)
		}
		open := StateOf(history.Events).Changes
		if len(open) == 0 {
			return ended, nil
		}
		change := open[0]
		call, result, err := resend(ctx, dispatcher, change.Call)
		if err != nil {
			return ended, fmt.Errorf("complete the change of session %s that began at %s (%s): %w", id, change.Time.Format(time.RFC3339), change.Name, err)
		}
		switch _, err = journal.Append(ctx, id, history.Last, change.ends(history.Events, call, result)...); {
		case err == nil:
			ended = append(ended, *result)
		case !errors.Is(err, ErrJournalConflict): // else another process has ended it, or adds to it
			return ended, err
		}
	}
}

// resend has the fleet run a call, or returns the result that it has.
func resend(ctx context.Context, dispatcher Dispatcher, body []byte) (call *protocol.Call, result *protocol.Result, err error) {
	if call, err = wire.DecodeCall(body); err != nil {
		return nil, nil, err
	}
	call.Again = true
	result, err = runCall(ctx, dispatcher, *call)
	if err == nil && ctx.Err() != nil { // what is known of the call now is not how it ends
		err = context.Cause(ctx)
	}
	return call, result, err
}

// ends are the events that end a change. A merge that changed something since the last one, or has
// another answer, is a message for the model.
func (e *Event) ends(events []Event, call *protocol.Call, result *protocol.Result) []Event {
	end := Event{
		Type: EventChangeEnded, SessionID: e.SessionID, Time: time.Now().UTC(), Turn: e.Turn,
		CallFields: CallFields{CallID: e.CallID, Name: e.Name}, NoteFields: NoteFields{From: e.From, Reverts: e.Reverts}, Status: string(result.Status),
	}
	end.Error = result.Error
	if e.Type == EventRevertStarted {
		end.Type, end.Text = EventRevertEnded, fmt.Sprintf("[A person rewound the session: %s %s %s, and ended as %s.]", e.Name, e.Arguments, e.Text, result.Status)
		killed := result.Status == protocol.StatusTimeout || result.Status == protocol.StatusCancelled
		if killed && result.Attempt > 0 && call.Delivery != protocol.Idempotent {
			end.Status = string(protocol.StatusOutcomeUnknown) // it may have undone the effect: it is not attempted under another id
		}
		return []Event{end}
	}
	merged, is := result.Value.(wire.WorkspaceMergeResult)
	if !is || result.Error != nil {
		return []Event{end}
	}
	for i := len(events) - 1; i >= 0; i-- {
		if last := &events[i]; last.Type == EventSessionMerged && last.From == e.From {
			if last.Checkpoint == merged.Checkpoint && strings.HasPrefix(last.Text, e.Text) {
				return []Event{end}
			}
			break
		}
	}
	message := Event{
		Type: EventSessionMerged, SessionID: e.SessionID, Time: end.Time, Turn: e.Turn,
		Text: e.Text + render.Merge(merged), NoteFields: NoteFields{From: e.From, Checkpoint: merged.Checkpoint},
	}
	return []Event{message, end}
}

// Rewind takes the turns after a turn out of the conversation; after 0, all of them. The journal
// keeps them, and so do the sums of what the session has used. Files and other effects stay as they
// are. It is refused while a turn is open.
func (r *Runner) Rewind(ctx context.Context, session protocol.SessionID, turn int) error {
	rec, err := r.settled(ctx, session)
	switch {
	case err != nil:
		return err
	case rec.session.open() != nil:
		return errors.New("a turn of the session is open: continue it first")
	case turn < 0 || turn > len(rec.session.turns):
		return fmt.Errorf("turn %d: the session has turns 1 to %d", turn, len(rec.session.turns))
	case rec.session.visible() <= turn:
		return nil
	}
	return rec.record(ctx, Event{Type: EventRewound, Turn: len(rec.session.turns), NoteFields: NoteFields{KeptTurn: turn}})
}

// rewind folds the event. A summary that has something of what is taken out goes with it: what it
// stood for is shown again.
func (s *session) rewind(e *Event) error {
	if s.open() != nil || e.KeptTurn < 0 || e.KeptTurn > len(s.turns) {
		return fmt.Errorf("the conversation goes back to turn %d of %d, of which one is open: %t", e.KeptTurn, len(s.turns), s.open() != nil)
	}
	for i := range s.turns[e.KeptTurn:] {
		s.turns[e.KeptTurn+i].rewound = true
	}
	if s.summary != nil && s.summary.turn >= e.KeptTurn {
		s.summary = nil
	}
	maps.DeleteFunc(s.approved, func(_ string, a approved) bool { return a.turn > e.KeptTurn })
	s.lastTokens, s.sinceReply = 0, 0
	return nil
}

// visible is the number of the last turn that the model reads; 0 for none.
func (s *session) visible() int {
	for i := len(s.turns); i > 0; i-- {
		if !s.turns[i-1].rewound {
			return i
		}
	}
	return 0
}

// inView are the steps of the turn that the conversation has.
func (t *turn) inView() []step {
	if t.rewound {
		return nil
	}
	return t.steps
}

// Effect says how a call reaches outside of the workspace, where restoring the workspace undoes
// nothing.
type Effect struct {
	// Reaches has the reasons: network, at_most_once, mcp, tool.
	Reaches []string `json:"reaches,omitempty"`
	// Revert undoes it; nil when nothing does.
	Revert *RevertCall `json:"revert,omitempty"`
}

// How calls reach outside of the workspace.
const (
	reachNetwork = "network"      // its program could reach hosts
	reachOnce    = "at_most_once" // running it twice makes a difference
	reachMCP     = "mcp"          // a tool of an MCP server
	reachTool    = "tool"         // a tool of the user's own
)

// RevertCall is the tool call that undoes the effect of another one; see [tools.Revert].
type RevertCall struct {
	Tool      string `json:"tool"`
	Arguments string `json:"arguments"`
	// Call is the call as docs/wire.md describes it, with an id that is not its own. It was planned
	// when the result came, so it runs whatever the tools are by then.
	Call json.RawMessage `json:"call"`
}

// maxRevert bounds the size of a revert in the journal, in bytes.
const maxRevert = 64 << 10

// effectOf is the effect of a call with a result; nil when it has none outside of the workspace.
func (r *Runner) effectOf(ctx context.Context, scope tools.Scope, tool *tools.Tool, call *protocol.Call, result *protocol.Result) *Effect {
	started := result.Attempt > 0 || result.Status == protocol.StatusOutcomeUnknown
	if call == nil || !started || result.Status == protocol.StatusRejected || tool != nil && tool.Effect.ReadOnly && !tool.Effect.Hinted {
		return nil
	}
	var effect Effect
	switch kind := wire.KindOf(call.Payload); {
	case kind == wire.KindMCPCall:
		effect.Reaches = append(effect.Reaches, reachMCP)
	case wire.ClassOf(kind) == wire.ClassNone:
		effect.Reaches = append(effect.Reaches, reachTool)
	}
	if result.Network != "" {
		effect.Reaches = append(effect.Reaches, reachNetwork)
	}
	if call.Delivery == protocol.AtMostOnce {
		effect.Reaches = append(effect.Reaches, reachOnce)
	}
	if effect.Reaches == nil && result.Status != protocol.StatusOutcomeUnknown {
		return nil
	}
	effect.Revert = r.revertOf(ctx, scope, tool, result)
	return &effect
}

// revertOf plans what undoes the effect of a call. A tool whose revert cannot run is reported in
// the log: its calls have none.
func (r *Runner) revertOf(ctx context.Context, scope tools.Scope, tool *tools.Tool, result *protocol.Result) *RevertCall {
	name, arguments, has := tool.Reverted(result)
	if !has {
		return nil
	}
	broken := func(reason any) *RevertCall {
		r.opts.Logger.WarnContext(ctx, "call has no revert", slog.String("call_id", string(result.CallID)),
			slog.String("tool", tool.Name), slog.String("revert", name), slog.Any("reason", reason))
		return nil
	}
	_, plan, failure := r.table.Plan(scope, name, string(arguments))
	if failure != nil {
		return broken(failure)
	}
	if plan.Payload == nil {
		return broken("the tool does not run on workers")
	}
	judged := r.judge(policy.Call{Tool: name, Plan: plan}, "")
	if judged.Decision == policy.Denied { // the person who reverts approves it
		return broken(judged.Reason)
	}
	call, failure := plan.Call(scope, tools.Place{ID: result.CallID}, "", name, time.Now().UTC())
	if failure != nil {
		return broken(failure)
	}
	binding(judged).bind(&call, r.opts.MinLevel)
	body, err := wire.EncodeCall(&call)
	if err != nil || len(body) > maxRevert {
		return broken("the call is too large")
	}
	return &RevertCall{Tool: name, Arguments: string(arguments), Call: body}
}
