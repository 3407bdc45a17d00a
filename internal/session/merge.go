package session

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/toolfleet/toolfleet/internal/codes"
	"github.com/toolfleet/toolfleet/internal/fleet"
	"github.com/toolfleet/toolfleet/internal/render"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/fleet/report"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// mergedOf is what a merge did, with the answer of the fork.
func mergedOf(r wire.WorkspaceMergeResult, answer string) report.Merged {
	return report.Merged{
		Written: r.Written, Removed: r.Removed, Merged: r.Merged, Conflicts: r.Conflicts, Theirs: r.Theirs, Protected: r.Protected,
		Commits: r.Commits, Checkpoint: r.Checkpoint, Answer: answer, Text: render.MergeText(r),
	}
}

// Merge brings what a fork of a session has changed in its workspace since it began, or since it
// was merged last, into the session, and adds its answer to the conversation, as one message. The
// files are one call in the lane of the session's workspace; the message follows when that has a
// result. A merge that was interrupted in between is completed by the same merge: the id of the
// call derives from what is merged, so it gets the result of the first one. The error wraps
// [ErrBusy] when one of the two has an open turn or unfinished calls; then nothing was changed.
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
		if r, err = idle(ctx, f, id, pool); err != nil {
			return merged, err
		}
	}
	fork, err := journal.Load(ctx, from)
	if err != nil {
		return merged, err
	}
	history, err := journal.Load(ctx, into)
	if err != nil {
		return merged, err
	}
	if len(history.Events) == 0 { // its workspace may be that of single calls
		if there, err := HasWorkspace(ctx, f.At(pool), into); err != nil || !there {
			return merged, cmp.Or(err, ErrNone)
		}
	}
	var last loop.Event // the last merge of the fork
	for i := range history.Events {
		if e := &history.Events[i]; e.Type == loop.EventSessionMerged && e.From == from {
			last = *e
		}
	}
	id := wire.MergeCallID(into, history.Last, from, fork.Last)
	if len(history.Events) == 0 { // no conversation that says what was merged
		id = wire.RandomCallID()
	}
	payload := wire.WorkspaceMerge{From: string(from), After: last.Checkpoint}
	value, err := r.call(ctx, id, payload)
	if _, failed := errors.AsType[*protocol.Error](err); failed { // maybe long ago, as without room
		value, err = r.call(ctx, wire.RandomCallID(), payload)
	}
	if err != nil {
		return merged, err
	}
	result, is := value.(wire.WorkspaceMergeResult)
	if !is {
		return merged, errors.New("the worker returned no result of a merge")
	}
	merged = mergedOf(result, answerOf(fork.Events))
	text := fmt.Sprintf("[Session %s, a fork of this one or of its origin, was merged.]", from)
	if merged.Answer != "" {
		text += "\nIts answer:\n" + merged.Answer
	}
	text += "\n\n"
	known := last.Checkpoint == result.Checkpoint && strings.HasPrefix(last.Text, text)
	if len(history.Events) == 0 || known {
		return merged, nil
	}
	_, err = journal.Append(ctx, into, history.Last, loop.Event{
		Type: loop.EventSessionMerged, SessionID: into, Time: time.Now().UTC(), Turn: history.Events[len(history.Events)-1].Turn,
		Text: text + render.Merge(result), NoteFields: loop.NoteFields{From: from, Checkpoint: result.Checkpoint},
	})
	return merged, err
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
