package loop_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/natsio/natsiotest"
	"github.com/toolfleet/toolfleet/internal/session/journal"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/loop/looptest"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools/toolset"
)

// behind has a sub-agent work on a fork in the background; its parent answers before it ends,
// unless it is resumed.
func behind(t *testing.T) *family {
	t.Helper()
	f := newFamily(t, byPrompt{
		"go":   {replies: []loop.Reply{delegates("d", `{"prompt":"left","workspace":"fork","background":true}`), says("it works"), says("it is done"), says("and more")}},
		"left": {replies: []loop.Reply{asks("l", "work", "greedy"), says("left is done")}},
	})
	jobs, err := toolset.Named("jobs")
	require.NoError(t, err)
	f.tools = append(f.tools, jobs...)
	f.fleet.answer = func(call *protocol.Call) (protocol.Value, *protocol.Error) {
		switch call.Payload.(type) {
		case wire.WorkspaceFork:
			return wire.WorkspaceForkResult{Files: 1}, nil
		case wire.WorkspaceMerge:
			return wire.WorkspaceMergeResult{Written: []string{"new"}, Checkpoint: 3}, nil
		default:
			return protocol.FilesWriteResult{}, nil
		}
	}
	return f
}

// untilAsked has a model wait until another one was asked so often.
func untilAsked(s, other *script, times int) {
	asked := make(chan struct{})
	n := 0
	other.before = func(context.Context) {
		if n++; n == times {
			close(asked)
		}
	}
	s.before = func(ctx context.Context) {
		select {
		case <-asked:
		case <-ctx.Done():
		}
	}
}

func TestAgent_InTheBackgroundIsReadOfBeforeTheTurnEnds(t *testing.T) {
	t.Parallel()
	f := behind(t)
	f.opts.Price = &loop.Price{Input: 100_000}
	untilAsked(f.models["left"], f.models["go"], 2)
	result := f.mustRun(t.Context(), t)
	require.Equal(t, "it is done", result.Text)
	require.Equal(t, int64(5*11), result.Usage.Total(), "what it uses counts")
	require.InDelta(t, 5.0, *result.CostUSD, 1e-9)
	said := texts(f.models["go"].lastSeen())
	id := f.callID(t, 1, 1, 0)
	require.Equal(t, fmt.Sprintf("tool: [job_1_1_0 works in the background, as session %s. You will be told when it has ended; go on with something else.]", id), said[3])
	require.Equal(t, "assistant: it works", said[4])
	require.Equal(t, "user: [job_1_1_0 (agent) has ended: ok]\nleft is done\n\n[Merged into the workspace:\nchanged: new]", said[5])
	requireProtocol(t, f.models["go"].lastSeen())
	ends := f.watch.of(loop.EventJobEnded)
	require.Len(t, ends, 1)
	require.Equal(t, &protocol.Spending{Steps: 2, Calls: 2, Tokens: 22, USD: 2}, ends[0].Spent)
	require.Equal(t, []string{"workspace_fork", "noop", "noop", "workspace_merge"}, f.kinds())
}

// A replay of a session with a sub-agent in the background has the same transcript.
func TestReplay_OfASubAgentInTheBackground(t *testing.T) {
	t.Parallel()
	f := behind(t)
	untilAsked(f.models["left"], f.models["go"], 2)
	f.mustRun(t.Context(), t)
	original := f.events(t)
	recording, err := loop.History{Events: original}.Recording()
	require.NoError(t, err)
	replay := behind(t)
	replay.opts.Replay = recording
	runner := mustNew(t, recording, replay.fleet, replay.journal, table(t, replay.tools...), &replay.opts)
	for _, input := range recording.Inputs() {
		mustRun(t.Context(), t, runner, replay.session, input)
	}
	require.Equal(t, transcript(t, original), transcript(t, replay.events(t)))
	require.Empty(t, replay.fleet.ran())
}

