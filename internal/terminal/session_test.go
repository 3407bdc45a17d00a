package terminal_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/terminal"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// recording makes the events of a session, 10 ms apart unless told otherwise.
type recording struct {
	events []loop.Event
	now    time.Time
	turn   int
	step   int
}

func newRecording() *recording {
	return &recording{now: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)}
}

func (r *recording) add(e loop.Event) {
	r.now = r.now.Add(10 * time.Millisecond)
	e.SessionID, e.Time, e.Turn, e.Step = "0195a3c1-7d2e-7b44-9d61-5f0c2a9e8b10", r.now, r.turn, r.step
	r.events = append(r.events, e)
}

func (r *recording) start(input string) {
	if r.turn == 0 {
		r.add(loop.Event{
			Type: loop.EventSessionStarted, StartFields: loop.StartFields{
				Model: "openai:qwen3", Workspace: "/home/ada/wordstats", Tools: []string{"bash", "edit", "exists", "grep", "list", "read", "run_code", "write"},
			},
		})
	}
	r.turn, r.step = r.turn+1, 0
	r.add(loop.Event{Type: loop.EventTurnStarted, StartFields: loop.StartFields{Input: input}})
}

// reply streams a text in pieces of seven bytes, and asks for tools as "name {arguments}".
func (r *recording) reply(text string, calls ...string) {
	r.step++
	for rest := text; rest != ""; {
		n := min(7, len(rest))
		r.add(loop.Event{Type: loop.EventTextDelta, Text: rest[:n]})
		rest = rest[n:]
	}
	r.silent(text, calls...)
}

func (r *recording) silent(text string, calls ...string) {
	reply := loop.Event{Type: loop.EventModelReply, Text: text}
	for _, call := range calls {
		name, written, _ := strings.Cut(call, " ")
		reply.ToolCalls = append(reply.ToolCalls, loop.ToolCall{Name: name, Arguments: written})
	}
	r.add(reply)
	for i, call := range reply.ToolCalls {
		r.add(loop.Event{Type: loop.EventToolCall, CallFields: loop.CallFields{Index: i, Name: call.Name, Arguments: call.Arguments}})
	}
}

func (r *recording) queued(index int, name string) {
	r.add(loop.Event{Type: loop.EventToolQueued, CallFields: loop.CallFields{Index: index, Name: name}})
}

func (r *recording) running(index int, name string, worker protocol.WorkerID, attempt int) {
	r.add(loop.Event{
		Type: loop.EventToolRunning, CallFields: loop.CallFields{Index: index, Name: name},
		ResultFields: loop.ResultFields{WorkerID: worker, Attempt: attempt},
	})
}

// result ends a call; its place, worker and times are in e.
func (r *recording) result(e loop.Event, queued, ran float64) {
	e.Type = loop.EventToolResult
	if e.Status == "" {
		e.Status = "ok"
	}
	if e.Error != nil && e.Content == "" {
		e.Content = fmt.Sprintf("[%s: %s]\n%s\nNext: act on the message.", e.Status, e.Error.Code, e.Error.Message)
	}
	e.QueueMS, e.RunMS = &queued, &ran
	r.now = r.now.Add(time.Duration(ran) * time.Millisecond)
	r.add(e)
}

func (r *recording) end(outcome loop.Outcome, text string, in, out int64, fault *protocol.Error) {
	usage := &protocol.Usage{InputTokens: in, OutputTokens: out}
	r.add(loop.Event{
		Type: loop.EventTurnEnded, Status: string(outcome), Text: text,
		ReplyFields: loop.ReplyFields{Usage: usage}, ResultFields: loop.ResultFields{Error: fault},
	})
}

// show plays the events into a view.
func show(events []loop.Event, o *terminal.Options) string {
	var out strings.Builder
	v := terminal.New(&out, o)
	for _, e := range events {
		v.Observe(e)
	}
	return out.String()
}

const editDiff = `--- a/text/stats.go
+++ b/text/stats.go
@@ -4,7 +4,7 @@
 // Longest returns the longest word; of equal ones the first.
 func Longest(words []string) string {
 	longest := ""
 	for _, w := range words {
-		if len(w) >= len(longest) {
+		if len(w) > len(longest) {
 			longest = w
 		}
 	}
`

