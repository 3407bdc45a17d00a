package terminal_test

import (
	"bytes"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/terminal"
	"github.com/toolfleet/toolfleet/pkg/fleet/report"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

func traced() *report.Trace {
	call := func(index int, about string, s report.Span) report.Span {
		s.Kind, s.Name, s.About, s.Step, s.Index, s.CallID = report.SpanCall, "bash", about, 1, index, protocol.CallID("c"+string(rune('1'+index)))
		return s
	}
	return &report.Trace{
		SessionID: "s", Turn: 2, State: "answered", DurationMS: 10_000, Input: "Run\x1b[31m the tests.\nAll.",
		Usage: protocol.Usage{InputTokens: 4800, OutputTokens: 320}, CostUSD: new(0.0123),
		Spans: []report.Span{
			{Kind: report.SpanModel, Name: "gpt-4.1", State: "ok", DurationMS: 2000, Parts: []report.Part{{Reason: report.ReasonModel, MS: 2000}}},
			call(0, "bash go vet ./...", report.Span{State: "ok", StartMS: 2000, DurationMS: 3000, WorkerID: "w-1", Parts: []report.Part{
				{Reason: report.ReasonSandbox, StartMS: 2000, MS: 1000}, {Reason: report.ReasonRun, StartMS: 3000, MS: 2000},
			}}),
			call(1, "bash go test ./...",
				report.Span{State: "failed", Code: protocol.CodeToolFailed, StartMS: 2000, DurationMS: 6000, WorkerID: "w-2", Attempt: 2, Parts: []report.Part{
					{Reason: report.ReasonLane, StartMS: 2000, MS: 3000, For: "c1"},
					{Reason: report.ReasonLost, StartMS: 5000, MS: 1000, For: "w-1", Attempt: 1},
					{Reason: report.ReasonRun, StartMS: 6000, MS: 2000},
				}}),
			{
				Kind: report.SpanModel, Depth: 1, Name: "small\u202e", State: "running", StartMS: 8000, DurationMS: 2000,
				Parts: []report.Part{{Reason: report.ReasonModel, StartMS: 8000, MS: 2000, Open: true}},
			},
			{Kind: report.SpanModel, Name: "gpt-4.1", State: "ok", StartMS: 9999, DurationMS: 1, Parts: []report.Part{
				{Reason: report.ReasonStore, StartMS: 9999, MS: 0.1}, {Reason: report.ReasonModel, StartMS: 9999.1, MS: 0.9},
			}},
		},
		Totals: []report.Total{{Reason: report.ReasonRun, MS: 4000, TurnMS: 4000}, {Reason: report.ReasonLane, MS: 3000}},
	}
}

func drawn(t *testing.T, o terminal.Waterfall, trace *report.Trace) string {
	t.Helper()
	var out bytes.Buffer
	require.NoError(t, o.Write(&out, trace))
	return out.String()
}

// Without colors each bar has a character of its own, and each row words and times.
func TestWaterfall(t *testing.T) {
	t.Parallel()
	require.Equal(t, strings.TrimPrefix(`
session s, turn 2: answered, took 10.0 s
› Run␛[31m the tests. (+1 line)
                                      at      took 0                      10.0 s
✓ model gpt-4.1                   0.0 ms     2.0 s ▓▓▓▓▓
✓ 1.1 bash go vet ./...            2.0 s     3.0 s      ───██████
    ok on w-1 · sandbox start 1.0 s · ran 2.0 s
✗ 1.2 bash go test ./...           2.0 s     6.0 s      ░░░░░░░░░░░░██████
    failed tool_failed on w-2, attempt 2 · waited for the lane 3.0 s (1.1 bash)
    waited for a lost worker 1.0 s (w-1, attempt 1) · ran 2.0 s
  ▸ model small<U+202E>            8.0 s     2.0 s                        ▓▓▓▓▓▓
✓ model gpt-4.1                   10.0 s    1.0 ms                             ▓

where the time went              of turn           in all
█ ran                              4.0 s  40.0%     4.0 s
░ waited for the lane             0.0 ms   0.0%     3.0 s
5,120 tokens (4,800 in, 320 out), $0.0123
`, "\n"), drawn(t, terminal.Waterfall{}, traced()))
}

func TestWaterfall_FitsEachWidth(t *testing.T) {
	t.Parallel()
	trace := traced()
	trace.Spans[2].About = strings.Repeat("長い", 200)
	trace.Spans[2].Parts[0].For = strings.Repeat("x", 500) + "\n\x1b]0;title\a"
	for _, width := range []int{1, 40, 41, 80, 133, 300} {
		plain := drawn(t, terminal.Waterfall{Width: width}, trace)
		require.NotContains(t, plain, "\x1b")
		for line := range strings.Lines(plain) {
			columns := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")) + strings.Count(line, "長") + strings.Count(line, "い")
			require.LessOrEqual(t, columns, max(width, 40), "%q", line)
		}
		colored := drawn(t, terminal.Waterfall{Width: width, Color: true}, trace)
		require.Contains(t, colored, "\x1b[")
		require.NotContains(t, colored, "\x1b]")
	}
}
