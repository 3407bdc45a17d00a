package loop_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
	"github.com/toolfleet/toolfleet/pkg/tools/toolset"
)

// jobTools are the tools about jobs.
func jobTools() []tools.Tool {
	set, err := toolset.Named("jobs")
	if err != nil {
		panic(err)
	}
	return set
}

// backgroundTools are a tool that runs in the background, and those that are about jobs.
func backgroundTools() []tools.Tool {
	return append(jobTools(), tools.Tool{
		Definition: tools.Definition{Name: "build", Description: "Build.", Schema: json.RawMessage(`{"type":"object"}`)},
		Plan: func(tools.Scope, json.RawMessage) (tools.Plan, *protocol.Error) {
			return tools.Plan{Payload: wire.Noop{}, Resources: []protocol.Use{}, Background: true}, nil
		},
		Render: func(r *protocol.Result) string { return "built: " + string(r.Status) },
	})
}

func newJobRig(replies ...loop.Reply) *rig {
	r := newRig(replies...)
	r.tools = backgroundTools()
	return r
}

// about is a reply that calls a tool about a job.
func about(prefix, tool, arguments string) loop.Reply {
	return loop.Reply{Text: "asking " + prefix, ToolCalls: []loop.ToolCall{{ID: prefix, Name: tool, Arguments: arguments}}}
}

// holdJobs keeps jobs from ending until release is called.
func (r *rig) holdJobs() (release func()) {
	held, open := make(chan struct{}), make(chan struct{})
	close(open)
	r.fleet.hold = func(call *protocol.Call) <-chan struct{} {
		if call.Tool == "build" {
			return held
		}
		return open
	}
	return func() { close(held) }
}

func texts(messages []loop.Message) []string {
	out := make([]string, 0, len(messages))
	for _, m := range messages {
		out = append(out, string(m.Role)+": "+m.Text)
	}
	return out
}

const started = "tool: [job_1_1_0 runs in the background. You will be told when it has ended; go on with something else.]"

func TestJobs_TheModelIsToldAtItsNextStep(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newJobRig(asks("a", "build"), asks("b", "work"), asks("c", "work"), says("done"))
		release := r.holdJobs()
		works := 0
		r.fleet.asks = func(call *protocol.Call) []loop.Update { // before the result of the call
			if call.Tool == "work" {
				if works++; works == 1 {
					release()
					synctest.Wait()
				}
			}
			return nil
		}
		r.mustRun(t.Context(), t, "go")
		seen := texts(r.model.lastSeen())
		require.Equal(t, started, seen[3])
		require.Equal(t, "user: [job_1_1_0 (build) has ended: ok]\nbuilt: ok", seen[6], "behind the results of the step in which it came")
		require.Equal(t, "assistant: asking c", seen[7])
		requireProtocol(t, r.model.lastSeen())
		require.Len(t, r.watch.of(loop.EventJobEnded), 1)
		require.Equal(t, "job_1_1_0", r.watch.of(loop.EventToolResult)[0].Job)
	})
}

func TestJobs_OutliveTheirTurnAndTheirCoordinator(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newJobRig(asks("a", "build"), says("started"), says("seen"))
		release := r.holdJobs()
		result := r.mustRun(t.Context(), t, "go")
		require.Equal(t, "started", result.Text)
		require.Empty(t, r.fleet.stopped, "it goes on")
		require.Empty(t, r.watch.of(loop.EventJobEnded))
		release()
		// Another run is another coordinator: it knows no more than the journal. Its first
		// question may come before the fleet has answered, so it asks about the job.
		r.model.replies = []loop.Reply{r.model.replies[0], r.model.replies[1], about("w", "job_wait", `{"job":"job_1_1_0"}`), says("seen")}
		r.mustRun(t.Context(), t, "and?")
		require.Len(t, r.watch.of(loop.EventJobEnded), 1)
		seen := texts(r.model.lastSeen())
		require.Equal(t, "tool: [job_1_1_0 has ended: ok]\nbuilt: ok", seen[len(seen)-1], "whether it was told before or not")
		require.Len(t, r.fleet.runs, 1, "it is not run again")
	})
}

