package terminal

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/modeltext/prose"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// screen is a terminal that knows what a live view writes.
type screen struct {
	mu            sync.Mutex
	columns, rows int
	lines         [][]rune
	row           int
}

func (s *screen) size() (columns, rows int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.columns, s.rows
}

// Write implements [io.Writer].
func (s *screen) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	text := string(p)
	for text != "" {
		if at := sequence.FindStringIndex(text); at != nil && at[0] == 0 {
			s.act(text[:at[1]])
			text = text[at[1]:]
			continue
		}
		r := []rune(text)[0]
		text = text[len(string(r)):]
		s.put(r)
	}
	return len(p), nil
}

func (s *screen) act(code string) {
	switch code[len(code)-1] {
	case 'A':
		n := 0
		for _, digit := range code[2 : len(code)-1] {
			n = 10*n + int(digit-'0')
		}
		s.row -= n
	case 'J':
		s.lines = append(s.lines[:s.row:s.row], nil)
	}
}

func (s *screen) put(r rune) {
	if len(s.lines) == 0 {
		s.lines = [][]rune{nil}
	}
	switch {
	case r == '\r':
		return // only before the rest of the line is removed
	case r == '\n', len(s.lines[s.row]) == s.columns:
		s.row++
		s.lines = append(s.lines, nil)
	}
	if r != '\n' {
		s.lines[s.row] = append(s.lines[s.row], r)
	}
}

func (s *screen) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var b strings.Builder
	for _, line := range s.lines {
		b.WriteString(strings.TrimRight(string(line), " ") + "\n")
	}
	return strings.TrimRight(b.String(), "\n") + "\n"
}

// still is a live view whose clock stands, and whose screen changes with events only.
func still(t *testing.T, s *screen, o Options) (*View, *time.Time) {
	t.Helper()
	now := time.UnixMilli(0).UTC().Add(20 * time.Minute)
	o.Size, o.Live, o.Now = s.size, true, func() time.Time { return now }
	v := New(s, &o)
	v.live.end()
	return v, &now
}

func TestLive_WhatRunsIsSeenAndFolded(t *testing.T) {
	t.Parallel()
	s := &screen{columns: 80, rows: 24}
	v, now := still(t, s, Options{Cost: func(u protocol.Usage) float64 { return float64(u.Total()) / 1000 }})
	see := func(e loop.Event) { e.Turn, e.Step = 1, 1; v.Observe(e) }
	see(loop.Event{Type: loop.EventTurnStarted, StartFields: loop.StartFields{Input: "go"}})
	*now = now.Add(6 * time.Second)
	v.Notice("by the way")
	require.Equal(t, "› go\n\n! by the way\n⠋ thinking · 6 s\n", s.String())
	see(loop.Event{Type: loop.EventReplyFailed, ReplyFields: loop.ReplyFields{Usage: &protocol.Usage{InputTokens: 100}}})
	see(loop.Event{Type: loop.EventTextDelta, Text: "I **test"})
	require.Contains(t, s.String(), "● I **test\n⠋ replying")
	v.Output("a", []byte("one\n")) // workers are faster than who tells of calls
	see(loop.Event{Type: loop.EventModelReply, Text: "I **test** it.", ReplyFields: loop.ReplyFields{Usage: &protocol.Usage{InputTokens: 1500}}})
	see(loop.Event{Type: loop.EventToolCall, CallFields: loop.CallFields{CallID: "a", Name: "bash", Arguments: `{"command":"go test"}`}})
	see(loop.Event{Type: loop.EventToolCall, CallFields: loop.CallFields{CallID: "b", Index: 1, Name: "read", Arguments: `{"path":"a.go"}`}})
	see(loop.Event{Type: loop.EventToolQueued, CallFields: loop.CallFields{CallID: "a", Name: "bash"}})
	see(loop.Event{Type: loop.EventToolQueued, CallFields: loop.CallFields{CallID: "b", Index: 1, Name: "read"}})
	v.Output("a", []byte("two\n"))
	see(loop.Event{Type: loop.EventToolRunning, CallFields: loop.CallFields{CallID: "a", Name: "bash"}, ResultFields: loop.ResultFields{WorkerID: "w", Attempt: 1}})
	about, behind := v.Waiting("b")
	require.Equal(t, []string{"read a.go", "go test, 0 s"}, []string{about, behind})
	v.Output("a", []byte("10%\r20%\r\n\x1b[31mred\x1b[0m \x1b]52;c;eA==\x07\nlast"))
	*now = now.Add(12 * time.Second)
	v.Notice("again")
	require.True(t, strings.HasSuffix(s.String(), `! again
⠋ go test · 12 s
  │ one
  │ two
  │ 20%
  │ red
  │ last
· read a.go · behind: go test, 12 s
  turn 18 s · 1,600 tokens · $1.60
`), s.String())
	see(loop.Event{
		Type: loop.EventToolResult, CallFields: loop.CallFields{CallID: "a", Name: "bash"}, Status: "ok",
		ResultFields: loop.ResultFields{WorkerID: "w", Attempt: 1, Content: strings.Repeat("x\n", 50) + "[exit code 2]", Exit: "exit code 2"},
	})
	see(loop.Event{
		Type: loop.EventToolResult, CallFields: loop.CallFields{CallID: "b", Index: 1, Name: "read"},
		Status: "ok", ResultFields: loop.ResultFields{Content: "text"},
	})
	see(loop.Event{Type: loop.EventTurnEnded, Status: "answered"})
	v.Close()
	require.Equal(t, `› go

! by the way

● I test it.

! again
[1.1 bash] ✗ go test · exit code 2
           │ x
           │ x
           │ … 47 more lines …
           │ x
           │ [exit code 2]
[1.2 read] ✓ a.go
           │ text

✓ answered · 1 step · 2 tool calls (1 exit code not 0) · 18.0 s
`, s.String())
}

