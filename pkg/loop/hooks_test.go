package loop_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools/policy"
)

// hooked collects what hooks were asked.
type hooked struct {
	mu    sync.Mutex
	asked []loop.HookRequest
}

// on makes a hook that notes each request.
func (h *hooked) on(event loop.HookEvent, answer func(r loop.HookRequest) (loop.HookAnswer, error)) loop.Hook {
	return loop.Hook{Event: event, Run: func(_ context.Context, r loop.HookRequest) (loop.HookAnswer, error) {
		h.mu.Lock()
		h.asked = append(h.asked, r)
		h.mu.Unlock()
		return answer(r)
	}}
}

// count is how often hooks were asked, by event.
func (h *hooked) count() map[loop.HookEvent]int {
	h.mu.Lock()
	defer h.mu.Unlock()
	count := map[loop.HookEvent]int{}
	for _, r := range h.asked {
		count[r.Event]++
	}
	return count
}

func answers(a loop.HookAnswer) func(loop.HookRequest) (loop.HookAnswer, error) {
	return func(loop.HookRequest) (loop.HookAnswer, error) { return a, nil }
}

// everyHook has a hook of each event that changes something.
func everyHook(h *hooked) []loop.Hook {
	replaced := "what the hook lets through"
	return []loop.Hook{
		h.on(loop.HookSessionStart, answers(loop.HookAnswer{Context: "the session began"})),
		h.on(loop.HookPrompt, answers(loop.HookAnswer{Context: "it is Monday"})),
		h.on(loop.HookBefore, func(r loop.HookRequest) (loop.HookAnswer, error) {
			switch {
			case string(r.Input) == `{"n":0}`:
				return loop.HookAnswer{Input: json.RawMessage(`{ "n": 7 }`), Context: "mind <this>"}, nil
			case string(r.Input) == `{"n":1}`:
				return loop.HookAnswer{Decision: policy.Denied, Reason: "not this one"}, nil
			}
			return loop.HookAnswer{}, nil
		}),
		h.on(loop.HookAfter, func(r loop.HookRequest) (loop.HookAnswer, error) {
			if string(r.Input) == `{"n":7}` {
				return loop.HookAnswer{Output: &replaced}, nil
			}
			return loop.HookAnswer{}, nil
		}),
		h.on(loop.HookBeforeModel, func(r loop.HookRequest) (loop.HookAnswer, error) {
			return loop.HookAnswer{Context: fmt.Sprint("request ", r.Step)}, nil
		}),
		h.on(loop.HookAfterModel, answers(loop.HookAnswer{})),
		h.on(loop.HookStop, func(r loop.HookRequest) (loop.HookAnswer, error) {
			if r.Again {
				return loop.HookAnswer{}, nil
			}
			return loop.HookAnswer{Decision: policy.Denied, Reason: "run the tests"}, nil
		}),
	}
}

func hookedReplies() []loop.Reply {
	return []loop.Reply{asks("a", "work", "work", "inline"), says("done"), says("tested"), says("checked")}
}

func TestHooks_SeeChangeAndRefuse(t *testing.T) {
	t.Parallel()
	var h hooked
	r := newRig(hookedReplies()...)
	r.opts.Hooks = everyHook(&h)
	result := r.mustRun(t.Context(), t, "go")
	require.Equal(t, loop.OutcomeAnswered, result.Outcome)
	require.Equal(t, "tested", result.Text)
	require.Equal(t, 3, result.Steps)
	require.Equal(t, map[loop.HookEvent]int{
		loop.HookSessionStart: 1, loop.HookPrompt: 1, loop.HookBefore: 3, loop.HookAfter: 2,
		loop.HookStop: 2, loop.HookBeforeModel: 3, loop.HookAfterModel: 3,
	}, h.count())

	calls, results := r.watch.of(loop.EventToolCall), map[int]loop.Event{}
	require.JSONEq(t, `{"n":7}`, calls[0].Arguments, "the call is made as it was changed")
	for _, e := range r.watch.of(loop.EventToolResult) {
		results[e.Index] = e
	}
	require.Equal(t, "what the hook lets through", results[0].Content)
	require.True(t, results[0].Hook.Replaced)
	require.Equal(t, string(protocol.StatusRejected), results[1].Status)
	require.Equal(t, protocol.CodePolicyDenied, results[1].Error.Code)
	require.Contains(t, results[1].Content, "A hook refused the call: not this one")
	decided := r.watch.of(loop.EventPolicyDecision)
	require.Len(t, decided, 1)
	require.Equal(t, "hooks.PreToolUse", decided[0].Rule)

	shown := fmt.Sprint(r.model.lastSeen())
	for _, part := range []string{
		"[A hook adds: the session began\n]", "it is Monday", "[A hook adds: mind <this>", `changed the arguments of the call a0 of work to {"n":7}`,
		"[A hook does not let you end here: run the tests]",
		"[A hook adds: request 1\n]", "[A hook adds: request 3\n]",
	} {
		require.Contains(t, shown, part)
	}
	require.Contains(t, shown, `{"n":0}`, "the model's own reply stays as it was")
}

