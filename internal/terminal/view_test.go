package terminal_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/term"

	"github.com/toolfleet/toolfleet/internal/terminal"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

func delta(text string) loop.Event {
	return loop.Event{Type: loop.EventTextDelta, Turn: 1, Step: 1, Text: text}
}

func reply(text string) loop.Event {
	return loop.Event{Type: loop.EventModelReply, Turn: 1, Step: 1, Text: text}
}

func TestView_ReplyIsShownOnce(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		events []loop.Event
		want   string
	}{
		"streamed":                {[]loop.Event{delta("Hel"), delta("lo."), reply("Hello.")}, "● Hello.\n"},
		"not streamed":            {[]loop.Event{reply("Hello.")}, "● Hello.\n"},
		"the end was lost":        {[]loop.Event{delta("Hel"), reply("Hello.")}, "● Hello.\n"},
		"only space was streamed": {[]loop.Event{delta("\n"), reply("Hello.")}, "● Hello.\n"},
		"no more than a nothing":  {[]loop.Event{delta(""), reply("Hello.")}, "● Hello.\n"},
		"space differs":           {[]loop.Event{delta("\nHello.\n"), reply("Hello.")}, "● Hello.\n"},
		"a rune in two pieces":    {[]loop.Event{delta("\xc3"), delta("\xa9"), reply("é")}, "● é\n"},
		"half a rune":             {[]loop.Event{delta("a\xc3"), reply("a\uFFFD")}, "● a\uFFFD\n"},
		"a line end in two":       {[]loop.Event{delta("a\r"), delta("\nb"), reply("a\r\nb")}, "● a\n  b\n"},
		"a piece was lost": {
			[]loop.Event{delta("lo."), reply("Hello.")},
			"● lo.\n(parts of the text above were lost; this is the whole text:)\n\n● Hello.\n",
		},
		"no text":           {[]loop.Event{reply("")}, ""},
		"space only":        {[]loop.Event{delta(" \n\n"), reply(" \n\n")}, ""},
		"paragraphs":        {[]loop.Event{reply("\n\na\n\n\n\n  b\n\n")}, "● a\n\n    b\n"},
		"the model stopped": {[]loop.Event{delta("Hel"), {Type: loop.EventToolQueued, Turn: 1, Step: 2, CallFields: loop.CallFields{Name: "x"}}}, "● Hel\n[2.1 x] · queued\n"},
		"the next step":     {[]loop.Event{delta("a"), {Type: loop.EventTextDelta, Turn: 1, Step: 2, Text: "b"}, {}}, "● a\n\n● b\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, c.want, show(c.events, nil), "in a log")
			require.Equal(t, c.want, show(c.events, &terminal.Options{Width: 80}), "on a screen")
		})
	}
}

func thinks(step int, text string) loop.Event {
	return loop.Event{Type: loop.EventReasoningDelta, Turn: 1, Step: step, Text: text}
}

func TestView_ReasoningStandsBeforeTheText(t *testing.T) {
	t.Parallel()
	events := []loop.Event{
		thinks(1, "I lo"), thinks(1, "ok.\nThen"), delta("Hello."), reply("Hello."),
		thinks(2, "Only this"),
		{Type: loop.EventModelReply, Turn: 1, Step: 2},
	}
	want := "○ I look.\n  Then\n\n● Hello.\n\n○ Only this\n"
	require.Equal(t, want, show(events, nil))
	require.Equal(t, want, show(events, &terminal.Options{Width: 80}))
	require.Contains(t, show(events, &terminal.Options{Width: 80, Color: true}), "\x1b[2mlook.\x1b[0m", "dimmed")
}

func TestView_CutReplySaysSo(t *testing.T) {
	t.Parallel()
	cut := reply("Hello")
	cut.Finish = "length"
	require.Equal(t, "● Hello\n  (cut off at the limit of output tokens)\n", show([]loop.Event{delta("Hello"), cut}, nil))
}