// A job that ended between two turns has ended in the next one, however short that is.
func TestJobs_ThatEndedBetweenTurnsAreToldFirst(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newJobRig(asks("a", "build"), says("started"), says("seen"))
		release := r.holdJobs()
		r.mustRun(t.Context(), t, "go")
		require.Empty(t, r.watch.of(loop.EventJobEnded))
		release()
		synctest.Wait()
		r.mustRun(t.Context(), t, "and?")
		require.Len(t, r.watch.of(loop.EventJobEnded), 1)
		require.Contains(t, texts(r.model.lastSeen()), "user: [job_1_1_0 (build) has ended: ok]\nbuilt: ok")
	})
}

func TestJobs_StatusWaitCancel(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newJobRig(
			asks("a", "build"),
			about("b", "job_status", `{}`),
			about("c", "job_wait", `{"job":"job_1_1_0","timeout":5}`),
			about("d", "job_wait", `{"job":"job_9_9_9"}`),
			about("e", "job_cancel", `{"job":"job_1_1_0"}`),
			about("f", "job_wait", `{"job":"job_1_1_0"}`),
			about("g", "job_status", `{}`),
			says("done"))
		r.holdJobs()
		start := time.Now()
		r.mustRun(t.Context(), t, "go")
		require.Equal(t, 5*time.Second, time.Since(start), "as long as it was told to wait")
		seen := texts(r.model.lastSeen())
		require.Contains(t, seen[5], "[job_1_1_0 (build) runs, since ")
		require.Contains(t, seen[7], "[job_1_1_0 (build) runs, since ")
		require.Contains(t, seen[9], `There is no job "job_9_9_9". The jobs are: job_1_1_0.`)
		require.Equal(t, "tool: [job_1_1_0 has ended: cancelled]\nbuilt: cancelled", seen[11], "a failure is told as one")
		require.Equal(t, seen[11], seen[13], "it has ended for good")
		require.Equal(t, "tool: [job_1_1_0 (build) has ended: cancelled]", seen[15])
		require.Len(t, r.fleet.stopped, 1)
		require.Len(t, r.watch.of(loop.EventJobEnded), 1)
		requireProtocol(t, r.model.lastSeen())
	})
}

func TestJobs_NoneToAskAbout(t *testing.T) {
	t.Parallel()
	r := newJobRig(about("a", "job_status", `{}`), about("b", "job_cancel", `{"job":"x"}`), says("done"))
	r.mustRun(t.Context(), t, "go")
	require.Equal(t, []string{"ok", "rejected"}, statuses(r))
	require.Equal(t, "tool: [no jobs]", texts(r.model.lastSeen())[3])
}

// A job whose tool is gone continues as the fleet has it. It ends unknown if the fleet does not
// have it, or cannot be asked for calls.
func TestJobs_AJobWhoseToolIsGoneIsWhatTheFleetHas(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		has, asks bool
		want      string
	}{"the fleet has it": {true, true, "ok"}, "it was never sent": {false, true, "outcome_unknown"}, "nobody knows": {true, false, "outcome_unknown"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newJobRig(asks("a", "build"), says("started"), about("w", "job_wait", `{"job":"job_1_1_0"}`), says("seen"))
			release := r.holdJobs()
			if !c.has {
				r.fleet.err = errors.New("no servers")
			}
			r.mustRun(t.Context(), t, "go")
			release()
			r.fleet.err = nil
			var dispatcher loop.Dispatcher = r.fleet
			if !c.asks {
				dispatcher = bare{r.fleet}
			}
			runner := mustNew(t, r.model, dispatcher, r.journal, table(t, jobTools()...), &r.opts)
			mustRun(t.Context(), t, runner, r.session, loop.Input{Text: "and?"})
			ended := r.watch.of(loop.EventJobEnded)
			require.Len(t, ended, 1)
			require.Equal(t, c.want, ended[0].Status)
			require.Contains(t, strings.Join(texts(r.model.lastSeen()), "\n"), "has ended: "+c.want)
			require.Len(t, r.fleet.ran(), map[bool]int{true: 1}[c.has])
		})
	}
}

