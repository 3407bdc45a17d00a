package terminal

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

func TestSummary(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ tool, written, want string }{
		"a command":                {"bash", `{"command":"go test ./..."}`, "go test ./..."},
		"a command elsewhere":      {"bash", `{"command":"ls","cwd":"sub"}`, "ls (in sub)"},
		"a command where it is":    {"bash", `{"command":"ls","cwd":"."}`, "ls"},
		"a command of three lines": {"bash", `{"command":"\n\ncd a\r\nls\npwd\n"}`, "cd a (+2 lines)"},
		"a program":                {"run_code", `{"code":"import sys\nprint(1)","language":"python"}`, "python: import sys (+1 line)"},
		"a program in the default": {"run_code", `{"code":"print(1)"}`, "print(1)"},
		"a file":                   {"read", `{"path":"a.go"}`, "a.go"},
		"lines of a file":          {"read", `{"path":"a.go","offset":10,"limit":5}`, "a.go, lines 10-14"},
		"a file from a line on":    {"read", `{"path":"a.go","offset":10}`, "a.go, from line 10"},
		"the head of a file":       {"read", `{"path":"a.go","limit":1}`, "a.go, 1 line"},
		"offset of another type":   {"read", `{"path":"a.go","offset":"x"}`, "a.go"},
		"a file to write":          {"write", `{"path":"a.go","content":"a\nb\n"}`, "a.go (2 lines)"},
		"an empty file to write":   {"write", `{"path":"a.go","content":""}`, "a.go (0 lines)"},
		"an edit":                  {"edit", `{"path":"a.go","old":"x","new":"y"}`, "a.go"},
		"a question":               {"exists", `{"path":"a.go"}`, "a.go"},
		"a directory":              {"list", `{"path":"sub"}`, "sub"},
		"the workspace":            {"list", `{}`, "."},
		"a search":                 {"grep", `{"pattern":"a\\d"}`, `"a\d" in .`},
		"a search in some files":   {"grep", `{"pattern":"a","path":"sub","glob":"*.go"}`, `"a" in sub (*.go)`},
		"another tool":             {"weather", "{ \"city\":\n \"Ulm\" }", `{"city":"Ulm"}`},
		"another without argument": {"weather", `{}`, ""},
		"an argument of bad type":  {"bash", `{"command": ["ls", "-l"]}`, `{"command":["ls","-l"]}`},
		"a null":                   {"read", `{"path":null}`, `{"path":null}`},
		"a missing argument":       {"bash", `{"cwd":"a"}`, `{"cwd":"a"}`},
		"a program with arguments": {"bash", `{"cmd":"ls","args":["-l","a b"]}`, "ls -l 'a b'"},
		"another's command":        {"run_shell_command", `{"cmd":"ls"}`, "ls"},
		"several edits":            {"multi_edit", `{"path":"a.go","edits":[{"old":"x","new":"y"},{"old":"a","new":"b"}]}`, "a.go (2 edits)"},
		"a place of a document":    {"json_write", `{"path":"a.json","query":"/x","content":1}`, "a.json at /x"},
		"no JSON":                  {"bash", ` {"command": `, `{"command":`},
		"no object":                {"bash", `"ls"`, `"ls"`},
		"null":                     {"bash", `null`, `null`},
		"nothing":                  {"bash", ``, ``},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, c.want, summary(c.tool, c.written))
		})
	}
}

func TestFit(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		in    string
		limit int
		want  string
	}{
		"short enough":           {"abc", 3, "abc"},
		"too long":               {"abcd", 3, "ab…"},
		"one column":             {"abcd", 1, "…"},
		"wide letters":           {"漢字漢字", 8, "漢字漢字"},
		"wide letters cut":       {"漢字漢字", 7, "漢字漢…"},
		"no half letter":         {"漢字漢字", 4, "漢…"},
		"accents go with theirs": {"e\u0301e\u0301e\u0301", 2, "e\u0301…"},
		"a joined emoji is cut":  {"👩\u200d💻x", 4, "👩\u200d…"},
		"tab":                    {"a\tb", 9, "a   b"},
		"line feed":              {"a\nb", 9, "a␊b"},
		"escape":                 {"\x1b[31mred", 20, "␛[31mred"},
		"every other control":    {"\x00\a\b\r\x7f", 9, "␀␇␈␍␡"},
		"C1":                     {"a\u009b31m", 20, "a<U+009B>31m"},
		"raw bytes":              {"a\x9b\xff", 20, "a��"},
		"direction":              {"\u202eabc\u2066", 30, "<U+202E>abc<U+2066>"},
		"line separators":        {"\u2028\u2029", 30, "<U+2028><U+2029>"},
		"a form is not split":    {"abc\u202e", 9, "abc…"},
		"nothing":                {"", 5, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, c.want, Fit(c.in, c.limit))
		})
	}
	require.Less(t, len(Fit("e"+strings.Repeat("\u0301", 1_000_000), 40)), 1000, "marks upon marks")
	rapid.Check(t, func(rt *rapid.T) {
		limit := rapid.IntRange(1, 30).Draw(rt, "limit")
		got := Fit(rapid.String().Draw(rt, "s"), limit)
		require.LessOrEqual(rt, Columns(got), limit)
		require.True(rt, utf8.ValidString(got))
	})
}

