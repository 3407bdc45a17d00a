package session

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/toolfleet/toolfleet/internal/fleet"
	"github.com/toolfleet/toolfleet/internal/modeltext/render"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/pkg/fleet/report"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Merge brings what a fork of a session has changed in its workspace since it began, or since it
// was merged last, into the session, and adds its answer to the conversation, as one message. A
// merge that was interrupted is completed by the same merge, or by the session's next turn,
// whichever comes first; see [loop.CompleteChanges]. The error wraps [ErrBusy] when one of the two
// has an open turn or unfinished calls, or the session is extended meanwhile; then nothing was
// changed.
func Merge(ctx context.Context, f *fleet.Fleet, from, into protocol.SessionID, pool protocol.Pool) (report.Merged, error) {
	merged, err := merge(ctx, f, f.Journal, from, into, pool)
	if err != nil {
		return merged, fmt.Errorf("merge session %s into %s: %w", from, into, err)
	}
	return merged, nil
}

func merge(ctx context.Context, f *fleet.Fleet, journal loop.Journal, from, into protocol.SessionID, pool protocol.Pool) (merged report.Merged, err error) {
	if from == into {
		return merged, codes.As(codes.ErrInvalid, errors.New("a session cannot be merged into itself: name the fork, and then the session that gets its changes"))
	}
	var r *remover
	for _, id := range []protocol.SessionID{from, into} {
		if r, err = idle(ctx, f, journal, id, pool); err != nil {
			return merged, err
		}
	}
	fork, err := journal.Load(ctx, from)
	if err != nil {
		return merged, err
	}
	if len(r.history.Events) == 0 { // its workspace may be that of single calls
		if there, err := HasWorkspace(ctx, f.At(pool), into); err != nil || !there {
			return merged, cmp.Or(err, ErrNone)
		}
	}
	answer := answerOf(fork.Events)
	text := fmt.Sprintf("[Session %s, a fork of this one or of its origin, was merged.]", from)
	if answer != "" {
		text += "\nIts answer:\n" + answer
	}
	about := loop.Event{Text: text + "\n\n", NoteFields: loop.NoteFields{From: from}}
	value, err := r.merge(ctx, about, fork.Last)
	if err != nil {
		return merged, err
	}
	result, is := value.(wire.WorkspaceMergeResult)
	if !is {
		return merged, errors.New("the worker returned no result of a merge")
	}
	return report.Merged{MergedFiles: result, Answer: answer, Text: render.MergeText(result)}, nil
}

// merge has a worker merge a fork whose journal ends at forkLast, unless that is what the
// interrupted merge has done which was just completed.
func (r *remover) merge(ctx context.Context, about loop.Event, forkLast uint64) (protocol.Value, error) {
	payload := wire.WorkspaceMerge{From: string(about.From)}
	var ended uint64 // merges of the fork
	for i := range r.history.Events {
		switch e := &r.history.Events[i]; {
		case e.From != about.From:
		case e.Type == loop.EventSessionMerged:
			payload.After = e.Checkpoint
		case e.Type == loop.EventChangeEnded:
			ended++
		default:
		}
	}
	if len(r.history.Events) == 0 { // no conversation: the workspace says what was merged
		return r.call(ctx, wire.RandomCallID(), payload)
	}
	if ended > 0 {
		same := wire.MergeCallID(r.id, ended-1, about.From, forkLast)
		if slices.ContainsFunc(r.completed, func(c protocol.Result) bool { return c.CallID == same && c.Error == nil }) {
			return r.outcome(ctx, &protocol.Call{ID: same, SessionID: r.id}, r.completed)
		}
	}
	return r.change(ctx, wire.MergeCallID(r.id, ended, about.From, forkLast), about, payload)
}

// answerOf is the answer of the last turn of its own that a session has; "" without one.
func answerOf(events []loop.Event) (answer string) {
	for i := range events {
		switch e := &events[i]; e.Type {
		case loop.EventSessionForked:
			answer = ""
		case loop.EventTurnEnded:
			answer = e.Text
		default:
		}
	}
	return answer
}