// counted counts how often the job's call is dispatched, and how many of these are under way at
// most; the first times fail.
type counted struct {
	*fleet

	fails           int
	mu              sync.Mutex
	now, most, made int
}

func (c *counted) Send(ctx context.Context, calls []protocol.Call, observe func(loop.Update), held ...loop.Handle) []loop.Handle {
	return dispatch(c.Dispatch).send(ctx, calls, observe, held, c.told)
}

func (c *counted) Dispatch(ctx context.Context, calls []protocol.Call, observe func(loop.Update)) error {
	if len(calls) == 0 || calls[0].Tool != "build" {
		return c.fleet.Dispatch(ctx, calls, observe)
	}
	c.mu.Lock()
	c.now, c.made = c.now+1, c.made+1
	c.most = max(c.most, c.now)
	fails := c.made <= c.fails
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.now--
	}()
	if fails { // sent, and then the connection is away for a moment
		c.accept(calls)
		observe(loop.Update{CallID: calls[0].ID, State: loop.StateQueued})
		return errors.New("the fleet cannot be reached")
	}
	return c.fleet.Dispatch(ctx, calls, observe)
}

// A job is followed by one follower at a time, also if several calls of a resumed turn are about it
// and the fleet could not be reached.
func TestJobs_HaveOneFollower(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		both := about("w", "job_wait", `{"job":"job_1_1_0","timeout":5}`)
		both.ToolCalls = append(both.ToolCalls, about("v", "job_wait", `{"job":"job_1_1_0","timeout":5}`).ToolCalls...)
		r := newJobRig(asks("a", "build"), both, says("done"))
		release := r.holdJobs()
		ctx, leave := context.WithCancelCause(t.Context())
		r.opts.Observe = func(e loop.Event) {
			if r.watch.observe(e); e.Type == loop.EventModelReply && e.Step == 2 {
				leave(loop.ErrDetached) // its coordinator is lost
			}
		}
		_, err := r.run(ctx, t, "go")
		require.ErrorIs(t, err, loop.ErrDetached)
		c := &counted{fleet: r.fleet, fails: 2}
		runner := mustNew(t, r.model, c, r.journal, table(t, r.tools...), &r.opts)
		begun := time.Now()
		_, err = runner.Run(t.Context(), r.session, loop.Input{Text: "go"})
		require.NoError(t, err, "the end of the turn does not wait for the job")
		require.Equal(t, 5*time.Second, time.Since(begun))
		require.Equal(t, 1, c.most)
		require.Equal(t, 3, c.made, "two could not reach the fleet")
		require.Len(t, r.fleet.runs, 1)
		release()
	})
}

// A job can be waited for and cancelled after the fleet could not be reached.
func TestJobs_AreFollowedAgainAfterAnError(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newJobRig(asks("a", "build"), about("b", "job_wait", `{"job":"job_1_1_0","timeout":30}`), says("done"))
		c := &counted{fleet: r.fleet, fails: 3}
		runner := mustNew(t, r.model, c, r.journal, table(t, r.tools...), &r.opts)
		mustRun(t.Context(), t, runner, r.session, loop.Input{Text: "go"})
		require.Contains(t, texts(r.model.lastSeen())[5], "[job_1_1_0 has ended: ok]")
	})
	synctest.Test(t, func(t *testing.T) {
		cancel := `{"job":"job_1_1_0"}`
		r := newJobRig(asks("a", "build"), about("b", "job_cancel", cancel), about("c", "job_cancel", cancel), says("done"))
		defer r.holdJobs()()
		c := &counted{fleet: r.fleet, fails: 2} // that of the cancel, too
		runner := mustNew(t, r.model, c, r.journal, table(t, r.tools...), &r.opts)
		mustRun(t.Context(), t, runner, r.session, loop.Input{Text: "go"})
		seen := strings.Join(texts(r.model.lastSeen()), "\n")
		require.Contains(t, seen, "so the job may go on: cancel it again")
		require.Contains(t, seen, "[job_1_1_0 has ended: cancelled]")
		require.Len(t, r.fleet.stopped, 1)
	})
}