// TestView_TextComesAtOnce: without wrapping, every piece is there when it was told.
func TestView_TextComesAtOnce(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	v := terminal.New(&out, nil)
	v.Observe(delta("Hel"))
	require.Equal(t, "● Hel", out.String())
	v.Observe(delta("lo, wor"))
	require.Equal(t, "● Hello, wor", out.String())
}

func TestView_WrapsBetweenWords(t *testing.T) {
	t.Parallel()
	text := strings.Repeat("word ", 12) + strings.Repeat("x", 50) + " end"
	want := "● word word word word word word word\n" +
		"  word word word word word\n" +
		"  " + strings.Repeat("x", 38) + "\n" +
		"  " + strings.Repeat("x", 12) + " end\n"
	require.Equal(t, want, show([]loop.Event{reply(text)}, &terminal.Options{Width: 40}))
	require.Contains(t, show([]loop.Event{reply(text)}, &terminal.Options{Width: 1}), "\n  word word word\n", "1 counts as 20")
}

func TestView_NoticeInTheMiddleOfText(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	v := terminal.New(&out, nil)
	v.Observe(delta("I am"))
	v.Notice("no worker took %s for %d s\nis one running? \x1b[31m", "[1.1 bash]", 2)
	v.Observe(delta(" still here"))
	v.Observe(reply("I am still here"))
	require.Equal(t, "● I am\n! no worker took [1.1 bash] for 2 s\n  is one running? ␛[31m\n   still here\n", out.String())
}

// What nobody should overlook is painted to its end, and for a screen reader begins with a word.
func TestView_AnAlertStandsOut(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		options terminal.Options
		want    string
	}{
		"in colour": {terminal.Options{Color: true}, "\x1b[1;33m!\x1b[0m \x1b[1;33mlook:\x1b[0m\n  \x1b[1;33ma\x1b[0m \x1b[1;33m␛[0m\x1b[0m\n"},
		"without":   {terminal.Options{}, "! look:\n  a ␛[0m\n"},
		"in words":  {terminal.Options{Plain: true, Color: true}, "Warning: look:\n  a ␛[0m\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var out strings.Builder
			terminal.New(&out, &c.options).Alert("look:\na \x1b[0m")
			require.Equal(t, c.want, out.String())
		})
	}
}

func TestView_Ends(t *testing.T) {
	t.Parallel()
	began := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	turn := func(n int) loop.Event {
		return loop.Event{Type: loop.EventTurnStarted, Turn: n, StartFields: loop.StartFields{Input: "Go"}, Time: began.Add(time.Duration(n) * time.Minute)}
	}
	end := func(kind loop.EventType, n int, outcome loop.Outcome, fault *protocol.Error) loop.Event {
		return loop.Event{
			Type: kind, Turn: n, Step: n, Status: string(outcome), ResultFields: loop.ResultFields{Error: fault},
			Time:        began.Add(time.Duration(n)*time.Minute + 1500*time.Millisecond),
			ReplyFields: loop.ReplyFields{Usage: &protocol.Usage{InputTokens: 1000, OutputTokens: 234}},
		}
	}
	fault := protocol.Errorf(protocol.CodeModelFailed, "401: bad key\nset OPENAI_API_KEY")
	const numbers = "0 tool calls · 1,234 tokens (1,000 in, 234 out) · "
	for name, c := range map[string]struct {
		events []loop.Event
		want   string
	}{
		"the end of the only turn ends the session": {
			[]loop.Event{turn(1), end(loop.EventTurnEnded, 1, loop.OutcomeAnswered, nil), end(loop.EventSessionEnded, 1, loop.OutcomeAnswered, nil)},
			"› Go\n\n✓ answered · 1 step · " + numbers + "1.5 s\n",
		},
		"a turn that failed": {
			[]loop.Event{turn(1), end(loop.EventTurnEnded, 1, loop.OutcomeFailed, fault)},
			"› Go\n\n✗ failed · 1 step · " + numbers + "1.5 s\n  model_failed: 401: bad key\n  set OPENAI_API_KEY\n",
		},
		"a turn that never ended": {
			[]loop.Event{turn(1), end(loop.EventSessionEnded, 1, loop.OutcomeInterrupted, nil)},
			"› Go\n\n■ interrupted · 0 steps · " + numbers + "1.5 s\n",
		},
		"a session that ended before it began": {
			[]loop.Event{end(loop.EventSessionEnded, 1, loop.OutcomeFailed, fault)},
			"✗ failed · 0 steps · " + numbers + "0.0 ms\n  model_failed: 401: bad key\n  set OPENAI_API_KEY\n",
		},
		"two turns are summed up": {
			[]loop.Event{
				turn(1), reply(""), end(loop.EventTurnEnded, 1, loop.OutcomeAnswered, nil),
				turn(2), reply(""), end(loop.EventTurnEnded, 2, loop.OutcomeLimitReached, nil),
				end(loop.EventSessionEnded, 2, loop.OutcomeLimitReached, nil),
			},
			"› Go\n\n✓ answered · 1 step · " + numbers + "1.5 s\n\n› Go\n\n■ limit reached · 2 steps · " + numbers + "1.5 s\n\n" +
				"■ session: 2 turns · limit reached · 2 steps · " + numbers + "1 min 2 s\n",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for i := range c.events {
				if c.events[i].Type == loop.EventModelReply {
					c.events[i].Time = c.events[i-1].Time
				}
			}
			require.Equal(t, c.want, show(c.events, nil))
		})
	}
}

