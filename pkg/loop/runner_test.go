package loop_test

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
)

func TestNew_ReportsEveryFault(t *testing.T) {
	t.Parallel()
	r := newRig()
	_, err := loop.New(r.model, r.fleet, r.journal, table(t), &loop.Options{
		MaxSteps: -1, MaxTokens: -2, Timeout: -time.Second, Sandbox: "a/b",
	})
	for _, part := range []string{"max steps -1", "max tokens -2", "timeout -1s", `sandbox "a/b"`} {
		require.ErrorContains(t, err, part)
	}
	_, err = loop.New(nil, nil, nil, nil, &loop.Options{MaxSteps: -1})
	for _, part := range []string{"model: missing", "dispatcher: missing", "journal: missing", "table: missing", "max steps -1"} {
		require.ErrorContains(t, err, part)
	}
	mustNew(t, r.model, r.fleet, r.journal, table(t), nil)
}

func TestRun_TurnFromInputToAnswer(t *testing.T) {
	t.Parallel()
	r := newRig(asks("a", "work", "inline"), says("done"))
	r.opts.ModelName, r.opts.Workspace = "m", "/w"
	result := r.mustRun(t.Context(), t, "go")
	require.Equal(t, loop.TurnResult{
		Turn: 1, Outcome: loop.OutcomeAnswered, Text: "done", Steps: 2,
		Usage: protocol.Usage{InputTokens: 20, OutputTokens: 2},
	}, result)

	events := r.events(t)
	require.Equal(t, loop.EventSessionStarted, events[0].Type)
	require.Equal(t, "m", events[0].Model)
	require.Equal(t, "/w", events[0].Workspace)
	require.Equal(t, table(t).Names(), events[0].Tools)
	require.Equal(t, loop.EventTurnStarted, events[1].Type)
	require.Equal(t, "go", events[1].Input)
	last := events[len(events)-1]
	require.Equal(t, loop.EventTurnEnded, last.Type)
	require.Equal(t, string(loop.OutcomeAnswered), last.Status)
	require.Equal(t, &protocol.Usage{InputTokens: 20, OutputTokens: 2}, last.Usage)
	for _, event := range events {
		require.Equal(t, r.session, event.SessionID)
		require.False(t, event.Time.IsZero())
	}

	messages := r.model.lastSeen()
	require.Equal(t, loop.RoleSystem, messages[0].Role)
	require.Contains(t, messages[0].Text, "You are an agent that gets things done with tools.")
	require.Equal(t, loop.Message{Role: loop.RoleUser, Text: "go"}, messages[1])
	requireProtocol(t, messages)
	require.Equal(t, "said", messages[4].Text)
	require.Len(t, r.model.seen[0].Tools, len(table(t).Names()))
}

func TestRun_CallCarriesPlaceScopeAndDeadline(t *testing.T) {
	t.Parallel()
	r := newRig(asks("a", "inline", "work"), says("done"))
	r.opts.Timeout = time.Hour
	r.mustRun(t.Context(), t, "go")
	require.Len(t, r.fleet.runs, 1)
	call := r.fleet.runs[0]
	require.Equal(t, r.callID(t, 1, 1, 1), call.ID)
	require.Equal(t, []int{1, 1, 1}, []int{call.Turn, call.Step, call.Index})
	require.Equal(t, "a1", call.ToolCallID)
	require.WithinDuration(t, time.Now().Add(time.Hour), call.Deadline, time.Minute)
	require.NoError(t, call.Validate())
}

func TestRun_ToolsRunInTheSandboxOfTheSession(t *testing.T) {
	t.Parallel()
	for _, sandbox := range []string{"", "shared"} {
		r := newRig(asks("a", "greedy"), says("done"))
		r.opts.Sandbox = sandbox
		r.mustRun(t.Context(), t, "go")
		want := protocol.SandboxKey(cmp.Or(sandbox, string(r.session)))
		require.Equal(t, []protocol.Use{{Key: want, Access: protocol.Exclusive}}, r.fleet.runs[0].Resources)
	}
}

func TestRun_TextThatIsNotUTF8IsTheSameAfterwards(t *testing.T) {
	t.Parallel()
	reply := asks("a", "inline")
	reply.Text, reply.ToolCalls[0].Name, reply.ToolCalls[0].Arguments = "text\xff", "inl\xffne", "{\"n\xff\":1}"
	r := newRig(reply, says("done\xff"), says("again"))
	r.mustRun(t.Context(), t, "go\xff")
	live := r.model.lastSeen()
	r.mustRun(t.Context(), t, "again")
	require.Equal(t, live, r.model.lastSeen()[:len(live)])
}

