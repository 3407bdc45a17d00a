package loop_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/loop/looptest"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

var errCrash = errors.New("crash")

// crashingJournal fails its n-th append, after it has stored the first kept events of it.
type crashingJournal struct {
	looptest.Journal

	mu         sync.Mutex
	untilCrash int // appends that go well first; negative never crashes
	kept       int
	size       int // of the append that failed
}

func (j *crashingJournal) Append(
	ctx context.Context, session protocol.SessionID, expected uint64, events ...loop.Event,
) (uint64, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.untilCrash--
	if j.untilCrash != -1 {
		return j.Journal.Append(ctx, session, expected, events...)
	}
	j.size = len(events)
	if _, err := j.Journal.Append(ctx, session, expected, events[:min(j.kept, len(events))]...); err != nil {
		return 0, err
	}
	return 0, errCrash
}

// busy is a conversation with every sort of tool call.
func busy() []loop.Reply {
	return []loop.Reply{
		asks("a", "work", "inline", "nosuch", "work", "plan_panics", "work"),
		asks("a", "inline_fails", "work", "work", "plan_refuses"),
		asks("c", "inline"),
		says("done"),
		says("checked"),
	}
}

// settled runs a further turn and returns what the model saw in it: all that came before, with
// places instead of ids.
func settled(t *testing.T, r *rig) []loop.Message {
	t.Helper()
	result := r.mustRun(t.Context(), t, "check")
	require.Equal(t, 2, result.Turn)
	require.Equal(t, "checked", result.Text)
	return r.placed(t, r.model.lastSeen())
}

func TestRun_CrashAtAnyAppendChangesNothing(t *testing.T) {
	t.Parallel()
	session := protocol.NewSessionID()
	clean := newRig(busy()...)
	clean.session = session
	clean.mustRun(t.Context(), t, "go")
	want := settled(t, clean)
	requireProtocol(t, want)

	appends := 0
	for n := 0; ; n++ {
		crashed := false
		for kept := range 4 {
			name := fmt.Sprintf("append %d, of which %d events are stored", n+1, kept)
			r, journal := newRig(busy()...), &crashingJournal{untilCrash: n, kept: kept}
			r.session, r.journal = session, journal
			result, err := r.run(t.Context(), t, "go")
			if err != nil {
				crashed = true
				require.ErrorIs(t, err, errCrash, name)
				require.Equal(t, loop.OutcomeFailed, result.Outcome, name)
				result, err = r.run(t.Context(), t, "go")
			}
			require.NoError(t, err, name)
			journal.untilCrash = -1
			if result.Turn == 1 { // else the end of the turn was stored before the crash
				require.Equal(t, want, settled(t, r), name)
			}
			require.Equal(t, clean.fleet.ran(), r.fleet.ran(), name)
			require.Empty(t, r.fleet.stopped, name)
		}
		if !crashed {
			break
		}
		appends++
	}
	require.Greater(t, appends, 10)
}

func TestRun_AnyCrashesAndAnyOrderOfResultsChangeNothing(t *testing.T) {
	t.Parallel()
	session := protocol.NewSessionID()
	input := loop.Input{Text: "go", ID: wire.RandomCallID()}
	clean := newRig(busy()...)
	clean.session = session
	want := clean.mustRunInput(t.Context(), t, input)
	conversation := settled(t, clean)

	rapid.Check(t, func(rt *rapid.T) {
		r, journal := newRig(busy()...), &crashingJournal{}
		r.session, r.journal = session, journal
		r.fleet.order = func(n int) []int {
			return rapid.Permutation(slices.Collect(upTo(n))).Draw(rt, "order")
		}
		var result loop.TurnResult
		for crashes := 0; ; crashes++ {
			journal.kept = rapid.IntRange(0, 6).Draw(rt, "kept")
			journal.untilCrash = rapid.IntRange(0, 12).Draw(rt, "until crash")
			if crashes == 20 {
				journal.untilCrash = -1
			}
			var err error
			result, err = r.runInput(t.Context(), t, input)
			if err == nil {
				break
			}
			require.ErrorIs(rt, err, errCrash)
		}
		journal.untilCrash = -1
		require.Equal(rt, want, result)
		require.Equal(rt, conversation, settled(t, r))
		require.Equal(rt, clean.fleet.ran(), r.fleet.ran())
		requireOneResultEach(rt, r.events(t))
	})
}

