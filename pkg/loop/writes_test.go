package loop_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/loop/looptest"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools/toolset"
)

// failure is what becomes of a write.
type failure struct {
	made bool // it is made
	dies bool // the process dies with it; else the process gets an error and lives
}

func (f failure) String() string { return fmt.Sprintf("made %t, dies %t", f.made, f.dies) }

var errDead = errors.New("the process is dead")

// world counts the writes of a process, appends and sends, and has the n-th one fail.
type world struct {
	*fleet
	looptest.Journal

	failure failure
	n       int
	streams bool // calls are sent while their reply streams

	mu     sync.Mutex
	writes int
	failed bool
	dead   bool
}

func (w *world) write(do func() error) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.dead {
		return errDead
	}
	if w.writes++; w.writes != w.n {
		return do()
	}
	w.failed, w.dead = true, w.failure.dies
	if w.failure.made {
		if err := do(); err != nil {
			return err
		}
	}
	return errDead
}

func (w *world) Append(ctx context.Context, session protocol.SessionID, expected uint64, events ...loop.Event) (last uint64, err error) {
	err = w.write(func() error {
		last, err = w.Journal.Append(ctx, session, expected, events...)
		return err
	})
	return last, err
}

func (w *world) Load(ctx context.Context, session protocol.SessionID) (loop.History, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.dead {
		return loop.History{}, errDead
	}
	return w.Journal.Load(ctx, session)
}

func (w *world) Send(ctx context.Context, calls []protocol.Call, observe func(loop.Update), held ...loop.Handle) []loop.Handle {
	return dispatch(w.Dispatch).send(ctx, calls, observe, held, w.told)
}

func (w *world) Dispatch(ctx context.Context, calls []protocol.Call, observe func(loop.Update)) error {
	sends := slices.ContainsFunc(calls, func(c protocol.Call) bool { return w.times()[c.ID] == 0 })
	if sends && ctx.Err() == nil {
		if err := w.write(func() error { w.accept(calls); return nil }); err != nil {
			return err
		}
	}
	return w.fleet.Dispatch(ctx, calls, observe)
}

// GivenUp implements ports.Fleet.
func (w *world) GivenUp(context.Context, protocol.SessionID, protocol.CallID) (bool, error) {
	return true, nil
}

// unfinished are the calls that run, but for jobs, which outlive their turn.
func (w *world) unfinished() (running []string) {
	w.fleet.mu.Lock()
	defer w.fleet.mu.Unlock()
	for _, call := range w.runs {
		if w.over[call.ID] == nil && call.Tool != "build" {
			running = append(running, call.Tool)
		}
	}
	return running
}

// everything is a turn with each kind of call.
func everything() byPrompt {
	first := asks("a", "work", "greedy", "inline", "build")
	first.ToolCalls = append(first.ToolCalls, delegates("d", `{"prompt":"left"}`, `{"prompt":"right","background":true}`).ToolCalls...)
	second := about("w", "job_wait", `{"job":"job_1_1_3","timeout":5}`)
	second.ToolCalls = append(second.ToolCalls, asks("b", "work").ToolCalls...)
	return byPrompt{
		"go":    {replies: []loop.Reply{first, second, says("done"), says("done"), says("done")}},
		"left":  {replies: []loop.Reply{asks("l", "work"), says("left is done")}},
		"right": {replies: []loop.Reply{asks("r", "work"), says("right is done")}},
	}
}

// process is a coordinator that runs the turn in a world.
func (w *world) process(t *testing.T, bound string, with bool) *loop.Runner {
	t.Helper()
	watch := &watch{}
	opts := loop.Options{Observe: watch.observe, Policy: newJudge(t, bound)}
	opts.Approve = func(context.Context, loop.ApprovalRequest) (protocol.Approval, error) {
		return protocol.Approval{Granted: true}, nil
	}
	set, err := toolset.Named("agents", "jobs")
	require.NoError(t, err)
	all := table(t, append(set, backgroundTools()[len(backgroundTools())-1])...)
	if !with { // as if its own tools were those of an MCP server that is away
		all = all.Only([]string{"agent", "job_wait"})
	}
	var model loop.Model = everything()
	if w.streams {
		model = early{model}
	}
	runner := mustNew(t, model, w, w, all, &opts)
	return runner
}