func TestJobs_AFleetThatCannotBeReachedIsNoEnd(t *testing.T) {
	t.Parallel()
	r := newJobRig(asks("a", "build"), about("b", "job_wait", `{"job":"job_1_1_0","timeout":1}`), says("done"))
	r.fleet.err = errors.New("no servers")
	r.mustRun(t.Context(), t, "go")
	require.Empty(t, r.watch.of(loop.EventJobEnded))
	require.Contains(t, texts(r.model.lastSeen())[5], "runs, since")
	r.fleet.err = nil
	r.model.replies = append(r.model.replies, about("c", "job_wait", `{"job":"job_1_1_0"}`), says("done"))
	r.mustRun(t.Context(), t, "go on")
	require.Len(t, r.watch.of(loop.EventJobEnded), 1)
}

// A job of which the fleet has heard nothing is sent by a later run: the policy binds it there,
// too.
func TestJobs_ThePolicyBindsWhatIsSentLater(t *testing.T) {
	t.Parallel()
	r := newJobRig(asks("a", "build"), says("started"), says("seen"))
	r.opts.Policy = newJudge(t, "{min_level: full, paths: {read: ['src/**'], write: ['src/**']}}")
	r.fleet.err = errors.New("no servers")
	r.mustRun(t.Context(), t, "go")
	r.fleet.err = nil
	r.mustRun(t.Context(), t, "and?")
	require.Len(t, r.fleet.runs, 1)
	require.Equal(t, "full", r.fleet.runs[0].MinLevel)
	require.Equal(t, []protocol.Roots{{Read: []string{"src/**"}, Write: []string{"src/**"}}}, r.fleet.runs[0].Roots)
}

func TestJobs_InterruptedTurnSendsNone(t *testing.T) {
	t.Parallel()
	r := newJobRig(asks("a", "build"), says("done"))
	r.journal = &crashingJournal{untilCrash: 3} // when the handle is journaled, before the fleet hears of the job
	_, err := r.run(t.Context(), t, "go")
	require.ErrorIs(t, err, errCrash)
	ctx, stop := context.WithCancel(t.Context())
	build := &r.tools[len(r.tools)-1]
	plan := build.Plan
	build.Plan = func(scope tools.Scope, arguments json.RawMessage) (tools.Plan, *protocol.Error) {
		stop() // once the turn goes on
		return plan(scope, arguments)
	}
	result := r.mustRun(ctx, t, "go")
	require.Equal(t, loop.OutcomeInterrupted, result.Outcome)
	require.Equal(t, []string{"cancelled"}, statuses(r))
	require.Empty(t, r.fleet.runs)
}

func TestJobs_InterruptedTurnLeavesThemAlone(t *testing.T) {
	t.Parallel()
	r := newJobRig(asks("a", "build", "wait"), says("done"))
	r.holdJobs()
	ctx, stop := context.WithCancel(t.Context())
	r.opts.Observe = func(e loop.Event) {
		r.watch.observe(e)
		if e.Type == loop.EventToolResult && e.Job != "" {
			stop()
		}
	}
	result := r.mustRun(ctx, t, "go")
	require.Equal(t, loop.OutcomeInterrupted, result.Outcome)
	require.Empty(t, r.fleet.stopped)
}