func TestAgent_CrashAtAnyAppendInTheBackground(t *testing.T) {
	t.Parallel()
	for n := 0; ; n++ {
		crashed := false
		for kept := range 3 {
			name := fmt.Sprintf("append %d, of which %d events are stored", n+1, kept)
			f, kept := behind(t), kept
			f.journal = &crashingJournal{untilCrash: n, kept: kept}
			got, err := f.run(t.Context(), t)
			for tries := 0; err != nil && tries < 5; tries++ {
				crashed = true
				got, err = f.run(t.Context(), t)
			}
			require.NoError(t, err, name)
			if got.Turn == 2 {
				continue // the end of the turn was stored before the crash
			}
			require.Equal(t, loop.OutcomeAnswered, got.Outcome, name)
			require.Len(t, f.kinds(), 4, name)
			events, ends := f.events(t), 0
			requireOneResultEach(t, events)
			for _, e := range events {
				if e.Type == loop.EventJobEnded {
					require.Equal(t, "ok", e.Status, name)
					ends++
				}
			}
			require.Equal(t, 1, ends, name)
			require.Equal(t, 1, strings.Count(strings.Join(texts(f.models["go"].lastSeen()), "\n"), "left is done"), name)
			child := f.child(t, 1, 0)
			requireOneResultEach(t, child)
			require.Equal(t, loop.EventTurnEnded, child[len(child)-1].Type, name)
		}
		if !crashed {
			require.Greater(t, n, 10)
			return
		}
	}
}

// A turn that ends at a limit leaves the sub-agent as it is; the next turn continues it.
func TestAgent_InTheBackgroundOutlivesATurnThatEnds(t *testing.T) {
	t.Parallel()
	f := behind(t)
	f.opts.MaxSteps = 2
	f.models["go"].replies[1] = asks("w", "work")
	left := make(chan struct{})
	f.models["left"].before = func(ctx context.Context) {
		select {
		case <-left: // after the first turn
		case <-ctx.Done():
		}
	}
	result := f.mustRun(t.Context(), t)
	require.Equal(t, loop.OutcomeLimitReached, result.Outcome)
	require.NotEqual(t, loop.EventTurnEnded, f.child(t, 1, 0)[len(f.child(t, 1, 0))-1].Type)
	close(left)
	f.opts.MaxSteps = 0
	result = f.mustRun(t.Context(), t)
	require.Equal(t, loop.OutcomeAnswered, result.Outcome)
	require.Len(t, f.kinds(), 5)
	require.Contains(t, strings.Join(texts(f.models["go"].lastSeen()), "\n"), "left is done")
}

func TestAgent_InTheBackgroundIsStoppedWithItsTurnAndByJobCancel(t *testing.T) {
	t.Parallel()
	f := behind(t)
	ctx, stop := context.WithCancel(t.Context())
	f.models["left"].before = func(ctx context.Context) { stop(); <-ctx.Done() }
	result := f.mustRun(ctx, t)
	require.Equal(t, loop.OutcomeInterrupted, result.Outcome)
	child := f.child(t, 1, 0)
	require.Equal(t, string(loop.OutcomeInterrupted), child[len(child)-1].Status)

	f = behind(t)
	f.models["left"].before = func(ctx context.Context) { <-ctx.Done() }
	f.models["go"].replies[1] = asks("c", "job_cancel")
	f.models["go"].replies[1].ToolCalls[0].Arguments = `{"job":"job_1_1_0"}`
	result = f.mustRun(t.Context(), t)
	require.Equal(t, "it is done", result.Text)
	require.Contains(t, f.watch.of(loop.EventToolResult)[1].Content, "job_1_1_0 has ended: cancelled")
	require.NotContains(t, f.kinds(), "workspace_merge")
}

// beside has a sub-agent work in the background while a call of the same reply runs.
func beside() byPrompt {
	reply := delegates("d", `{"prompt":"left","background":true}`)
	reply.ToolCalls = append(reply.ToolCalls, asks("w", "work").ToolCalls...)
	return byPrompt{
		"go":   {replies: []loop.Reply{reply, says("it works"), says("it is done"), says("and more")}},
		"left": {replies: []loop.Reply{says("left is done")}},
	}
}