func TestRun_ObserverIsToldJournaledAndLiveEvents(t *testing.T) {
	t.Parallel()
	r := newRig(asks("a", "work"), says("done"))
	r.mustRun(t.Context(), t, "go")
	require.Equal(t, []loop.EventType{
		loop.EventSessionStarted, loop.EventTurnStarted,
		loop.EventTextDelta, loop.EventTextDelta, loop.EventModelReply,
		loop.EventToolCall, loop.EventToolQueued, loop.EventToolRunning, loop.EventToolResult,
		loop.EventTextDelta, loop.EventTextDelta, loop.EventModelReply, loop.EventTurnEnded,
	}, r.watch.types())
	running := r.watch.of(loop.EventToolRunning)[0]
	require.Equal(t, protocol.WorkerID("w"), running.WorkerID)
	require.Equal(t, 1, running.Attempt)
	result := r.watch.of(loop.EventToolResult)[0]
	require.Equal(t, "ok", result.Status)
	require.Equal(t, "ok "+string(result.CallID), result.Content)
	require.Equal(t, protocol.WorkerID("w"), result.WorkerID)
	require.Equal(t, 1, result.Attempt)
	require.Equal(t, "-a\n+b\n", result.Diff)
	require.NotNil(t, result.QueueMS)
	require.NotNil(t, result.RunMS)
	for _, event := range r.watch.events {
		require.Equal(t, r.session, event.SessionID)
	}
}

func TestRun_EveryMistakeBecomesAResult(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, tool, arguments string
		status                protocol.Status
		code                  protocol.Code
	}{
		{"unknown tool", "walk", "{}", protocol.StatusRejected, codes.UnknownTool},
		{"tool without a name", "", "{}", protocol.StatusRejected, codes.UnknownTool},
		{"arguments that are no JSON", "work", "{", protocol.StatusRejected, protocol.CodeInvalidArguments},
		{"arguments against the schema", "work", `{"n":"x","m":1}`, protocol.StatusRejected, protocol.CodeInvalidArguments},
		{"a plan that is refused", "plan_refuses", "{}", protocol.StatusRejected, codes.PathEscape},
		{"a plan that panics", "plan_panics", "{}", protocol.StatusFailed, protocol.CodePanic},
		{"an inline tool that fails", "inline_fails", "{}", protocol.StatusFailed, protocol.CodeToolFailed},
		{"an inline tool that panics", "inline_panics", "{}", protocol.StatusFailed, protocol.CodePanic},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			reply := asks("a", test.tool, "work")
			reply.ToolCalls[0].Arguments = test.arguments
			r := newRig(reply, says("sorry"))
			result := r.mustRun(t.Context(), t, "go")
			require.Equal(t, loop.OutcomeAnswered, result.Outcome)
			requireProtocol(t, r.model.lastSeen())
			require.Len(t, r.fleet.ran(), 1)
			require.Len(t, r.watch.of(loop.EventToolCall), 2)
			for _, event := range r.watch.of(loop.EventToolResult) {
				if event.Index != 0 {
					require.Equal(t, string(protocol.StatusOK), event.Status)
					continue
				}
				require.Equal(t, string(test.status), event.Status)
				require.Equal(t, test.code, event.Error.Code)
				require.Contains(t, event.Content, string(test.code))
				require.NotNil(t, event.RunMS)
			}
		})
	}
}

// A tool is never called with other characters than the model wrote.
func TestRun_ArgumentsWithHalfACharacterAreRefused(t *testing.T) {
	t.Parallel()
	for written, journaled := range map[string]string{
		"{\"n\":1,\"text\":\"é\xed\xa0\xbd\"}": `{"n":1,"text":"é\ud83d"}`,
		"{\"n\":1,\"text\":\"\xff\uFFFD\"}":    `{"n":1,"text":"\udcff` + "\uFFFD" + `"}`,
	} {
		r := newRig(loop.Reply{ToolCalls: []loop.ToolCall{{ID: "a", Name: "wordy", Arguments: written}}}, says("sorry"))
		runner := mustNew(t, r.model, r.fleet, r.journal, table(t, wordy()), &r.opts)
		mustRun(t.Context(), t, runner, r.session, loop.Input{Text: "go"})
		require.Equal(t, journaled, r.watch.of(loop.EventToolCall)[0].Arguments)
		result := r.watch.of(loop.EventToolResult)[0]
		require.Equal(t, string(protocol.StatusRejected), result.Status, result.Content)
		require.Contains(t, result.Content, "surrogate pair")
	}
}