func TestDuration(t *testing.T) {
	t.Parallel()
	for want, d := range map[string]time.Duration{
		"0.0 ms":      -time.Second,
		"0.3 ms":      340 * time.Microsecond,
		"9.4 ms":      9400 * time.Microsecond,
		"312 ms":      312 * time.Millisecond,
		"1.0 s":       999_600 * time.Microsecond,
		"59.9 s":      59_900 * time.Millisecond,
		"1 min 0 s":   59_960 * time.Millisecond,
		"2 min 5 s":   125 * time.Second,
		"1 h 0 min":   59*time.Minute + 59_600*time.Millisecond,
		"26 h 30 min": 26*time.Hour + 30*time.Minute,
	} {
		require.Equal(t, want, Duration(d))
	}
	bad := []float64{math.NaN(), math.Inf(1), math.Inf(-1), -1, 1e300}
	for i := range bad {
		require.Empty(t, millis(&bad[i]))
	}
	require.Empty(t, millis(nil))
}

func TestCount(t *testing.T) {
	t.Parallel()
	for want, n := range map[string]int64{
		"0": 0, "999": 999, "1,000": 1000, "12,345,678": 12345678, "-999": -999, "-1,000": -1000,
	} {
		require.Equal(t, want, count(n))
	}
}

func TestExcerpt(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		in   string
		want []string
	}{
		"nothing":       {"", nil},
		"empty lines":   {"\n\r\n\n", nil},
		"all of it":     {"\na\r\nb\n\nc\n", []string{"a", "b", "", "c"}},
		"head and tail": {"1\n2\n3\n4\n5\n6", []string{"1", "2", "… 3 more lines …", "6"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, c.want, excerpt(c.in, 4))
		})
	}
}

func TestChangesOf(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		diff string
		want []change
	}{
		"nothing": {"", nil},
		"prose":   {"what a change\n+1\n", nil},
		"an edit": {
			"--- a/x.go\n+++ b/x.go\n@@ -1,3 +1,4 @@\n a\n-b\n+c\n+d\n e\n",
			[]change{{path: "x.go", added: 2, removed: 1}},
		},
		"lines that look like headers": {
			"--- a/x.sql\n+++ b/x.sql\n@@ -1,2 +1,2 @@\n--- a comment\n+++ b/evil\n x\n",
			[]change{{path: "x.sql", added: 1, removed: 1}},
		},
		"a new file": {
			"--- /dev/null\n+++ b/x\n@@ -0,0 +1 @@\n+a\n\\ No newline at end of file\n",
			[]change{{path: "x", added: 1, created: true}},
		},
		"a deleted file with times": {
			"--- a/x\t2026-01-01\n+++ /dev/null\t2026-01-01\n@@ -1 +0,0 @@\n-a\n",
			[]change{{path: "x", removed: 1, gone: true}},
		},
		"two files": {
			"--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n--- a/y\n+++ b/y\n@@ -1 +1 @@\n-a\n+b\n",
			[]change{{path: "x", added: 1, removed: 1}, {path: "y", added: 1, removed: 1}},
		},
		"a diff that was cut": {
			"--- a/x\n+++ b/x\n@@ -1,9 +1,9 @@\n-a\n+b\n[... 99 bytes of the diff left out ...]\n",
			[]change{{path: "x", added: 1, removed: 1, partial: true}},
		},
		"a diff that was cut between hunks": {
			"--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n[... 99 bytes of the diff left out ...]\n",
			[]change{{path: "x", added: 1, removed: 1, partial: true}},
		},
		"a diff that ends": {
			"--- a/x\n+++ b/x\n@@ -1,9 +1,9 @@\n-a\n",
			[]change{{path: "x", removed: 1, partial: true}},
		},
		"broken headers": {
			"--- a/x\n+++ b/x\n@@ x\n@@ -1,x +1,y @@\n+a\n",
			[]change{{path: "x"}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, c.want, changesOf(c.diff))
		})
	}
}

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
	v.Observe(loop.Event{
		Type: loop.EventToolResult, Turn: 1, Step: 1, CallFields: loop.CallFields{Name: "bash"}, Status: "ok",
		ResultFields: loop.ResultFields{Diff: "--- a/gone\n+++ /dev/null\n@@ -1,2 +0,0 @@\n-a\n-b\n"},
	})
	out.Reset()
	v.Observe(loop.Event{
		Type: loop.EventTurnEnded, Turn: 1, Status: "answered",
		ReplyFields: loop.ReplyFields{Usage: &protocol.Usage{InputTokens: 1000, OutputTokens: 1}},
		StartFields: loop.StartFields{TraceID: "t-1"},
	})
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
