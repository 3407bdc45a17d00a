package fleet_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/fleet/report"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
	"github.com/toolfleet/toolfleet/pkg/tools/toolset"
)

// stepping is a model with a list of calls for each of its replies, and then an answer.
type stepping [][]loop.ToolCall

func (m stepping) Reply(_ context.Context, request loop.Request, _ func(loop.Delta)) (loop.Reply, error) {
	replies := 0
	for i := range request.Messages {
		if request.Messages[i].Role == loop.RoleAssistant {
			replies++
		}
	}
	if replies < len(m) {
		return loop.Reply{ToolCalls: m[replies], Usage: protocol.Usage{InputTokens: 10, OutputTokens: 1}}, nil
	}
	return loop.Reply{Text: "Done.", Usage: protocol.Usage{InputTokens: 10, OutputTokens: 1}}, nil
}

func use(id, tool, arguments string) loop.ToolCall {
	return loop.ToolCall{ID: id, Name: tool, Arguments: arguments}
}

// requireWhole checks that parts add up to their spans, spans are in their turn, and each moment of
// the turn counts once.
func requireWhole(t *testing.T, trace *report.Trace) {
	t.Helper()
	sum := 0.0
	for _, total := range trace.Totals {
		sum += total.TurnMS
	}
	require.InDelta(t, trace.DurationMS, sum, 0.1)
	for _, s := range trace.Spans {
		length := 0.0
		for _, p := range s.Parts {
			length += p.MS
		}
		require.InDelta(t, s.DurationMS, length, 0.1, "%+v", s)
		require.GreaterOrEqual(t, s.StartMS, 0.0)
		require.LessOrEqual(t, s.StartMS+s.DurationMS, trace.DurationMS+0.1)
	}
}

// spanOf is the span of the call of a tool, the n-th from 0.
func spanOf(t *testing.T, trace *report.Trace, tool string, n int) report.Span {
	t.Helper()
	for _, s := range trace.Spans {
		if s.Name == tool {
			if n--; n < 0 {
				return s
			}
		}
	}
	require.Failf(t, "no span", "%s %d in %+v", tool, n, trace.Spans)
	return report.Span{}
}

// partOf is the part of a span with a reason; the zero value if it has none.
func partOf(s report.Span, reason report.Reason) report.Part {
	for _, p := range s.Parts {
		if p.Reason == reason {
			return p
		}
	}
	return report.Part{}
}

// A trace of a turn says what each call waited for: the call that held its lane, a limit, a person;
// and has the calls of a sub-agent below the call that started it.
func TestTrace_SaysWhatEachCallWaitedFor(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	const takes = 100 * time.Millisecond
	require.NoError(t, b.Limits().Set(t.Context(), fleet.Limit{Lane: "sandbox/limited", Rate: "2/s", Burst: 1}))
	set, err := toolset.Named("core", "agents")
	require.NoError(t, err)
	all, err := tools.NewTable(set...)
	require.NoError(t, err)
	helper := stepping{{use("1", "bash", `{"command":"echo helper"}`)}}
	slow := fmt.Sprintf(`{"command":"sleep %g"}`, takes.Seconds())
	runner, err := b.Runner(stepping{
		{use("1", "bash", slow), use("2", "bash", `{"command":"echo second"}`), use("3", "write", `{"path":"a","content":"x"}`)},
		{use("4", "agent", `{"prompt":"Help.","agent":"helper"}`)},
	}, all, &loop.Options{
		ModelName: "stepping", Price: &loop.Price{Input: 1, Output: 1}, Policy: rules(t, "approval: {tools: [write]}"),
		Agents: []loop.Agent{{Name: "helper", Description: "It helps.", Model: helper, ModelName: "helper"}},
		Approve: func(context.Context, loop.ApprovalRequest) (protocol.Approval, error) {
			time.Sleep(takes) // a person thinks
			return protocol.Approval{Granted: true, By: "ada"}, nil
		},
	})
	require.NoError(t, err)
	result, err := runner.Run(t.Context(), "traced", loop.Input{Text: "go"})
	require.NoError(t, err)
	require.Equal(t, loop.OutcomeAnswered, result.Outcome)

	sessions := b.Sessions("")
	trace, err := sessions.Trace(t.Context(), "traced", 0)
	require.NoError(t, err)
	requireWhole(t, trace)
	require.Equal(t, "answered", trace.State)
	require.Equal(t, int64(5*11), trace.Usage.Total(), "with the sub-agent")
	require.Nil(t, trace.CostUSD, "no price of the helper is known")
	first, second, asked := spanOf(t, trace, "bash", 0), spanOf(t, trace, "bash", 1), spanOf(t, trace, "write", 0)
	require.GreaterOrEqual(t, partOf(first, report.ReasonRun).MS, float64(takes.Milliseconds()))
	require.Equal(t, string(first.CallID), partOf(second, report.ReasonLane).For, "%+v", second)
	require.GreaterOrEqual(t, partOf(second, report.ReasonLane).MS, float64(takes.Milliseconds())-20)
	person := partOf(asked, report.ReasonPerson)
	require.Equal(t, "ada", person.For)
	require.GreaterOrEqual(t, person.MS, float64(takes.Milliseconds())-20)
	agent, inner := spanOf(t, trace, "agent", 0), spanOf(t, trace, "bash", 2)
	require.Equal(t, report.SpanAgent, agent.Kind)
	require.Equal(t, 1, inner.Depth)
	require.Equal(t, protocol.SessionID(agent.CallID), inner.SessionID)
	require.GreaterOrEqual(t, inner.StartMS, agent.StartMS)
	require.LessOrEqual(t, inner.StartMS+inner.DurationMS, agent.StartMS+agent.DurationMS+0.1)

	limited, err := b.Runner(stepping{{use("1", "exists", `{"path":"a"}`), use("2", "exists", `{"path":"b"}`)}}, all, nil)
	require.NoError(t, err)
	_, err = limited.Run(t.Context(), "limited", loop.Input{Text: "go"})
	require.NoError(t, err)
	trace, err = sessions.Trace(t.Context(), "limited", 1)
	require.NoError(t, err)
	requireWhole(t, trace)
	rate := partOf(spanOf(t, trace, "exists", 1), report.ReasonRate)
	require.Equal(t, "sandbox/limited", rate.For)
	require.Greater(t, rate.MS, 100.0)

	_, err = sessions.Trace(t.Context(), "limited", 2)
	require.ErrorIs(t, err, fleet.ErrNotFound)
	_, err = sessions.Trace(t.Context(), "limited", -1)
	require.ErrorIs(t, err, fleet.ErrInvalid)
}