func upTo(n int) func(yield func(int) bool) {
	return func(yield func(int) bool) {
		for i := range n {
			if !yield(i) {
				return
			}
		}
	}
}

func requireOneResultEach(t require.TestingT, events []loop.Event) {
	calls, results := make(map[protocol.CallID]int), make(map[protocol.CallID]int)
	for _, event := range events {
		switch event.Type {
		case loop.EventToolCall:
			calls[event.CallID]++
		case loop.EventToolResult:
			results[event.CallID]++
		default:
		}
	}
	require.Equal(t, calls, results)
	for id, n := range results {
		require.Equal(t, 1, n, "call %s", id)
	}
}

func TestRun_FleetFailureLeavesTheTurnOpen(t *testing.T) {
	t.Parallel()
	r := newRig(asks("a", "work", "inline"), says("done"))
	r.fleet.err = errors.New("no servers")
	result, err := r.run(t.Context(), t, "go")
	require.ErrorContains(t, err, "dispatch step 1 of turn 1: no servers")
	require.Equal(t, loop.OutcomeFailed, result.Outcome)
	require.Equal(t, protocol.CodeFleetUnavailable, result.Error.Code)
	require.Equal(t, 1, result.Steps)
	require.Empty(t, r.watch.of(loop.EventTurnEnded))
	require.Len(t, r.watch.of(loop.EventToolResult), 1, "the inline tool's")

	r.fleet.err = nil
	result = r.mustRunInput(t.Context(), t, loop.Input{})
	require.Equal(t, loop.TurnResult{
		Turn: 1, Outcome: loop.OutcomeAnswered, Text: "done", Steps: 2,
		Usage: protocol.Usage{InputTokens: 20, OutputTokens: 2},
	}, result)
	require.Len(t, r.model.seen, 2, "the model is not asked for a reply again")
	requireOneResultEach(t, r.events(t))
	require.Len(t, r.watch.of(loop.EventSessionStarted), 1)
}

// forgetful tells some results twice, some of nobody, and loses the last one.
type forgetful struct{ *fleet }

func (f forgetful) Send(ctx context.Context, calls []protocol.Call, observe func(loop.Update), held ...loop.Handle) []loop.Handle {
	return dispatch(f.Dispatch).send(ctx, calls, observe, held, f.told)
}

func (f forgetful) Dispatch(ctx context.Context, calls []protocol.Call, observe func(loop.Update)) error {
	return f.fleet.Dispatch(ctx, calls, func(u loop.Update) {
		if u.CallID == calls[len(calls)-1].ID && u.State == loop.StateDone {
			u.Result = nil
		}
		observe(u)
		observe(u)
		u.CallID = "nobody"
		observe(u)
	})
}

func TestRun_DispatcherThatMiscountsMakesNoResults(t *testing.T) {
	t.Parallel()
	r := newRig(asks("a", "work", "work"), says("done"))
	runner := mustNew(t, r.model, forgetful{r.fleet}, r.journal, table(t), &r.opts)
	_, err := runner.Run(t.Context(), r.session, loop.Input{Text: "go"})
	require.ErrorContains(t, err, "1 calls came back without result")
	require.Len(t, r.watch.of(loop.EventToolResult), 1)
	r.mustRun(t.Context(), t, "go")
	requireOneResultEach(t, r.events(t))
}

func TestRun_LoserOfASessionLeavesItsCallsAlone(t *testing.T) {
	t.Parallel()
	r := newRig(asks("a", "work", "work", "work", "wait"), says("done"))
	r.fleet.told = func(protocol.Call) {
		history, err := r.journal.Load(t.Context(), r.session)
		require.NoError(t, err)
		_, err = r.journal.Append(t.Context(), r.session, history.Last, loop.Event{Type: "from_elsewhere"})
		require.NoError(t, err)
	}
	result, err := r.run(t.Context(), t, "go")
	require.ErrorIs(t, err, loop.ErrJournalConflict)
	require.Equal(t, loop.OutcomeFailed, result.Outcome)
	require.Equal(t, protocol.CodeInternal, result.Error.Code)
	require.Empty(t, r.fleet.stopped)
	require.Len(t, r.watch.of(loop.EventToolResult), 1, "what was not journaled is not told")
}