// Lines of a log that come while the model speaks stand by themselves, whole, and nothing of what
// it says is lost or changed: neither on a screen nor in a file.
func TestWrite_LinesOfALogAreNotInTheModelsText(t *testing.T) {
	t.Parallel()
	const lines, words = 20, 100
	for name, begin := range map[string]func(t *testing.T) (*View, fmt.Stringer){
		"in a file": func(*testing.T) (*View, fmt.Stringer) {
			var out strings.Builder
			return New(&out, nil), &out
		},
		"in words": func(*testing.T) (*View, fmt.Stringer) {
			s := &screen{columns: 40, rows: 24}
			return New(s, &Options{Size: s.size, Plain: true}), s
		},
		"live": func(*testing.T) (*View, fmt.Stringer) {
			s := &screen{columns: 40, rows: 24}
			return New(s, &Options{Size: s.size, Live: true}), s
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v, out := begin(t)
			v.Observe(loop.Event{Type: loop.EventTurnStarted, Turn: 1, StartFields: loop.StartFields{Input: "go"}})
			var group sync.WaitGroup
			half := make(chan struct{})
			group.Go(func() {
				for i := range lines {
					if i == lines/2 {
						<-half
					}
					_, err := fmt.Fprintf(v, "level=INFO line=%d\n", i)
					assert.NoError(t, err)
				}
			})
			var said, want []string
			for i := range words {
				said = append(said, fmt.Sprintf("word%d", i))
				v.Observe(loop.Event{Type: loop.EventTextDelta, Turn: 1, Step: 1, Text: said[i] + " "})
				if i == words/2 {
					close(half)
				}
			}
			group.Wait()
			v.Observe(loop.Event{Type: loop.EventModelReply, Turn: 1, Step: 1, Text: strings.Join(said, " ") + " "})
			v.Close()
			for i := range lines {
				want = append(want, fmt.Sprintf("level=INFO line=%d", i))
			}
			var logged, spoken []string
			for line := range strings.Lines(out.String()) {
				if line = strings.TrimSuffix(line, "\n"); strings.Contains(line, "level") {
					logged = append(logged, line)
				} else {
					spoken = append(spoken, strings.Fields(line)...)
				}
			}
			require.Equal(t, want, logged)
			require.Equal(t, said, spoken[len(spoken)-words:])
		})
	}
}

// A terminal that gets narrower wraps what stands there.
func TestLive_RegionIsFoundAgainAfterAResize(t *testing.T) {
	t.Parallel()
	var r region
	line := strings.Repeat("x", 70)
	require.Equal(t, "above\n"+line+"\n"+line, string(r.around([]byte("above\n"), []string{line, line}, 80)))
	require.Empty(t, r.around(nil, []string{line, line}, 80), "nothing has changed")
	require.Equal(t, "\r\x1b[3A\x1b[Jshort", string(r.around(nil, []string{"short"}, 40)))
	require.Equal(t, "\r\x1b[J", string(r.around(nil, nil, 40)))
	require.Empty(t, r.around(nil, nil, 40))
}

