package terminal_test

import (
	"regexp"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/terminal"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// ownColor matches the escape sequences that the view itself writes.
var ownColor = regexp.MustCompile("\x1b\\[(?:0|1|2|31|32|33|36)m")

// hostile puts one text wherever texts come from somewhere else.
func hostile(s string) []loop.Event {
	usage := &protocol.Usage{InputTokens: -1}
	fault := &protocol.Error{Code: protocol.Code(s), Message: s}
	at := loop.Event{
		SessionID: protocol.SessionID(s), Turn: 1, Step: 1, StartFields: loop.StartFields{Model: s, Tools: []string{s}, Workspace: s, Input: s},
		Text: s, ReplyFields: loop.ReplyFields{ToolCalls: []loop.ToolCall{{ID: s, Name: s, Arguments: s}}, Usage: usage}, CallFields: loop.CallFields{CallID: protocol.CallID(s), Name: s, Arguments: s}, Status: s, ResultFields: loop.ResultFields{Content: s, Error: fault, WorkerID: protocol.WorkerID(s), Attempt: 2, Diff: s},
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
			Type: loop.EventToolResult, CallFields: loop.CallFields{Name: "x"}, Status: "failed", ResultFields: loop.ResultFields{Content: s, Diff: s, Error: protocol.Errorf("code", "%s", s)},
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