func TestRun_DetachedTurnStaysOpen(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(asks("a", "work", "work", "inline"), says("done"))
		ctx, detach := context.WithCancelCause(t.Context())
		r.fleet.stall = 2
		go func() {
			synctest.Wait()
			detach(loop.ErrDetached)
		}()
		result, err := r.run(ctx, t, "go")
		require.ErrorIs(t, err, loop.ErrDetached)
		require.Equal(t, loop.OutcomeInterrupted, result.Outcome)
		require.Empty(t, r.watch.of(loop.EventTurnEnded))
		require.Len(t, r.watch.of(loop.EventToolResult), 2)
		_, err = r.run(ctx, t, "go")
		require.ErrorIs(t, err, context.Canceled, "a run that cannot load begins nothing")

		r.fleet.stall = 0
		result = r.mustRun(t.Context(), t, "go")
		require.Equal(t, loop.OutcomeAnswered, result.Outcome)
		require.Empty(t, r.fleet.stopped)
		require.Len(t, r.fleet.ran(), 2)
	})
}

func TestRun_DetachedWhileTheModelReplies(t *testing.T) {
	t.Parallel()
	r := newRig(says("done"))
	ctx, detach := context.WithCancelCause(t.Context())
	r.model.before = func(context.Context) { detach(fmt.Errorf("draining: %w", loop.ErrDetached)) }
	_, err := r.run(ctx, t, "go")
	require.ErrorIs(t, err, loop.ErrDetached)
	require.Empty(t, r.watch.of(loop.EventTurnEnded))
}

func TestRun_DetachedBeforeTheCallsLeavesThemToOthers(t *testing.T) {
	t.Parallel()
	r := newRig(asks("a", "work", "nosuch"), says("done"))
	ctx, detach := context.WithCancelCause(t.Context())
	r.opts.Observe = func(e loop.Event) {
		r.watch.observe(e)
		if e.Type == loop.EventModelReply {
			detach(loop.ErrDetached)
		}
	}
	_, err := r.run(ctx, t, "go")
	require.ErrorIs(t, err, loop.ErrDetached)
	require.Empty(t, r.watch.of(loop.EventToolResult))
	require.Empty(t, r.fleet.ran())
	r.mustRun(t.Context(), t, "go")
	require.Len(t, r.fleet.ran(), 1)
}

func TestRun_DetachedInlineToolIsRunAgain(t *testing.T) {
	t.Parallel()
	r := newRig(asks("a", "wait"), says("done"))
	ctx, detach := context.WithCancelCause(t.Context())
	r.opts.Observe = func(e loop.Event) {
		r.watch.observe(e)
		if e.Type == loop.EventToolCall {
			detach(loop.ErrDetached)
		}
	}
	_, err := r.run(ctx, t, "go")
	require.ErrorIs(t, err, loop.ErrDetached)
	require.Empty(t, r.watch.of(loop.EventToolResult))
}

func TestRun_InputWithAnIDIsAnsweredOnce(t *testing.T) {
	t.Parallel()
	r := newRig(says("one"), says("two"))
	first, second := loop.Input{Text: "same", ID: "id-1"}, loop.Input{Text: "same", ID: "id-2"}
	one := r.mustRunInput(t.Context(), t, first)
	again := r.mustRunInput(t.Context(), t, first)
	require.Equal(t, one, again)
	two := r.mustRunInput(t.Context(), t, second)
	require.Equal(t, "two", two.Text)
	require.Equal(t, 2, two.Turn)
	again = r.mustRunInput(t.Context(), t, first)
	require.Equal(t, one, again)
	require.Len(t, r.model.seen, 2)
	require.Len(t, r.watch.of(loop.EventSessionStarted), 1)
}