func TestLive_NothingIsWrittenBelowAQuestion(t *testing.T) {
	t.Parallel()
	s := &screen{columns: 60, rows: 24}
	v, _ := still(t, s, Options{})
	v.Observe(loop.Event{Type: loop.EventTurnStarted, StartFields: loop.StartFields{Input: "go"}})
	answered := v.Ask(Question{
		Reason: "it writes", Tool: "write", Arguments: `{"path":"a.txt","content":"one\nthree\n"}`, Answers: "Allow it?",
		Old: func(path string) ([]byte, bool) { return []byte("one\ntwo\n"), path == "a.txt" },
	})
	want := `› go

? it writes: write
  │ a.txt
  │ --- a/a.txt
  │ +++ b/a.txt
  │ @@ -1,2 +1,2 @@
  │  one
  │ -two
  │ +three
  Allow it?
`
	require.Equal(t, want, s.String())
	v.Notice("later")
	require.Equal(t, want, s.String())
	answered()
	require.Equal(t, want+"! later\n⠋ thinking · 0 s\n", s.String())
}

func TestAsk_AsAPersonReadsIt(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ tool, arguments, want string }{
		"a command":  {"bash", `{"command":"cd a &&\n\trm -rf x","cwd":"sub"}`, "  │ cd a &&\n  │     rm -rf x\n  │ {\"cwd\":\"sub\"}\n"},
		"a new file": {"write", `{"path":"b","content":"x\n"}`, "  │ b\n  │ +x\n"},
		"a file":     {"write", `{"path":"old","content":"x\n"}`, "  │ old\n  │ --- a/old\n  │ +++ b/old\n  │ @@ -1 +1 @@\n  │ -was\n  │ +x\n"},
		"edits": {
			"multi_edit", `{"path":"b","edits":[{"old":"x\ny","new":"z"},{"old":"a","new":"","replace_all":true}],"best_effort":true}`,
			"  │ b\n  │ 1 of 2\n  │ -x\n  │ -y\n  │ +z\n  │ 2 of 2\n  │ -a\n  │ {\"replace_all\":true}\n  │ {\"best_effort\":true}\n",
		},
		"edits that are none": {"multi_edit", `{"path":"b","edits":[7]}`, "  │ {\n  │   \"path\": \"b\",\n  │   \"edits\": [\n  │     7\n  │   ]\n  │ }\n"},
		"a document":          {"json_write", `{"path":"b","content":"{\"a\":1}"}`, "  │ b\n  │ +{\n  │ +  \"a\": 1\n  │ +}\n"},
		"a place in one":      {"json_write", `{"path":"b","query":"/a/-","content":"[x"}`, "  │ b at /a/-\n  │ +\"[x\"\n"},
		"a program":           {"bash", `{"cmd":"rm","args":["-rf","a b","it's"],"opts":{"cwd":"sub"}}`, "  │ rm -rf 'a b' 'it'\\''s'\n  │ {\"opts\":{\"cwd\":\"sub\"}}\n"},
		"another's command":   {"run_shell_command", `{"cmd":"rm -rf x"}`, "  │ rm -rf x\n"},
		"another's edit":      {"edit_file", `{"path":"b","search":"x","replace":"y"}`, "  │ b\n  │ -x\n  │ +y\n"},
		"another's file":      {"write_file", `{"path":"b","content":"x\n"}`, "  │ b\n  │ +x\n"},
		"an edit":             {"edit", `{"path":"b","old":"x\ny","new":"z"}`, "  │ b\n  │ -x\n  │ -y\n  │ +z\n"},
		"a patch":             {"edit", `{"path":"b","patch":"@@ -1 +1 @@\n-x\n+y\n"}`, "  │ b\n  │ @@ -1 +1 @@\n  │ -x\n  │ +y\n"},
		"any tool":            {"weather", `{"city":"Ulm"}`, "  │ {\n  │   \"city\": \"Ulm\"\n  │ }\n"},
		"no JSON":             {"bash", "rm \x1b[8m", "  │ rm ␛[8m\n"},
		"hidden text":         {"bash", `{"command":"true \u001b[8m; rm"}`, "  │ true ␛[8m; rm\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var out strings.Builder
			old := func(path string) ([]byte, bool) { return []byte("was\n"), path == "old" }
			New(&out, nil).Ask(Question{Reason: "why", Tool: c.tool, Arguments: c.arguments, Answers: "?", Old: old})
			require.Equal(t, "? why: "+c.tool+"\n"+c.want+"  ?\n", out.String())
		})
	}
	var out strings.Builder
	New(&out, nil).Ask(Question{Reason: "why", Tool: "write", Arguments: `{"path":"b","content":"x\n"}`, Answers: "?"})
	require.Equal(t, "? why: write\n  │ b\n  │ all that it will have:\n  │ x\n  ?\n", out.String(), "not as if it were new: nobody knows")
}