// realistic is a session with about everything that happens to one.
func realistic() []loop.Event {
	r := newRecording()
	r.start("Make the tests pass.\nDo not change the tests.")
	r.reply("I'll run the tests, and look at the code meanwhile. The package is small, so reading all of it is cheaper than guessing.\n\n- first the tests\n- then `Longest`\n",
		`bash {"command":"go test ./...","cwd":"."}`,
		`grep {"pattern":"func .*Longest","glob":"*.go"}`,
		`read {"path":"text/stats.go","offset":1,"limit":40}`,
		`read {"path": 7}`)
	r.result(loop.Event{
		CallFields: loop.CallFields{Index: 3, Name: "read"}, Status: "rejected",
		ResultFields: loop.ResultFields{Error: protocol.Errorf(protocol.CodeInvalidArguments, "path: got number, want string\noffset: fine")},
	}, 0, 0)
	r.queued(0, "bash")
	r.queued(1, "grep")
	r.queued(2, "read")
	r.running(1, "grep", "worker-a", 1)
	r.running(2, "read", "worker-a", 1)
	r.result(loop.Event{
		CallFields: loop.CallFields{Index: 1, Name: "grep"}, ResultFields: loop.ResultFields{
			WorkerID: "worker-a", Attempt: 1, Content: "text/stats.go:5:func Longest(words []string) string {\n[1 match in 6 files]",
		},
	}, 2.25, 3.5)
	r.running(0, "bash", "worker-a", 1)
	var file strings.Builder
	for i := 1; i <= 40; i++ {
		fmt.Fprintf(&file, "%6d\tline %d\n", i, i)
	}
	r.result(loop.Event{
		CallFields: loop.CallFields{Index: 2, Name: "read"}, ResultFields: loop.ResultFields{
			WorkerID: "worker-a", Attempt: 1, Content: file.String() + "[lines 1-40 of 61; read on with offset=41]",
		},
	}, 2.5, 0.8)
	r.running(0, "bash", "worker-b", 2)
	r.result(loop.Event{
		CallFields: loop.CallFields{Index: 0, Name: "bash"}, ResultFields: loop.ResultFields{
			WorkerID: "worker-b", Attempt: 2,
			Content: "--- FAIL: TestLongest (0.00s)\n    stats_test.go:19: Longest = \"lazy\", want \"quick\"\nFAIL\nFAIL\twordstats/text\t0.003s\nFAIL\n[exit code 1]",
			Exit:    "exit code 1",
		},
	}, 9.4, 1840)

	r.reply("`>=` lets later words of equal length win.",
		`edit {"path":"text/stats.go","old":">=","new":">"}`,
		`write {"path":"NOTES.md","content":"# Notes\n\nOf equal words the first wins.\n"}`,
		`edit {"path":"text/split.go","old":"nope","new":"x"}`)
	for i, name := range []string{"edit", "write", "edit"} {
		r.queued(i, name)
		r.running(i, name, "worker-b", 1)
	}
	r.result(loop.Event{
		CallFields: loop.CallFields{Index: 0, Name: "edit"}, ResultFields: loop.ResultFields{
			WorkerID: "worker-b", Attempt: 1, Diff: editDiff, Content: "Edited text/stats.go: 1 replacement (412 bytes).\n" + editDiff,
		},
	}, 1.5, 1.25)
	r.result(loop.Event{
		CallFields: loop.CallFields{Index: 2, Name: "edit"}, ResultFields: loop.ResultFields{WorkerID: "worker-b", Attempt: 1, Error: protocol.Errorf(codes.EditNotFound,
			"text/split.go does not contain the text of old. The nearest is line 12:\n\n    nopes := strings.Fields(s)\n\nCopy the text exactly, with its white space.")},
		Status: "failed",
	}, 1.5, 1.1)
	r.result(loop.Event{
		CallFields: loop.CallFields{Index: 1, Name: "write"}, ResultFields: loop.ResultFields{
			WorkerID: "worker-b", Attempt: 1, Content: "Created NOTES.md (40 bytes).",
			Diff: "--- /dev/null\n+++ b/NOTES.md\n@@ -0,0 +1,3 @@\n+# Notes\n+\n+Of equal words the first wins.\n",
		},
	}, 1.5, 1.3)

	r.step++
	r.silent("", `bash {"command":"# soak\ngo test -count=1000 ./...","timeout":2}`,
		`mcp__github__create_pull_request_review {"owner":"ada","repo":"wordstats","number":12}`)
	r.queued(0, "bash")
	r.running(0, "bash", "worker-b", 1)
	r.result(loop.Event{
		CallFields: loop.CallFields{Index: 1, Name: "mcp__github__create_pull_request_review"}, Status: "rejected",
		ResultFields: loop.ResultFields{Error: protocol.Errorf(codes.UnknownTool, "there is no tool of this name")},
	}, 0, 0)
	r.result(loop.Event{
		CallFields: loop.CallFields{Index: 0, Name: "bash"}, ResultFields: loop.ResultFields{
			WorkerID: "worker-b", Attempt: 1, Error: protocol.Errorf(protocol.CodeRunTimeout,
				"The call ran longer than 2s and was stopped."),
			Content: "[timeout: run_timeout]\nThe call ran longer than 2s and was stopped.\nNext: do less in one call.\nPartial output:\n" +
				strings.Repeat("ok  \twordstats/text\t0.003s\n", 5000) + "[stopped: it ran out of its time]",
		}, Status: "timeout",
	}, 0.75, 2003)

	r.reply("", `bash {"command":"cat evil.txt"}`)
	r.queued(0, "bash")
	r.running(0, "bash", "worker-\x1b[31m", 1)
	r.result(loop.Event{
		CallFields: loop.CallFields{Index: 0, Name: "bash"}, ResultFields: loop.ResultFields{
			WorkerID: "worker-\x1b[31m", Attempt: 1,
			Content: "\x1b]0;owned\x07\x1b[2J\x1b[1;1H✓ answered\r\nrm -rf \u202egnp.exe\u2066\n\x9b31m 漢字\u009b\x00\n" + strings.Repeat("=", 400),
		},
	}, 0.5, 2)

	r.reply("The tests pass now: `Longest` compared with `>=`.\r\n[9.9 bash] ✓ ok \x1b[8mhidden\x1b[0m")
	r.end(loop.OutcomeAnswered, "", 18234, 912, nil)
	return r.events
}