func TestRun_OpenTurnOfAnotherInputComesFirst(t *testing.T) {
	t.Parallel()
	r := newRig(asks("a", "work"), says("first"), says("second"))
	r.fleet.err = errors.New("no servers")
	_, err := r.run(t.Context(), t, "go")
	require.Error(t, err)
	r.fleet.err = nil
	result := r.mustRun(t.Context(), t, "and then")
	require.Equal(t, "second", result.Text)
	require.Equal(t, 2, result.Turn)
	ended := r.watch.of(loop.EventTurnEnded)
	require.Equal(t, []string{"first", "second"}, []string{ended[0].Text, ended[1].Text})
	requireProtocol(t, r.model.lastSeen())
}

func TestRun_InterruptOfTheOpenTurnBeginsNoOther(t *testing.T) {
	t.Parallel()
	r := newRig(asks("a", "work"), says("first"))
	r.fleet.err = errors.New("no servers")
	_, err := r.run(t.Context(), t, "go")
	require.Error(t, err)
	ctx, stop := context.WithCancel(t.Context())
	r.fleet.err, r.fleet.told = nil, func(protocol.Call) { stop() }
	result := r.mustRun(ctx, t, "and then")
	require.Equal(t, 1, result.Turn)
	require.Equal(t, loop.OutcomeInterrupted, result.Outcome)
	require.Len(t, r.watch.of(loop.EventTurnStarted), 1)
}

// deaf goes on when it is told to leave.
type deaf struct{ *fleet }

func (d deaf) Send(ctx context.Context, calls []protocol.Call, observe func(loop.Update), held ...loop.Handle) []loop.Handle {
	return dispatch(d.Dispatch).send(ctx, calls, observe, held, d.told)
}

func (d deaf) Dispatch(ctx context.Context, calls []protocol.Call, observe func(loop.Update)) error {
	return d.fleet.Dispatch(context.WithoutCancel(ctx), calls, observe)
}

func TestRun_JournalsNothingBehindAFailedAppend(t *testing.T) {
	t.Parallel()
	r, journal := newRig(asks("a", "work", "work", "work"), says("done")), &crashingJournal{untilCrash: 4}
	r.journal = journal
	runner := mustNew(t, r.model, deaf{r.fleet}, journal, table(t), &r.opts)
	_, err := runner.Run(t.Context(), r.session, loop.Input{Text: "go"})
	require.ErrorIs(t, err, errCrash)
	require.Len(t, r.watch.of(loop.EventToolResult), 1)
}

func TestRun_RefusesWhatCannotBegin(t *testing.T) {
	t.Parallel()
	r := newRig(says("done"))
	_, err := r.runInput(t.Context(), t, loop.Input{})
	require.ErrorIs(t, err, loop.ErrNoInput)
	require.Empty(t, r.events(t))
	_, err = r.runInput(t.Context(), t, loop.Input{Text: "go", ID: "no/id"})
	require.ErrorIs(t, err, protocol.ErrInvalidName)
	r.session = "no/session"
	_, err = r.run(t.Context(), t, "go")
	require.ErrorIs(t, err, protocol.ErrInvalidName)
}

func TestRun_AnInputThatIsNotUTF8IsResumedAsOne(t *testing.T) {
	t.Parallel()
	r := newRig(asks("a", "work"), says("done"))
	r.fleet.err = errors.New("no servers")
	_, err := r.run(t.Context(), t, "go\xff")
	require.Error(t, err)
	r.fleet.err = nil
	result := r.mustRun(t.Context(), t, "go\xff")
	require.Equal(t, 1, result.Turn)
}

func TestRun_RefusesAJournalThatMakesNoSense(t *testing.T) {
	t.Parallel()
	r := newRig(says("done"))
	_, err := r.journal.Append(t.Context(), r.session, 0,
		loop.Event{Type: loop.EventSessionStarted}, loop.Event{Type: loop.EventToolResult, Turn: 1, Step: 1})
	require.NoError(t, err)
	_, err = r.run(t.Context(), t, "go")
	require.ErrorIs(t, err, loop.ErrJournalInvalid)
	require.ErrorContains(t, err, "event 2: ")
}