func TestMarkdown(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ said, want string }{
		"styles":       {"a **b** *c* `d` \\*e\\* &lt;", "● a b c `d` *e* <\n"},
		"headings":     {"# One\ntext\n## Two", "● # One\n\n  text\n\n  ## Two\n"},
		"lists":        {"- a\n- b\n  1. c\n  2. d\n\n  more\n", "● - a\n\n  - b\n    1. c\n    2. d\n\n    more\n"},
		"tight":        {"1. a\n2. b\n   - c\n", "● 1. a\n  2. b\n     - c\n"},
		"code":         {"```go\nfunc f() {\n\n\treturn\n}\n```\nend", "●   func f() {\n\n      return\n    }\n\n  end\n"},
		"quote":        {"> a\n>\n> b", "● > a\n  >\n  > b\n"},
		"table":        {"|a|b|\n|-|-|\n|one|`two`|\n", "● a    b\n  one  two\n"},
		"links":        {"[x](http://a/b) <http://c> ![i](d.png)", "● x (http://a/b) http://c i (d.png)\n"},
		"HTML":         {"a <b>c</b>\n\n<div>\n\nx", "● a <b>c</b>\n\n    <div>\n\n  x\n"},
		"escapes":      {"\x1b[31m &#27;[2J &#x9b; `&#27;` \u202e", "● ␛[31m ␛[2J › `&#27;` <U+202E>\n"},
		"its own line": {"a\n\n[1.1 bash] ✓ ok", "● a\n\n  [1.1 bash] ✓ ok\n"},
		"a wide table": {"|a|b|\n|-|-|\n|" + strings.Repeat("x ", 30) + "|y|\n", "● a · b\n  " + strings.TrimSpace(strings.Repeat("x ", 29)) + "\n  x · y\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := &screen{columns: 60, rows: 24}
			v, _ := still(t, s, Options{})
			v.Observe(loop.Event{Type: loop.EventModelReply, Text: c.said})
			require.Equal(t, c.want, s.String())
		})
	}
}

func FuzzMarkdown_NothingActsOnTheTerminal(f *testing.F) {
	for _, seed := range []string{"# a\n- b\n  > c\n", "&#27;[2J", "```\n\x1b[2J\n```", "|a|\n|-|\n|\x1b|", "[a](\x1b)", "<\x1b>", "1. \u202e"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, said string) {
		s := &screen{columns: 60, rows: 24}
		v, _ := still(t, s, Options{})
		v.Observe(loop.Event{Type: loop.EventModelReply, Text: said})
		for i, line := range strings.Split(strings.TrimSuffix(s.String(), "\n"), "\n") {
			require.False(t, strings.ContainsFunc(line, func(r rune) bool { return prose.VisibleRune(r) != string(r) }), "%q", line)
			require.True(t, line == "" || strings.HasPrefix(line, "  ") || i == 0, "%q stands in the first column", line)
		}
	})
}

// All lines of a new file are new: those of later edits, and those that a diff has no room for.
func TestTally_NewFilesCountWhole(t *testing.T) {
	t.Parallel()
	var sum tally
	sum.result(&loop.Event{
		Status: "ok", ResultFields: loop.ResultFields{Diff: "--- /dev/null\n+++ b/x\n@@ -0,0 +1,500 @@\n+a\n+b\n[... 99 bytes of the diff left out ...]\n"},
	})
	require.Equal(t, []change{{path: "x", added: 500, created: true, partial: false}}, sum.files)
	sum.result(&loop.Event{Status: "ok", ResultFields: loop.ResultFields{Diff: "--- a/x\n+++ b/x\n@@ -1,2 +1,3 @@\n-a\n+c\n+d\n b\n"}})
	require.Equal(t, []change{{path: "x", added: 501, created: true}}, sum.files)
}