var update = flag.Bool("update", false, "write the golden files")

// TestView_Transcripts pins what people see of a whole session.
func TestView_Transcripts(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]*terminal.Options{
		"log.txt":    nil,
		"screen.txt": {Width: 80},
		"narrow.txt": {Width: 40},
		"plain.txt":  {Width: 80, Plain: true},
		"color.txt":  {Width: 80, Color: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := show(realistic(), o)
			file := filepath.Join("testdata", name)
			if *update {
				require.NoError(t, os.MkdirAll("testdata", 0o755))
				require.NoError(t, os.WriteFile(file, []byte(got), 0o600))
			}
			want, err := os.ReadFile(file)
			require.NoError(t, err)
			require.Equal(t, string(want), got, "run the tests with -update if the change is meant")
		})
	}
}

// ownColor matches the escape sequences that the view itself writes.
var ownColor = regexp.MustCompile("\x1b\\[(?:0|1|2|31|32|33|36)m")

// hostile puts one text wherever texts come from somewhere else.
func hostile(s string) []loop.Event {
	usage := &protocol.Usage{InputTokens: -1}
	fault := &protocol.Error{Code: protocol.Code(s), Message: s}
	at := loop.Event{
		SessionID: protocol.SessionID(s), Turn: 1, Step: 1, StartFields: loop.StartFields{Model: s, Tools: []string{s}, Workspace: s, Input: s},
		Text: s, ReplyFields: loop.ReplyFields{ToolCalls: []loop.ToolCall{{ID: s, Name: s, Arguments: s}}, Usage: usage},
		CallFields: loop.CallFields{CallID: protocol.CallID(s), Name: s, Arguments: s}, Status: s,
		ResultFields: loop.ResultFields{Content: s, Error: fault, WorkerID: protocol.WorkerID(s), Attempt: 2, Diff: s},
	}
	named := at
	named.Name, named.Arguments = "bash", `{"command":`+quote(s)+`,"cwd":`+quote(s)+`}`
	grep := named
	grep.Name, grep.Arguments = "grep", `{"pattern":`+quote(s)+`,"path":`+quote(s)+`,"glob":`+quote(s)+`}`
	fine := at
	fine.Error, fine.Diff = nil, "--- a/"+s+"\n+++ b/"+s+"\n@@ -1,2 +1,2 @@\n-"+s+"\n+"+s+"\n"
	return []loop.Event{
		as(at, loop.EventSessionStarted), as(at, loop.EventTurnStarted), as(at, loop.EventTextDelta),
		as(at, loop.EventTextDelta), as(at, loop.EventModelReply), as(at, loop.EventToolCall),
		as(named, loop.EventToolCall), as(grep, loop.EventToolCall), as(at, loop.EventToolQueued),
		as(at, loop.EventToolRunning), as(at, loop.EventToolResult), as(fine, loop.EventToolResult),
		as(at, loop.EventTurnEnded), as(at, loop.EventSessionEnded),
	}
}