func TestView_ChangedFilesAreSummedUp(t *testing.T) {
	t.Parallel()
	r := newRecording()
	r.start("Go")
	r.silent("")
	for i := range 25 {
		r.result(loop.Event{
			CallFields: loop.CallFields{Index: i, Name: "edit"}, ResultFields: loop.ResultFields{
				Content: "done", Diff: fmt.Sprintf("--- a/f%d\n+++ b/f%d\n@@ -1 +1,2 @@\n-a\n+b\n+c\n", i%23, i%23),
			},
		}, 0, 1)
	}
	r.end(loop.OutcomeAnswered, "", 0, 0, nil)
	got := show(r.events, nil)
	require.Contains(t, got, "  changed  f0   +4 −2\n           f1   +4 −2\n           f2   +2 −1\n")
	require.True(t, strings.HasSuffix(got, "           f19  +2 −1\n           … 3 more files\n"), got)
}

// What a turn changed in a copy is shown when it has come back, and not before.
func TestView_ChangesOfACopyAreShownWhenTheyAreBack(t *testing.T) {
	t.Parallel()
	r := newRecording()
	r.start("Go")
	r.silent("")
	r.result(loop.Event{CallFields: loop.CallFields{Name: "edit"}, ResultFields: loop.ResultFields{Content: "done", Diff: "--- a/f\n+++ b/f\n@@ -1 +1,2 @@\n-a\n+b\n+c\n"}},
		0, 1)
	r.end(loop.OutcomeAnswered, "", 0, 0, nil)
	var out bytes.Buffer
	view := terminal.New(&out, nil)
	view.DeferChanges()
	for _, e := range r.events {
		view.Observe(e)
	}
	require.NotContains(t, out.String(), "changed")
	view.ShowChanges([]terminal.Changed{{Path: "f"}, {Path: "made", Created: true}, {Path: "gone", Gone: true}, {Path: "other"}},
		func(path string) (terminal.File, bool) { return terminal.File{Lines: -1}, path != "gone" })
	require.Contains(t, out.String(), "  changed  f      +2 −1\n           made          new\n           gone          deleted\n           other\n")
}