// TestJobs_CrashAtAnyAppendLosesNoJob: when a job ends is a matter of time, so not every
// conversation is the same; but each job runs once, ends once, and is told once.
func TestJobs_CrashAtAnyAppendLosesNoJob(t *testing.T) {
	t.Parallel()
	replies := func() []loop.Reply {
		return []loop.Reply{
			asks("a", "work", "build", "inline", "build"),
			about("b", "job_wait", `{"job":"job_1_1_1"}`),
			asks("c", "work", "nosuch"),
			about("d", "job_wait", `{"job":"job_1_1_3"}`),
			says("done"),
			says("checked"),
		}
	}
	session := protocol.NewSessionID()
	clean := newJobRig(replies()...)
	clean.session = session
	clean.mustRun(t.Context(), t, "go")
	appends := 0
	for n := 0; ; n++ {
		crashed := false
		for kept := range 3 {
			name := fmt.Sprintf("append %d, of which %d events are stored", n+1, kept)
			r, journal := newJobRig(replies()...), &crashingJournal{untilCrash: n, kept: kept}
			r.session, r.journal = session, journal
			result, err := r.run(t.Context(), t, "go")
			if err != nil {
				crashed = true
				require.ErrorIs(t, err, errCrash, name)
				result, err = r.run(t.Context(), t, "go")
			}
			require.NoError(t, err, name)
			journal.untilCrash = -1
			require.Equal(t, clean.fleet.ran(), r.fleet.ran(), name)
			require.Empty(t, r.fleet.stopped, name)
			events := r.events(t)
			requireOneResultEach(t, events)
			ended := map[string]int{}
			for _, e := range events {
				if e.Type == loop.EventJobEnded {
					ended[e.Job]++
				}
			}
			require.Equal(t, map[string]int{"job_1_1_1": 1, "job_1_1_3": 1}, ended, name)
			if result.Turn == 1 {
				seen := settled(t, r)
				requireProtocol(t, seen)
			}
		}
		if !crashed {
			break
		}
		appends++
	}
	require.Greater(t, appends, 12)
}

// A call that takes longer than the bound goes on as a job; it runs once, and the model reads its
// result when it has ended. One that has ended before has its result.
func TestJobs_APromotedCallGoesOn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newJobRig(asks("a", "work", "greedy"), asks("b", "inline"), about("c", "job_wait", `{"job":"job_1_1_1"}`), says("done"))
		held, open := make(chan struct{}), make(chan struct{})
		close(open)
		r.fleet.hold = func(call *protocol.Call) <-chan struct{} {
			if call.Tool == "greedy" {
				return held
			}
			return open
		}
		r.opts.PromoteAfter = time.Minute
		begun := time.Now()
		time.AfterFunc(90*time.Second, func() { close(held) })
		result := r.mustRun(t.Context(), t, "go")
		require.Equal(t, loop.OutcomeAnswered, result.Outcome)
		require.Equal(t, 90*time.Second, time.Since(begun))
		require.Equal(t, []string{"1/1/0", "1/1/1"}, r.fleet.ran())
		require.Equal(t, 2, r.fleet.sent, "the job holds the call")
		require.Empty(t, r.fleet.stopped)
		said := texts(r.model.lastSeen())
		require.Contains(t, said,
			"tool: [The call has not ended after 1m0s and goes on as job_1_1_1 in the background. You will be told when it has ended; go on with something else.]")
		require.Contains(t, said[len(said)-1], "[job_1_1_1 has ended: ok]")
		requireProtocol(t, r.model.lastSeen())
	})
}

// After a crash at any append around a promotion the call has run once, and one result.
func TestJobs_PromotionAndCrashes(t *testing.T) {
	t.Parallel()
	for n := 0; ; n++ {
		crashed := false
		synctest.Test(t, func(t *testing.T) {
			r, journal := newJobRig(asks("a", "work"), about("c", "job_wait", `{"job":"job_1_1_0"}`), says("done"), says("done")), &crashingJournal{untilCrash: n}
			r.journal, r.opts.PromoteAfter = journal, time.Minute
			r.fleet.takes = 90 * time.Second
			_, err := r.run(t.Context(), t, "go")
			if crashed = err != nil; crashed {
				require.ErrorIs(t, err, errCrash)
				_, err = r.run(t.Context(), t, "go")
			}
			require.NoError(t, err)
			for _, n := range r.fleet.times() {
				require.Equal(t, 1, n)
			}
			require.Len(t, r.fleet.runs, 1)
			require.Empty(t, r.fleet.stopped)
		})
		if !crashed {
			require.Greater(t, n, 5)
			return
		}
	}
}