func TestRun_ResultIsJournaledBeforeTheSlowestEnds(t *testing.T) {
	t.Parallel()
	r := newRig(asks("a", "work", "work", "work"), says("done"))
	r.fleet.order = func(int) []int { return []int{2, 0, 1} }
	var journaled []int
	r.fleet.told = func(protocol.Call) {
		results := 0
		for _, event := range r.events(t) {
			if event.Type == loop.EventToolResult {
				results++
			}
		}
		journaled = append(journaled, results)
	}
	r.mustRun(t.Context(), t, "go")
	require.Equal(t, []int{1, 2, 3}, journaled)
}

func TestRun_InlineToolsDoNotHoldUpTheDispatch(t *testing.T) {
	t.Parallel()
	names := []string{"work"}
	for range 20 {
		names = append(names, "wait")
	}
	r := newRig(asks("a", names...), says("done"))
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	r.fleet.told = func(protocol.Call) { stop() }
	result := r.mustRun(ctx, t, "go")
	require.Equal(t, loop.OutcomeInterrupted, result.Outcome)
	for _, event := range r.watch.of(loop.EventToolResult) {
		want := protocol.StatusCancelled
		if event.Name == "work" {
			want = protocol.StatusOK
		}
		require.Equal(t, string(want), event.Status)
	}
}

func TestRun_IDsOfToolCallsAreMadeUnique(t *testing.T) {
	t.Parallel()
	first := asks("", "work", "work", "inline", "nosuch")
	first.ToolCalls[0].ID, first.ToolCalls[1].ID, first.ToolCalls[2].ID = "same", "same", ""
	first.ToolCalls[3].ID = "call_1_1_1"
	second := asks("", "work", "work")
	second.ToolCalls[0].ID, second.ToolCalls[1].ID = "same", "\xff"
	r := newRig(first, second, says("done"))
	r.mustRun(t.Context(), t, "go")
	requireProtocol(t, r.model.lastSeen())
	ids := make([]string, 0, 6)
	for _, event := range r.watch.of(loop.EventToolCall) {
		ids = append(ids, event.ToolCallID)
	}
	require.Equal(t, []string{"same", "call_1_1_1", "call_1_1_2", "call_1_1_3", "call_1_2_0", "\uFFFD"}, ids)
}

func TestRun_Limits(t *testing.T) {
	t.Parallel()
	endless := make([]loop.Reply, 100)
	for i := range endless {
		endless[i] = asks("s"+strings.Repeat("x", i)+"-", "work")
	}
	tests := []struct {
		name  string
		opts  loop.Options
		steps int
		says  string
	}{
		{"steps by default", loop.Options{}, 64, "64 steps"},
		{"steps", loop.Options{MaxSteps: 3}, 3, "3 steps"},
		{"tokens", loop.Options{MaxTokens: 30}, 3, "30 tokens (max_tokens), with 33 used"},
		{"tokens used up exactly", loop.Options{MaxTokens: 33}, 3, "33 tokens (max_tokens), with 33 used"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(endless...)
			r.opts = test.opts
			result := r.mustRun(t.Context(), t, "go")
			require.Equal(t, loop.OutcomeLimitReached, result.Outcome)
			require.Equal(t, test.steps, result.Steps)
			require.Equal(t, protocol.CodeLimitReached, result.Error.Code)
			require.Contains(t, result.Error.Message, test.says)
			require.Len(t, r.fleet.ran(), test.steps)
			events := r.events(t)
			require.Equal(t, string(loop.OutcomeLimitReached), events[len(events)-1].Status)
		})
	}
}

func TestRun_AnswerBeyondTheTokenLimitIsAnAnswer(t *testing.T) {
	t.Parallel()
	r := newRig(says("done"))
	r.opts.MaxTokens, r.opts.MaxSteps = 1, 1
	result := r.mustRun(t.Context(), t, "go")
	require.Equal(t, loop.OutcomeAnswered, result.Outcome)
}

func TestRun_TimeLimitCancelsWhatRuns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(asks("a", "work", "work"), says("never"))
		r.opts.Timeout, r.fleet.stall = time.Minute, 2
		start := time.Now()
		result := r.mustRun(t.Context(), t, "go")
		require.Equal(t, time.Minute, time.Since(start))
		require.Equal(t, loop.OutcomeLimitReached, result.Outcome)
		require.Contains(t, result.Error.Message, "1m0s (timeout)")
		require.Len(t, r.fleet.stopped, 1)
		require.Len(t, r.watch.of(loop.EventToolResult), 2)
	})
}

func TestRun_TimeLimitEndsTheModel(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(says("never"))
		r.opts.Timeout = time.Minute
		r.model.before = func(ctx context.Context) { <-ctx.Done() }
		result := r.mustRun(t.Context(), t, "go")
		require.Equal(t, loop.OutcomeLimitReached, result.Outcome)
	})
}