// Commands change files, too: a new file has the lines that it has now, and where something was
// changed behind a tool's report the numbers are not all.
func TestView_NumbersAreOfTheFilesAsTheyAre(t *testing.T) {
	t.Parallel()
	r := newRecording()
	r.start("Go")
	r.silent("")
	for i, diff := range []string{
		"--- /dev/null\n+++ b/made\n@@ -0,0 +1 @@\n+a\n", "--- a/edited\n+++ b/edited\n@@ -1 +1 @@\n-a\n+b\n",
		"--- a/later\n+++ b/later\n@@ -1 +1 @@\n-a\n+b\n", "--- a/command\n+++ b/command\n@@ -1 +1 @@\n-a\n+b\n",
	} {
		r.result(loop.Event{CallFields: loop.CallFields{Index: i, Name: "edit"}, ResultFields: loop.ResultFields{Content: "done", Diff: diff}}, 0, 1)
	}
	reported := r.events[len(r.events)-1].Time
	r.end(loop.OutcomeAnswered, "", 0, 0, nil)
	var out bytes.Buffer
	view := terminal.New(&out, nil)
	view.DeferChanges()
	for _, e := range r.events {
		view.Observe(e)
	}
	now := map[string]terminal.File{
		"made": {Lines: 3, Modified: reported.Add(time.Second)}, "edited": {Lines: 1, Modified: reported.Add(-time.Hour)},
		"later": {Lines: 9, Modified: reported.Add(time.Second)}, "command": {Lines: 7}, "found": {Lines: 2},
	}
	view.ShowChanges([]terminal.Changed{{Path: "made", Created: true}, {Path: "command", Created: true}, {Path: "found", Created: true}},
		func(path string) (terminal.File, bool) { return now[path], true })
	require.Contains(t, out.String(), "  changed  made     +3 −0  new\n           edited   +1 −1\n           later    +1 −1  and more\n"+
		"           command  +7 −0  new\n           found    +2 −0  new\n")
}

func TestView_LongDiffIsCut(t *testing.T) {
	t.Parallel()
	r := newRecording()
	r.silent("")
	r.result(loop.Event{
		CallFields: loop.CallFields{Name: "edit"}, ResultFields: loop.ResultFields{Diff: "--- a/f\n+++ b/f\n@@ -0,0 +1,500 @@\n" + strings.Repeat("+x\n", 500)},
	}, 0, 1)
	got := show(r.events, nil)
	require.Equal(t, 1+60+1, strings.Count(got, "\n"), got)
	require.True(t, strings.HasSuffix(got, "│ … 443 more lines of the diff\n"), got)
}

func TestView_StatusesHaveTheirMarks(t *testing.T) {
	t.Parallel()
	marks := map[protocol.Status]string{
		protocol.StatusOK: "✓ ok", protocol.StatusFailed: "✗ failed", protocol.StatusTimeout: "✗ timeout",
		protocol.StatusRejected: "✗ rejected", protocol.StatusCancelled: "■ cancelled",
		protocol.StatusOutcomeUnknown: "? outcome_unknown", "from_tomorrow": "? from_tomorrow",
	}
	for _, status := range append(wire.Statuses(), "from_tomorrow") {
		want, ok := marks[status]
		require.True(t, ok, "no mark for %s", status)
		require.Equal(t, "[0.1 x] "+want+"\n", show([]loop.Event{
			{Type: loop.EventToolResult, CallFields: loop.CallFields{Name: "x"}, Status: string(status)},
		}, nil))
	}
}

// TestView_FailureIsShownInFull: the message, whatever its length, and once only.
func TestView_FailureIsShownInFull(t *testing.T) {
	t.Parallel()
	r := newRecording()
	message := strings.Repeat("every word of it counts\n", 30) + "the last"
	r.result(loop.Event{
		CallFields: loop.CallFields{Name: "x"}, Status: "failed",
		ResultFields: loop.ResultFields{Error: protocol.Errorf(protocol.CodeToolFailed, "%s", message)},
	}, 0, 1)
	got := show(r.events, nil)
	require.Equal(t, 30, strings.Count(got, "every word of it counts\n"))
	require.Equal(t, 1, strings.Count(got, "the last\n"))
	require.Contains(t, got, "│ Next: act on the message.\n")

	r.events[0].Content = "in another form"
	require.Contains(t, show(r.events, nil), "│ in another form\n")
}

