package terminal

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// What a model thinks is seen while it does, and is folded above what it says.
func TestLive_ReasoningIsFolded(t *testing.T) {
	t.Parallel()
	s := &screen{columns: 60, rows: 24}
	v, _ := still(t, s, Options{})
	v.Observe(loop.Event{Type: loop.EventTurnStarted, Turn: 1, StartFields: loop.StartFields{Input: "go"}})
	for i := range 30 {
		v.Observe(loop.Event{Type: loop.EventReasoningDelta, Turn: 1, Step: 1, Text: fmt.Sprintf("thought %d\n", i)})
	}
	require.Contains(t, s.String(), "  thought 29\n⠋ thinking · 0 s\n")
	require.NotContains(t, s.String(), "thought 9\n", "its end")
	v.Observe(loop.Event{Type: loop.EventTextDelta, Turn: 1, Step: 1, Text: "Hello."})
	v.Observe(loop.Event{Type: loop.EventModelReply, Turn: 1, Step: 1, Text: "Hello."})
	require.Equal(t, "› go\n\n○ thought 0\n  thought 1\n  … 26 more lines …\n  thought 28\n  thought 29\n\n● Hello.\n", s.String())
}

// A call that no worker may take says so, and why, in full; one whose start nobody saw runs when it
// writes; and there is room for a few.
func TestLive_CallsThatWait(t *testing.T) {
	t.Parallel()
	s := &screen{columns: 40, rows: 24}
	v, now := still(t, s, Options{})
	see := func(e loop.Event) { e.Turn, e.Step, e.Name = 1, 1, "bash"; v.Observe(e) }
	see(loop.Event{Type: loop.EventTurnStarted, StartFields: loop.StartFields{Input: "go"}})
	see(loop.Event{Type: loop.EventToolCall, CallFields: loop.CallFields{CallID: "a", Arguments: `{"command":"make"}`}})
	see(loop.Event{Type: loop.EventToolQueued, CallFields: loop.CallFields{CallID: "a"}})
	*now = now.Add(4 * time.Second)
	see(loop.Event{Type: loop.EventToolQueued, CallFields: loop.CallFields{CallID: "a"}, Text: "1 worker of pool default, none offers level full"})
	require.Equal(t, "› go\n\n[1.1 bash] waits for: 1 worker of pool\n  default, none offers level full\n· make · no worker can run it, 4 s\n  turn 4 s\n", s.String())
	see(loop.Event{Type: loop.EventToolQueued, CallFields: loop.CallFields{CallID: "a"}})
	require.Contains(t, s.String(), "· make · waiting for a worker, ", "one has come")
	v.Output("a", []byte("one\n"))
	*now = now.Add(2 * time.Second)
	v.Notice("x")
	require.Contains(t, s.String(), "⠋ make · 2 s\n  │ one\n")
	for i := range 40 {
		see(loop.Event{Type: loop.EventToolCall, CallFields: loop.CallFields{CallID: protocol.CallID(fmt.Sprint(i)), Index: i + 1, Arguments: `{"command":"true"}`}})
	}
	require.Regexp(t, `\n  … \d+ more calls\n  turn 6 s\n$`, s.String())
	require.LessOrEqual(t, strings.Count(s.String(), "· true"), 24)
}