func TestRun_InterruptJournalsWhatWasLearned(t *testing.T) {
	t.Parallel()
	r := newRig(asks("a", "work", "work"), says("hello again"))
	ctx, stop := context.WithCancelCause(t.Context())
	defer stop(nil)
	r.fleet.stall = 2
	r.fleet.told = func(protocol.Call) { stop(errors.New("ctrl-c")) }
	result := r.mustRun(ctx, t, "go")
	require.Equal(t, loop.OutcomeInterrupted, result.Outcome)
	require.Contains(t, result.Error.Message, "ctrl-c")
	statuses := make([]string, 0, 2)
	for _, event := range r.watch.of(loop.EventToolResult) {
		statuses = append(statuses, event.Status)
	}
	require.Equal(t, []string{"ok", "cancelled"}, statuses)
	require.Len(t, r.model.seen, 1, "the model is not asked again")

	r.fleet.stall, r.fleet.told = 0, nil
	result = r.mustRun(t.Context(), t, "and now?")
	require.Equal(t, 2, result.Turn)
	require.Equal(t, "hello again", result.Text)
	requireProtocol(t, r.model.lastSeen())
}

func TestRun_InterruptWithoutFleetMakesResultsUnknown(t *testing.T) {
	t.Parallel()
	r := newRig(asks("a", "work", "inline"), says("hello again"))
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	r.opts.Observe = func(e loop.Event) {
		r.watch.observe(e)
		if e.Type == loop.EventToolCall {
			stop()
		}
	}
	r.fleet.err = errors.New("no servers")
	result := r.mustRun(ctx, t, "go")
	require.Equal(t, loop.OutcomeInterrupted, result.Outcome)
	byName := make(map[string]string)
	for _, event := range r.watch.of(loop.EventToolResult) {
		byName[event.Name] = event.Status
	}
	require.Equal(t, string(protocol.StatusOutcomeUnknown), byName["work"])
	require.Equal(t, string(protocol.StatusOK), byName["inline"])
}

func TestRun_CallsOfAStoppedTurnAreNotSent(t *testing.T) {
	t.Parallel()
	r := newRig(asks("a", "work"), says("never"))
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	r.opts.Observe = func(e loop.Event) {
		r.watch.observe(e)
		if e.Type == loop.EventModelReply {
			stop()
		}
	}
	result := r.mustRun(ctx, t, "go")
	require.Equal(t, loop.OutcomeInterrupted, result.Outcome)
	require.Empty(t, r.fleet.ran())
	require.Equal(t, string(protocol.StatusCancelled), r.watch.of(loop.EventToolResult)[0].Status)
}

func TestRun_ModelThatFailsEndsTheTurn(t *testing.T) {
	t.Parallel()
	r := newRig(asks("a", "work"))
	r.model.err = errors.New("400: context too long")
	result := r.mustRun(t.Context(), t, "go")
	require.Equal(t, loop.OutcomeFailed, result.Outcome)
	require.Equal(t, &protocol.Error{Code: protocol.CodeModelFailed, Message: "400: context too long"}, result.Error)
	require.Equal(t, 1, result.Steps)
	r.model.replies = append(r.model.replies, says("better"))
	result = r.mustRun(t.Context(), t, "again")
	require.Equal(t, "better", result.Text)
	requireProtocol(t, r.model.lastSeen())
}

func TestRun_HintsOfTheToolsAreInTheSystemPrompt(t *testing.T) {
	t.Parallel()
	r := newRig(says("done"))
	r.opts.System = "Be brief."
	hinted := tools.New("clock", "The time.", func(context.Context, struct{}) (string, error) { return "now", nil })
	hinted.Hint = "Look at the clock first."
	made, err := tools.NewTable(hinted)
	require.NoError(t, err)
	runner := mustNew(t, r.model, r.fleet, r.journal, made, &r.opts)
	mustRun(t.Context(), t, runner, r.session, loop.Input{Text: "go"})
	require.Equal(t, "Be brief.\n\nAbout the tools:\n- clock: Look at the clock first.", r.model.lastSeen()[0].Text)
}

// A nil table has no tools.
func TestWith_NilHasNoTools(t *testing.T) {
	t.Parallel()
	r := newRig(asks("a", "work"), says("done"))
	runner := mustNew(t, r.model, r.fleet, r.journal, table(t), &r.opts)
	_, err := runner.With(nil).Run(t.Context(), r.session, loop.Input{Text: "go"})
	require.NoError(t, err)
	require.Empty(t, r.model.seen[0].Tools)
	require.Equal(t, []string{"rejected"}, statuses(r))

	single := loop.PlanSingle(t.Context(), nil, "s", "work", "{}", nil)
	require.Nil(t, single.Call)
	require.Contains(t, single.Text, "no tools are available")
}