func TestView_ClockIsForEventsWithoutTime(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	clock := func() time.Time { now = now.Add(time.Second); return now }
	got := show([]loop.Event{
		{Type: loop.EventTurnStarted, Turn: 1}, {Type: loop.EventTurnEnded, Turn: 1, Status: "answered"},
	}, &terminal.Options{Now: clock})
	require.Equal(t, "✓ answered · 0 steps · 0 tool calls · 1.0 s\n", got)
}

// failingWriter refuses its second write, and counts.
type failingWriter struct{ writes int }

func (f *failingWriter) Write(p []byte) (int, error) {
	if f.writes++; f.writes == 2 {
		return 0, errors.New("pipe is closed")
	}
	return len(p), nil
}

func TestView_IsSilentAfterAFailedWrite(t *testing.T) {
	t.Parallel()
	var w failingWriter
	v := terminal.New(&w, nil)
	for _, e := range realistic() {
		v.Observe(e)
	}
	v.Notice("still there?")
	require.Equal(t, 2, w.writes)
}

// writes keeps each write.
type writes []string

func (w *writes) Write(p []byte) (int, error) {
	*w = append(*w, string(p))
	return len(p), nil
}

// TestView_EventIsOneWrite: so that another writer cannot cut into its lines.
func TestView_EventIsOneWrite(t *testing.T) {
	t.Parallel()
	for _, e := range realistic() {
		var w writes
		v := terminal.New(&w, &terminal.Options{Color: true})
		v.Observe(e)
		require.LessOrEqual(t, len(w), 1, "%s", e.Type)
	}
	var w writes
	v := terminal.New(&w, nil)
	v.Observe(loop.Event{Type: "from_tomorrow"})
	require.Empty(t, w)
}

func TestView_NoticesMayComeFromAnywhere(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	v := terminal.New(&out, nil)
	var group sync.WaitGroup
	group.Go(func() {
		for range 50 {
			v.Notice("a notice")
		}
	})
	for _, e := range realistic() {
		v.Observe(e)
	}
	group.Wait()
	require.Equal(t, 50, strings.Count(out.String(), "! a notice\n"))
}

func TestColorWanted(t *testing.T) {
	t.Parallel()
	file, err := os.Create(filepath.Join(t.TempDir(), "log"))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, file.Close()) })
	for name, c := range map[string]struct {
		env                  map[string]string
		wantFile, wantScreen bool
	}{
		"nothing set":                 {nil, false, true},
		"NO_COLOR":                    {map[string]string{"NO_COLOR": "1"}, false, false},
		"NO_COLOR, any value":         {map[string]string{"NO_COLOR": "0"}, false, false},
		"NO_COLOR empty":              {map[string]string{"NO_COLOR": ""}, false, true},
		"NO_COLOR beats force":        {map[string]string{"NO_COLOR": "1", "FORCE_COLOR": "1", "CLICOLOR_FORCE": "1"}, false, false},
		"FORCE_COLOR":                 {map[string]string{"FORCE_COLOR": "3"}, true, true},
		"FORCE_COLOR=0":               {map[string]string{"FORCE_COLOR": "0"}, false, false},
		"FORCE_COLOR=false":           {map[string]string{"FORCE_COLOR": "false"}, false, false},
		"CLICOLOR_FORCE":              {map[string]string{"CLICOLOR_FORCE": "1"}, true, true},
		"CLICOLOR_FORCE=0":            {map[string]string{"CLICOLOR_FORCE": "0"}, false, true},
		"force beats a dumb terminal": {map[string]string{"CLICOLOR_FORCE": "1", "TERM": "dumb"}, true, true},
		"dumb":                        {map[string]string{"TERM": "dumb"}, false, false},
		"xterm":                       {map[string]string{"TERM": "xterm-256color"}, false, true},
		"CLICOLOR=0":                  {map[string]string{"CLICOLOR": "0"}, false, false},
		"CLICOLOR=1":                  {map[string]string{"CLICOLOR": "1"}, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			getenv := func(key string) string { return c.env[key] }
			require.Equal(t, c.wantFile, terminal.ColorWanted(file, getenv), "a file")
			require.Equal(t, c.wantFile, terminal.ColorWanted(nil, getenv), "nothing")
			if screen := pseudoTerminal(t); screen != nil {
				require.Equal(t, c.wantScreen, terminal.ColorWanted(screen, getenv), "a terminal")
			}
		})
	}
	require.Zero(t, terminal.Width(file))
	require.Zero(t, terminal.Width(nil))
}