func as(e loop.Event, kind loop.EventType) loop.Event {
	e.Type = kind
	return e
}

// quote makes a JSON string in which control characters are escaped.
func quote(s string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r < ' ':
			b.WriteString(`\u00` + string("0123456789abcdef"[r>>4]) + string("0123456789abcdef"[r&15]))
		default:
			b.WriteRune(r)
		}
	}
	b.WriteByte('"')
	return b.String()
}

func FuzzView_NothingActsOnTheTerminal(f *testing.F) {
	for _, seed := range []string{
		"", "plain", "a\nb\n", "\x1b[2J\x1b]0;t\x07", "\x9b31m", "\u009b31m", "\r\n\r", "\x00\x7f", "\u202e\u2066",
		"\xf0\x9f", "\u2028", "a\tb", "[1.1 bash] ✓ ok", "\x1b[31m", "\x1b", "[0m", "e\u0301", "\U000E0041", "--- a\n+++ b\n@@ -1 +1 @@\n",
	} {
		f.Add(seed, true, 80)
		f.Add(seed, false, 0)
	}
	f.Fuzz(func(t *testing.T, s string, color bool, width int) {
		var out strings.Builder
		v := terminal.New(&out, &terminal.Options{Color: color, Width: min(width, 300)})
		for _, e := range hostile(s) {
			v.Observe(e)
		}
		v.Notice("%s", s)
		got := out.String()
		require.True(t, utf8.ValidString(got))
		if color {
			got = ownColor.ReplaceAllString(got, "")
		}
		for _, r := range got {
			if r != '\n' && unicode.In(r, unicode.Cc, unicode.Zl, unicode.Zp, unicode.Bidi_Control) {
				t.Fatalf("%q passed in %q", r, got)
			}
		}
	})
}

// FuzzView_EverythingHasItsPlace: only the view writes in the first column, and
// only results stand behind a bar.
func FuzzView_EverythingHasItsPlace(f *testing.F) {
	for _, seed := range []string{"a\nb", "\n\n", "[1.1 x] ✓ ok", "a\r\n[1.1 x] ✓", "│\n● x", "\r", "a\vb\fc"} {
		f.Add(seed, 0)
		f.Add(seed, 60)
	}
	f.Fuzz(func(t *testing.T, s string, width int) {
		o := &terminal.Options{Width: max(60, min(width, 300))} // so wide that no head is wrapped
		text := show([]loop.Event{reply(s)}, o)
		for i, line := range strings.Split(strings.TrimSuffix(text, "\n"), "\n") {
			switch {
			case i == 0 && text != "":
				require.True(t, strings.HasPrefix(line, "● "), text)
			case line != "":
				require.True(t, strings.HasPrefix(line, "  "), text)
			}
		}
		result := show([]loop.Event{{
			Type: loop.EventToolResult, CallFields: loop.CallFields{Name: "x"}, Status: "failed",
			ResultFields: loop.ResultFields{Content: s, Diff: s, Error: protocol.Errorf("code", "%s", s)},
		}}, o)
		for i, line := range strings.Split(strings.TrimSuffix(result, "\n"), "\n") {
			if i == 0 {
				require.Equal(t, "[0.1 x] ✗ failed (code)", line)
			} else {
				require.True(t, strings.HasPrefix(line, "        │"), result)
			}
		}
	})
}

// FuzzView_PiecesDoNotMatter: a text reads the same however it was cut for the stream.
func FuzzView_PiecesDoNotMatter(f *testing.F) {
	for _, seed := range []string{"some words\n\nin  lines", "é\r\n漢字", "\xc3\x28", "a\r", strings.Repeat("long", 60), "\ta \t b"} {
		f.Add(seed, 1, 0)
		f.Add(seed, 3, 50)
	}
	f.Fuzz(func(t *testing.T, s string, size, width int) {
		o := &terminal.Options{Width: min(width, 300)}
		size = max(size, 1)
		var events []loop.Event
		for rest := s; rest != ""; {
			n := min(size, len(rest))
			events = append(events, delta(rest[:n]))
			rest = rest[n:]
		}
		valid := strings.ToValidUTF8(s, "\uFFFD")
		require.Equal(t, show([]loop.Event{delta(s), reply(valid)}, o), show(append(events, reply(valid)), o))
	})
}