// pausing is a model that waits for its provider before it replies.
type pausing struct{ stepping }

const providerPause = 40 * time.Millisecond

func (m pausing) Reply(ctx context.Context, request loop.Request, delta func(loop.Delta)) (loop.Reply, error) {
	delta(loop.Delta{Waits: "the limit of model/test is used up", Pause: providerPause})
	time.Sleep(providerPause)
	return m.stepping.Reply(ctx, request, delta)
}

// A trace has the waits that only the process knows which sends: for the provider of the model, and
// for room in a lane.
func TestTrace_WaitsBeforeTheFleetHasTheCall(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	require.NoError(t, b.Limits().Set(t.Context(), fleet.Limit{Lane: "sandbox/*", Waiting: 1}))
	runner, err := b.Runner(pausing{stepping{{use("1", "bash", `{"command":"sleep 2"}`), use("2", "bash", `{"command":"echo second"}`)}}}, b.table, nil)
	require.NoError(t, err)
	_, err = runner.Run(t.Context(), "s", loop.Input{Text: "go"})
	require.NoError(t, err)
	trace, err := b.Sessions("").Trace(t.Context(), "s", 0)
	require.NoError(t, err)
	requireWhole(t, trace)
	limited := partOf(trace.Spans[0], report.ReasonModelLimit)
	require.Equal(t, "the limit of model/test is used up", limited.For)
	require.InDelta(t, float64(providerPause.Milliseconds()), limited.MS, 0.1)
	require.Equal(t, report.ReasonModel, trace.Spans[0].Parts[len(trace.Spans[0].Parts)-1].Reason)
	full := partOf(spanOf(t, trace, "bash", 1), report.ReasonFull)
	require.Equal(t, "busy: lane sandbox/s has 1 of 1 waiting calls", full.For)
	require.Greater(t, full.MS, 100.0)
}

// A turn that runs shows what its calls do and wait for now.
func TestTrace_OfATurnThatRuns(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	gate := filepath.Join(t.TempDir(), "gate")
	runner, err := b.Runner(stepping{{
		use("1", "bash", fmt.Sprintf(`{"command":"until [ -e %s ]; do sleep 0.01; done"}`, gate)), use("2", "bash", `{"command":"echo second"}`),
	}}, b.table, nil)
	require.NoError(t, err)
	done := make(chan error, 1)
	go func() {
		_, err := runner.Run(t.Context(), "s", loop.Input{Text: "go"})
		done <- err
	}()
	var trace *report.Trace
	require.Eventually(t, func() bool {
		var err error
		trace, err = b.Sessions("").Trace(t.Context(), "s", 0)
		return err == nil && len(trace.Spans) == 3 && trace.Spans[1].State == report.SpanRunning && trace.Spans[1].WorkerID != "" &&
			trace.Spans[2].State == report.SpanWaiting && partOf(trace.Spans[2], report.ReasonLane).Open
	}, time.Minute, 10*time.Millisecond)
	requireWhole(t, trace)
	require.Equal(t, report.StateOpen, trace.State)
	run := trace.Spans[1].Parts[len(trace.Spans[1].Parts)-1]
	require.Equal(t, report.ReasonRun, run.Reason)
	require.True(t, run.Open)
	require.Equal(t, string(trace.Spans[1].CallID), partOf(trace.Spans[2], report.ReasonLane).For)
	require.NoError(t, os.WriteFile(gate, nil, 0o600))
	require.NoError(t, <-done)
	trace, err = b.Sessions("").Trace(t.Context(), "s", 0)
	require.NoError(t, err)
	require.Equal(t, "answered", trace.State)
	requireWhole(t, trace)
}