// pseudoTerminal returns a terminal; nil where there is none to be had.
func pseudoTerminal(t *testing.T) *os.File {
	t.Helper()
	file, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Logf("colours on a terminal are not tested: %v", err)
		return nil
	}
	t.Cleanup(func() { _ = file.Close() })
	if !term.IsTerminal(int(file.Fd())) {
		t.Log("colours on a terminal are not tested: /dev/ptmx is none")
		return nil
	}
	return file
}

func TestHunksIn(t *testing.T) {
	t.Parallel()
	diff := "--- a/x.go\n+++ b/x.go\n@@ -1,2 +1,2 @@\n one\n-two\n+2\n@@ -9 +9,2 @@\n nine\n+-- ten\n" +
		"--- /dev/null\n+++ b/new\n@@ -0,0 +1 @@\n+made\n--- a/old\n+++ /dev/null\n@@ -1 +0,0 @@\n-gone\n"
	require.Equal(t, []terminal.Hunk{
		{Path: "x.go", Line: 1, Old: "one\ntwo\n", New: "one\n2\n"},
		{Path: "x.go", Line: 9, Old: "nine\n", New: "nine\n-- ten\n"},
		{Path: "new", Line: 1, New: "made\n", Created: true},
		{Path: "old", Line: 1, Old: "gone\n"},
	}, terminal.HunksIn(diff))
	require.Empty(t, terminal.HunksIn("[... cut]"))
}

// TestView_TheCallsOfAReplyAreShownWithIt: each call of a reply has its line from the reply on, in
// the order of the reply and once, also while one of them waits for a person.
func TestView_TheCallsOfAReplyAreShownWithIt(t *testing.T) {
	t.Parallel()
	asked := reply("I do three things.")
	var calls []loop.Event
	for i, command := range []string{"echo one", "touch two", "echo three"} {
		call := loop.ToolCall{ID: fmt.Sprint("t", i), Name: "bash", Arguments: `{"command":"` + command + `"}`}
		asked.ToolCalls = append(asked.ToolCalls, call)
		calls = append(calls, loop.Event{
			Type: loop.EventToolCall, Turn: 1, Step: 1,
			CallFields: loop.CallFields{CallID: protocol.CallID(call.ID), ToolCallID: call.ID, Index: i, Name: "bash", Arguments: call.Arguments},
		})
	}
	lines := "● I do three things.\n\n[1.1 bash] › echo one\n[1.2 bash] › touch two\n[1.3 bash] › echo three\n"
	require.Equal(t, lines, show([]loop.Event{asked}, nil), "none was sent")
	require.Equal(t, lines, show([]loop.Event{asked, calls[0], calls[1], calls[2]}, nil))
	early := show([]loop.Event{delta("I do three things."), calls[0], asked, calls[1], calls[2]}, nil)
	require.Equal(t, "● I do three things.\n[1.1 bash] › echo one\n\n[1.2 bash] › touch two\n[1.3 bash] › echo three\n", early, "one was sent before the reply was whole")
	ended := calls[2]
	ended.Type, ended.Status = loop.EventToolResult, "ok"
	require.Contains(t, show([]loop.Event{asked, calls[0], calls[1], calls[2], ended}, nil), lines)
}