// A call whose worker is lost says so, what comes next, and when its worker is there again or
// another one runs it.
func TestLive_CallsWhoseWorkerIsLost(t *testing.T) {
	t.Parallel()
	s := &screen{columns: 70, rows: 24}
	v, now := still(t, s, Options{})
	see := func(e loop.Event) {
		e.Turn, e.Step, e.Name, e.CallID, e.Time = 1, 1, "bash", "a", *now
		v.Observe(e)
	}
	see(loop.Event{Type: loop.EventTurnStarted, StartFields: loop.StartFields{Input: "go"}})
	see(loop.Event{Type: loop.EventToolCall, CallFields: loop.CallFields{Arguments: `{"command":"make"}`}})
	see(loop.Event{Type: loop.EventToolRunning, ResultFields: loop.ResultFields{WorkerID: "w1", Attempt: 1}})
	*now = now.Add(5 * time.Second)
	see(loop.Event{Type: loop.EventWorkerLost, ResultFields: loop.ResultFields{WorkerID: "w1", Attempt: 1}, Text: "worker w1 is lost; its lease ends in 6 s"})
	*now = now.Add(2 * time.Second)
	v.Notice("x")
	require.Equal(t, "› go\n\n[1.1 bash] worker w1 is lost; its lease ends in 6 s\n! x\n⠇ make · its worker is lost, 2 s\n  turn 7 s\n", s.String())
	see(loop.Event{Type: loop.EventToolRunning, ResultFields: loop.ResultFields{WorkerID: "w1", Attempt: 1}})
	require.Contains(t, s.String(), "[1.1 bash] still runs: its worker is back\n⠇ make · 7 s\n", "the time goes on")
	see(loop.Event{Type: loop.EventWorkerLost, ResultFields: loop.ResultFields{WorkerID: "w1", Attempt: 1}, Text: "worker w1 is lost, its lease has ended"})
	*now = now.Add(3 * time.Second)
	see(loop.Event{Type: loop.EventToolRunning, ResultFields: loop.ResultFields{WorkerID: "w2", Attempt: 2}})
	require.Contains(t, s.String(), "running on w2, attempt 2\n⠸ make · 0 s\n")
}

// The end of a turn has what it cost, where its trace is, and what became of files.
func TestSummary_SaysWhatItCameTo(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	v := New(&out, &Options{Cost: func(protocol.Usage) float64 { return 2.5 }})
	v.Observe(loop.Event{Type: loop.EventTurnStarted, Turn: 1, StartFields: loop.StartFields{Input: "go"}})
	v.Observe(loop.Event{Type: loop.EventToolResult, Turn: 1, Step: 1, CallFields: loop.CallFields{Name: "bash"}, Status: "ok", ResultFields: loop.ResultFields{Diff: "--- a/gone\n+++ /dev/null\n@@ -1,2 +0,0 @@\n-a\n-b\n"}})
	out.Reset()
	v.Observe(loop.Event{Type: loop.EventTurnEnded, Turn: 1, Status: "answered", ReplyFields: loop.ReplyFields{Usage: &protocol.Usage{InputTokens: 1000, OutputTokens: 1}}, StartFields: loop.StartFields{TraceID: "t-1"}})
	require.Contains(t, out.String(), "1,001 tokens (1,000 in, 1 out) · $2.50")
	require.Contains(t, out.String(), "trace t-1")
	require.Contains(t, out.String(), "gone  +0 −2  deleted")
}

// A question shows as much as a person reads, and says what it leaves out; a diff that the user
// asks for is whole.
func TestAsk_ALongCommandIsCut(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	v := New(&out, nil)
	answered := v.Ask(Question{Reason: "why", Tool: "bash", Arguments: `{"command":"` + strings.Repeat(`x\n\n`, 500) + `"}`, Answers: "?"})
	require.Regexp(t, `\n  │\n  │ x\n(.|\n)*\n  … [\d,]+ more lines, not shown\n`, out.String())
	answered()
	out.Reset()
	v.Diff("--- a/x\n+++ b/x\n@@ -0,0 +1,900 @@\n" + strings.Repeat("+y\n", 900))
	require.Equal(t, 900, strings.Count(out.String(), "+y\n"))
}

func TestMarkdown_LinesAndRules(t *testing.T) {
	t.Parallel()
	for said, want := range map[string]string{
		"one\ntwo":                         "● one two\n",
		"one  \ntwo":                       "● one\n  two\n",
		"one\n\n---\n\ntwo":                "● one\n\n  ───\n\n  two\n",
		"|a|\n|-|\n|<http://b> *c* &amp;|": "● a\n  http://b c &\n",
	} {
		s := &screen{columns: 60, rows: 24}
		v, _ := still(t, s, Options{})
		v.Observe(loop.Event{Type: loop.EventModelReply, Text: said})
		require.Equal(t, want, s.String(), said)
	}
}