// A coordinator that takes over goes on with the sub-agents in the background of a reply while the
// other calls of the reply run, and a cancel meanwhile ends them.
func TestAgent_InTheBackgroundGoesOnBesideItsCalls(t *testing.T) {
	t.Parallel()
	lost := func() (*family, chan struct{}) {
		f, release := newFamily(t, beside()), make(chan struct{})
		f.fleet.hold = func(*protocol.Call) <-chan struct{} { return release }
		ctx, leave := context.WithCancelCause(t.Context())
		f.models["left"].before = func(context.Context) { leave(loop.ErrDetached) }
		_, err := f.run(ctx, t)
		require.ErrorIs(t, err, loop.ErrDetached)
		return f, release
	}
	f, release := lost()
	f.models["left"].before = func(context.Context) { close(release) } // else the call never ends
	limited, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	result := f.mustRun(limited, t)
	require.Equal(t, loop.OutcomeAnswered, result.Outcome)

	f, release = lost()
	f.models["left"].before = nil
	ctx, stop := context.WithCancel(t.Context())
	f.fleet.hold = func(*protocol.Call) <-chan struct{} {
		stop()
		return release
	}
	result = f.mustRun(ctx, t)
	require.Equal(t, loop.OutcomeInterrupted, result.Outcome)
	events := f.child(t, 1, 0)
	require.Equal(t, loop.EventTurnEnded, events[len(events)-1].Type, "its session is not left open")
}

// A sub-agent that a rewound turn has left ends in the next turn, whose model reads nothing of it.
func TestAgent_OfARewoundTurnEnds(t *testing.T) {
	t.Parallel()
	f := behind(t)
	f.opts.MaxSteps = 2
	f.models["go"].replies[1] = asks("w", "work")
	f.models["left"].before = func(ctx context.Context) { <-ctx.Done() }
	result := f.mustRun(t.Context(), t)
	require.Equal(t, loop.OutcomeLimitReached, result.Outcome)
	runner := mustNew(t, f.models, f.fleet, f.journal, table(t, f.tools...), &f.opts)
	require.NoError(t, runner.Rewind(t.Context(), f.session, 0))
	f.models["left"].before = nil
	f.models["anew"] = &script{replies: []loop.Reply{says(""), says(""), says("hello")}}
	mustRun(t.Context(), t, runner, f.session, loop.Input{Text: "anew"})
	require.NotContains(t, strings.Join(texts(f.models["anew"].lastSeen()), "\n"), "job_1_1_0")
	child := f.child(t, 1, 0)
	require.Equal(t, string(loop.OutcomeInterrupted), child[len(child)-1].Status)
	require.NotContains(t, f.kinds(), "workspace_merge")
	require.Equal(t, string(protocol.StatusCancelled), f.watch.of(loop.EventJobEnded)[0].Status)
}

// A sub-agent that is denied when its turn is resumed begins only if it has begun before.
func TestAgent_ThatIsDeniedDoesNotBegin(t *testing.T) {
	t.Parallel()
	for _, background := range []bool{false, true} {
		for _, begun := range []bool{false, true} {
			t.Run(fmt.Sprintf("background %t, begun %t", background, begun), func(t *testing.T) {
				t.Parallel()
				f := newFamily(t, byPrompt{
					"go":   {replies: []loop.Reply{delegates("d", fmt.Sprintf(`{"prompt":"left","background":%t}`, background)), says("x"), says("y")}},
					"left": {replies: []loop.Reply{says("left is done")}},
				})
				ctx, leave := context.WithCancelCause(t.Context())
				defer leave(nil)
				last := loop.EventToolCall
				if background {
					last = loop.EventToolResult // the handle
				}
				f.models["left"].before = func(ctx context.Context) { leave(loop.ErrDetached); <-ctx.Done() }
				f.opts.Observe = func(e loop.Event) {
					if f.watch.observe(e); e.Type == last && !begun {
						leave(loop.ErrDetached)
					}
				}
				_, err := f.run(ctx, t)
				require.ErrorIs(t, err, loop.ErrDetached)
				require.Equal(t, begun, len(f.child(t, 1, 0)) > 0)
				f.models["left"].before, f.opts.Observe = nil, f.watch.observe
				f.opts.Policy = newJudge(t, "{tools: {deny: [agent]}}")
				f.mustRun(t.Context(), t)
				require.Equal(t, begun, len(f.child(t, 1, 0)) > 0)
				require.Equal(t, begun, strings.Contains(strings.Join(texts(f.models["go"].lastSeen()), "\n"), "left is done"))
			})
		}
	}
}

// stopped is the journal of a process that is stopped before or after it reads the journal of
// another session than the parent, until another process has refused that.
type stopped struct {
	*journal.Journal

	parent  protocol.SessionID
	behind  bool // the read
	refused chan struct{}

	mu   sync.Mutex
	once sync.Once
	is   chan struct{}
}