// After each write that is not made, or made and not acknowledged, the turn is resumed, given up,
// or resumed under other rules. Each call has one result, runs once and as bound as it was, and
// nothing of a turn that is over works on.
func TestRun_WhateverFollowsAFailedWrite(t *testing.T) {
	t.Parallel()
	const rules = "{at_most_once: {tools: [work]}, min_level: full, approval: {tools: [greedy]}}"
	input := loop.Input{Text: "go", ID: "id-1"}
	follow := map[string]func(t *testing.T, w *world) loop.Outcome{
		"resumed": func(t *testing.T, w *world) loop.Outcome {
			t.Helper()
			result, err := w.process(t, rules, true).Run(t.Context(), "s", input)
			require.NoError(t, err)
			return result.Outcome
		},
		"resumed under weaker rules": func(t *testing.T, w *world) loop.Outcome {
			t.Helper()
			result, err := w.process(t, "{}", true).Run(t.Context(), "s", input)
			require.NoError(t, err)
			return result.Outcome
		},
		"resumed, and denied": func(t *testing.T, w *world) loop.Outcome {
			t.Helper()
			before := len(w.ran())
			result, err := w.process(t, "{tools: {deny: ['*']}}", true).Run(t.Context(), "s", input)
			require.NoError(t, err)
			require.Len(t, w.ran(), before, "nothing is sent that is denied")
			return result.Outcome
		},
		"given up": func(t *testing.T, w *world) loop.Outcome {
			t.Helper()
			require.NoError(t, w.process(t, rules, false).EndGivenUp(t.Context(), "s", input.ID))
			return loop.OutcomeInterrupted
		},
	}
	for name, then := range follow {
		for _, streams := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, streams %t", name, streams), func(t *testing.T) {
				t.Parallel()
				for _, failure := range []failure{{false, false}, {false, true}, {true, false}, {true, true}} {
					n := 1
					for failed := true; failed; n++ {
						synctest.Test(t, func(t *testing.T) {
							w := newWorld(failure, n, streams)
							_, err := w.process(t, rules, true).Run(t.Context(), "s", input)
							outcome := loop.OutcomeAnswered
							if failed, w.dead = w.failed, false; err != nil {
								outcome = then(t, w)
							}
							w.check(t, fmt.Sprintf("write %d: %s", n, failure), outcome)
						})
					}
					require.Greater(t, n, 20)
				}
			})
		}
	}
}

// newWorld has calls of greedy run until another call has ended.
func newWorld(failure failure, n int, streams bool) *world {
	w := &world{fleet: &fleet{}, failure: failure, n: n, streams: streams}
	first, open := make(chan struct{}), make(chan struct{})
	close(open)
	end := sync.OnceFunc(func() { close(first) })
	w.told = func(call protocol.Call) {
		if call.Tool == "work" {
			end()
		}
	}
	w.hold = func(call *protocol.Call) <-chan struct{} {
		if call.Tool == "greedy" {
			return first
		}
		return open
	}
	return w
}

// early is a model whose calls are complete while its reply streams.
type early struct{ loop.Model }

func (e early) Reply(ctx context.Context, req loop.Request, delta func(loop.Delta)) (loop.Reply, error) {
	reply, err := e.Model.Reply(ctx, req, delta)
	for i := range reply.ToolCalls {
		delta(loop.Delta{Call: &reply.ToolCalls[i], Index: i})
	}
	return reply, err
}

// texted are the rules with which turns began.
func texted(events []loop.Event) (rules []string) {
	for _, e := range events {
		for i := 0; e.Terms != nil && i < len(e.Terms.Policies); i++ {
			rules = append(rules, string(e.Terms.Policies[i]))
		}
	}
	return rules
}

// check checks what holds in each case.
func (w *world) check(t *testing.T, at string, outcome loop.Outcome) {
	t.Helper()
	for id, times := range w.times() {
		require.Equal(t, 1, times, "%s: call %s", at, id)
	}
	parent, err := w.Load(t.Context(), "s")
	require.NoError(t, err)
	begun := strings.Contains(fmt.Sprint(texted(parent.Events)), "full") // else the turn begins under other rules
	for _, call := range w.runs {
		if !begun {
			break
		}
		require.Equal(t, "full", call.MinLevel, at)
		require.Equal(t, call.Tool == "work", call.Delivery == protocol.AtMostOnce, at)
	}
	require.Empty(t, w.unfinished(), at)
	sessions := []protocol.SessionID{"s"}
	for _, session := range sessions {
		history, err := w.Load(t.Context(), session)
		require.NoError(t, err)
		_, open, err := history.Turns()
		require.NoError(t, err, "%s: it folds", at)
		require.False(t, open, "%s: session %s", at, session)
		requireOneResultEach(t, history.Events)
		for _, e := range history.Events {
			if e.Type == loop.EventToolCall && e.Name == "agent" {
				sessions = append(sessions, protocol.SessionID(e.CallID))
			}
		}
		if last := len(history.Events) - 1; session == "s" && last >= 0 {
			require.Equal(t, loop.EventTurnEnded, history.Events[last].Type, at)
			if end := history.Events[last]; end.Text != "done" || end.Status != string(loop.OutcomeAnswered) { // else the answer was there before
				require.Equal(t, string(outcome), end.Status, at)
			}
		}
	}
}