// A crash at any append changes nothing that the model reads, runs no call twice, and no hook is
// asked again whose decision is journaled.
func TestHooks_CrashAtAnyAppendChangesNothing(t *testing.T) {
	t.Parallel()
	session := protocol.NewSessionID()
	var ignored hooked
	clean := newRig(hookedReplies()...)
	clean.session, clean.opts.Hooks = session, everyHook(&ignored)
	clean.mustRun(t.Context(), t, "go")
	want := settledHooks(t, clean)
	for n := 0; ; n++ {
		crashed := false
		for kept := range 3 {
			name := fmt.Sprintf("append %d, of which %d events are stored", n+1, kept)
			var h hooked
			journal := &crashingJournal{untilCrash: n, kept: kept}
			r := newRig(hookedReplies()...)
			r.session, r.journal, r.opts.Hooks = session, journal, everyHook(&h)
			_, err := r.run(t.Context(), t, "go")
			journal.untilCrash = -1
			if crashed = err != nil; crashed {
				require.ErrorIs(t, err, errCrash, name)
				events := r.events(t)
				if len(events) == 0 || events[len(events)-1].Type != loop.EventTurnEnded {
					require.Equal(t, "tested", r.mustRun(t.Context(), t, "go").Text, name)
				}
			}
			require.Equal(t, want, settledHooks(t, r), name)
			require.Equal(t, clean.fleet.ran(), r.fleet.ran(), name)
			seen := map[string]int{}
			for _, e := range r.events(t) {
				if e.Type == loop.EventHookDecided {
					seen[fmt.Sprint(e.Hook.Event, e.Turn, e.Step, e.Index)]++
				}
			}
			for at, times := range seen {
				require.Equal(t, 1, times, "%s: %s", name, at)
			}
			if !crashed || kept == journal.size {
				break
			}
		}
		if !crashed {
			require.Greater(t, n, 10)
			return
		}
	}
}

func settledHooks(t *testing.T, r *rig) []loop.Message {
	t.Helper()
	r.mustRun(t.Context(), t, "check")
	return r.placed(t, r.model.lastSeen())
}

func TestHooks_AFailureIsARefusal(t *testing.T) {
	t.Parallel()
	broken := map[string]loop.Hook{
		"error": {Run: func(context.Context, loop.HookRequest) (loop.HookAnswer, error) {
			return loop.HookAnswer{}, errors.New("broken")
		}},
		"panic": {Run: func(context.Context, loop.HookRequest) (loop.HookAnswer, error) { panic("broken") }},
		"decision": {Run: func(context.Context, loop.HookRequest) (loop.HookAnswer, error) {
			return loop.HookAnswer{Decision: "maybe"}, nil
		}},
		"time": {Timeout: time.Millisecond, Run: func(ctx context.Context, _ loop.HookRequest) (loop.HookAnswer, error) {
			<-ctx.Done()
			return loop.HookAnswer{}, nil
		}},
	}
	for name, hook := range broken {
		hook.Event = loop.HookBefore
		r := newRig(asks("a", "work"), says("done"))
		r.opts.Hooks = []loop.Hook{hook}
		r.mustRun(t.Context(), t, "go")
		require.Equal(t, string(protocol.StatusRejected), r.watch.of(loop.EventToolResult)[0].Status, name)
		require.Contains(t, r.watch.of(loop.EventToolResult)[0].Content, "the hook failed", name)
		require.Empty(t, r.fleet.ran(), name)

		hook.Event = loop.HookAfter
		r = newRig(asks("a", "work"), says("done"))
		r.opts.Hooks = []loop.Hook{hook}
		r.mustRun(t.Context(), t, "go")
		require.True(t, strings.HasPrefix(r.watch.of(loop.EventToolResult)[0].Content, "[A hook withheld the result: the hook failed"), name)

		hook.Event = loop.HookStop
		r = newRig(says("done"), says("not asked"))
		r.opts.Hooks = []loop.Hook{hook}
		require.Equal(t, loop.OutcomeFailed, r.mustRun(t.Context(), t, "go").Outcome, name)
		require.Len(t, r.model.seen, 1, "a broken hook does not cost requests")

		hook.Event = loop.HookPrompt
		r = newRig(says("not asked"))
		r.opts.Hooks = []loop.Hook{hook}
		result := r.mustRun(t.Context(), t, "go")
		require.Equal(t, loop.OutcomeFailed, result.Outcome, name)
		require.Equal(t, protocol.CodePolicyDenied, result.Error.Code, name)
		require.Empty(t, r.model.seen, name)

		hook.Event = loop.HookBeforeModel
		r = newRig(says("not asked"))
		r.opts.Hooks = []loop.Hook{hook}
		require.Equal(t, protocol.CodePolicyDenied, r.mustRun(t.Context(), t, "go").Error.Code, name)
		require.Empty(t, r.model.seen, name)

		hook.Event = loop.HookAfterModel
		r = newRig(asks("a", "work"), says("not asked"))
		r.opts.Hooks = []loop.Hook{hook}
		require.Equal(t, protocol.CodePolicyDenied, r.mustRun(t.Context(), t, "go").Error.Code, name)
		require.Empty(t, r.fleet.ran(), name)
	}
}