func (j *stopped) Load(ctx context.Context, session protocol.SessionID) (loop.History, error) {
	history, err := j.Journal.Load(ctx, session)
	if session == j.parent {
		return history, err
	}
	j.once.Do(func() {
		j.mu.Lock()
		defer j.mu.Unlock()
		close(j.is)
	})
	if <-j.refused; j.behind {
		return history, err
	}
	return j.Journal.Load(ctx, session)
}

func (j *stopped) Append(ctx context.Context, session protocol.SessionID, expected uint64, events ...loop.Event) (uint64, error) {
	j.mu.Lock()
	select {
	case <-j.is:
		j.mu.Unlock()
		<-j.refused
	default:
		defer j.mu.Unlock()
	}
	return j.Journal.Append(ctx, session, expected, events...)
}

// A sub-agent that one coordinator has refused is not begun by another one, which was stopped
// before it did so.
func TestAgent_ThatWasRefusedIsNotBegunLater(t *testing.T) {
	t.Parallel()
	for _, background := range []bool{false, true} {
		for _, behind := range []bool{false, true} {
			t.Run(fmt.Sprintf("background %t, behind its read %t", background, behind), func(t *testing.T) {
				t.Parallel()
				stored, err := journal.Open(t.Context(), natsiotest.New(t, natsio.Topology{}).NC, "tf")
				require.NoError(t, err)
				models := byPrompt{
					"go":   {replies: []loop.Reply{delegates("d", fmt.Sprintf(`{"prompt":"left","background":%t}`, background)), says("x"), says("y"), says("z")}},
					"left": {replies: []loop.Reply{says("left is done")}},
				}
				first, other := newFamily(t, models), newFamily(t, models)
				models["left"].before = func(context.Context) { assert.Fail(t, "the agent has begun") }
				stops := &stopped{Journal: stored, parent: first.session, behind: behind, refused: make(chan struct{}), is: make(chan struct{})}
				first.journal = stops
				other.journal, other.session, other.opts.Policy = stored, first.session, newJudge(t, "{tools: {deny: [agent]}}")
				runner := mustNew(t, first.models, first.fleet, first.journal, table(t, first.tools...), &first.opts)
				ended := make(chan error)
				go func() {
					_, err := runner.Run(t.Context(), first.session, loop.Input{Text: "go"})
					ended <- err
				}()
				<-stops.is
				result := other.mustRun(t.Context(), t)
				require.Equal(t, loop.OutcomeAnswered, result.Outcome)
				close(stops.refused)
				require.ErrorIs(t, <-ended, loop.ErrJournalConflict)
				require.Empty(t, other.child(t, 1, 0))
			})
		}
	}
}

// failing is a journal that fails one append of another session than the given one.
type failing struct {
	looptest.Journal

	parent protocol.SessionID
	after  atomic.Int64
}

func (j *failing) Append(ctx context.Context, session protocol.SessionID, expected uint64, events ...loop.Event) (uint64, error) {
	if session != j.parent && j.after.Add(-1) == 0 {
		return 0, errCrash
	}
	return j.Journal.Append(ctx, session, expected, events...)
}

// A sub-agent in the background that failed goes on when the model asks about it, and what it used
// counts once.
func TestAgent_InTheBackgroundGoesOnWhenItIsAskedAbout(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFamily(t, byPrompt{
			"go":   {replies: []loop.Reply{delegates("d", `{"prompt":"left","background":true}`), about("w", "job_wait", `{"job":"job_1_1_0"}`), says("it is done")}},
			"left": {replies: []loop.Reply{asks("l", "work"), says("left is done")}},
		})
		f.tools = append(f.tools, jobTools()...)
		f.opts.Budget = &protocol.Spending{Steps: 5} // its parent's third reply is the fifth
		j := &failing{parent: f.session}
		j.after.Store(4) // the result of its call
		f.journal = j
		result := f.mustRun(t.Context(), t)
		require.Equal(t, loop.OutcomeAnswered, result.Outcome)
		require.Contains(t, strings.Join(texts(f.models["go"].lastSeen()), "\n"), "[job_1_1_0 has ended: ok]\nleft is done")
		require.Len(t, f.fleet.ran(), 1)
	})
}
