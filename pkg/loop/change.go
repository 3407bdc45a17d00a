package loop

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/toolfleet/toolfleet/internal/modeltext/render"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
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
		if killed := result.Status == protocol.StatusTimeout || result.Status == protocol.StatusCancelled; killed && result.Attempt > 0 && call.Delivery != protocol.Idempotent {
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