// Changed arguments are judged as if the model had written them, and a hook weakens no policy.
func TestHooks_ChangedArgumentsAreJudged(t *testing.T) {
	t.Parallel()
	var h hooked
	r := newRig(asks("a", "work"), says("done"))
	r.opts.Policy = newJudge(t, "tools: {deny: [work]}")
	r.opts.Hooks = []loop.Hook{h.on(loop.HookBefore, answers(loop.HookAnswer{Decision: policy.Allowed, Input: json.RawMessage(`{"n":3}`)}))}
	r.mustRun(t.Context(), t, "go")
	require.Equal(t, string(protocol.StatusRejected), r.watch.of(loop.EventToolResult)[0].Status)
	require.Empty(t, r.fleet.ran())

	r = newRig(asks("a", "work"), says("done"))
	var shown loop.ApprovalRequest
	r.opts.Approve = func(_ context.Context, request loop.ApprovalRequest) (protocol.Approval, error) {
		shown = request
		return protocol.Approval{Granted: true}, nil
	}
	r.opts.Hooks = []loop.Hook{h.on(loop.HookBefore, answers(loop.HookAnswer{Decision: policy.Ask, Reason: "look at it", Input: json.RawMessage(`{"n":3}`)}))}
	r.mustRun(t.Context(), t, "go")
	require.JSONEq(t, `{"n":3}`, shown.Arguments, "a person sees what is made")
	require.Equal(t, "look at it", shown.Reason)
	require.Len(t, r.fleet.ran(), 1)
}

// A replay has what the hooks decided, and runs none.
func TestHooks_ReplayRunsNone(t *testing.T) {
	t.Parallel()
	var h, none hooked
	original := newRig(hookedReplies()...)
	original.opts.Hooks = everyHook(&h)
	original.mustRun(t.Context(), t, "go")
	recording, err := loop.History{Events: original.events(t)}.Recording()
	require.NoError(t, err)
	replay := newRig()
	replay.opts.Replay, replay.opts.Hooks = recording, everyHook(&none)
	runner := mustNew(t, recording, replay.fleet, replay.journal, table(t), &replay.opts)
	mustRun(t.Context(), t, runner, replay.session, recording.Inputs()[0])
	require.Equal(t, transcript(t, original.events(t)), transcript(t, replay.events(t)))
	require.Empty(t, none.asked)
}

// A turn that is stopped while a hook runs makes no call, and ends.
func TestHooks_AreStoppedWithTheTurn(t *testing.T) {
	t.Parallel()
	for _, event := range loop.HookEvents() {
		if event == loop.HookCompact {
			continue // TestHooks_RefuseASummary
		}
		ctx, stop := context.WithCancel(t.Context())
		r := newRig(asks("a", "work"), says("done"))
		r.opts.Hooks = []loop.Hook{{Event: event, Run: func(ctx context.Context, _ loop.HookRequest) (loop.HookAnswer, error) {
			stop()
			<-ctx.Done()
			return loop.HookAnswer{}, nil
		}}}
		result := r.mustRun(ctx, t, "go")
		require.Equal(t, loop.OutcomeInterrupted, result.Outcome, event)
		require.Equal(t, event == loop.HookAfter || event == loop.HookStop, len(r.fleet.ran()) == 1, event)
	}
}

func TestHooks_BadOptionsAreRefused(t *testing.T) {
	t.Parallel()
	run := func(context.Context, loop.HookRequest) (loop.HookAnswer, error) { return loop.HookAnswer{}, nil }
	r := newRig()
	r.opts.Hooks = []loop.Hook{{Event: "Later", Run: run}, {Event: loop.HookStop}, {Event: loop.HookStop, Run: run, Timeout: 11 * time.Minute}}
	_, err := loop.New(r.model, r.fleet, r.journal, table(t), &r.opts)
	require.ErrorContains(t, err, `hooks[0]: event "Later"`)
	require.ErrorContains(t, err, "hooks[1]: Run is missing")
	require.ErrorContains(t, err, "hooks[2]: timeout 11m0s: must be at most 10m0s")
}
