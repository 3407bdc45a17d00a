package webui

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/html"

	"github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/fleet/report"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// evil is what a model, a tool, a file or a program may write: elements, attributes, addresses,
// partials of htmx, sequences of terminals, marks of direction, and what ends an element of ours.
const evil = `<script>alert(1)</script><img src=x onerror=alert(1)>"'><svg onload=alert(1)><hx-partial hx-target="body">gone</hx-partial>` +
	`</textarea></pre></article><iframe src=//elsewhere.example></iframe><form action=//elsewhere.example><a href="javascript:alert(1)">x</a>` +
	"[x](javascript:alert(1)) ![x](https://elsewhere.example/p.png) <div hx-get=/sign-out hx-trigger=load> {{template \"page\"}}" +
	"\x1b]8;;https://elsewhere.example\x07link\x1b]8;;\x07\x1b[2J\x1b[31mred\x1b[0m\x1b]52;c;aGk=\x07 a\u202egnp.exe \u2066x\u2069 \u200fy a\x00b\x07\x9b31m"

// planted fills each text of a value with a marker of its own and evil, and numbers with 1.
func planted(v reflect.Value, path string, markers *[]string) {
	switch v.Kind() {
	case reflect.String:
		if v.CanSet() {
			marker := fmt.Sprintf("marker%dx", len(*markers))
			*markers = append(*markers, marker+" "+path)
			v.SetString(marker + evil)
		}
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[time.Time]() {
			if v.CanSet() {
				v.Set(reflect.ValueOf(time.Now()))
			}
			return
		}
		for i := range v.NumField() {
			if field := v.Type().Field(i); field.IsExported() || field.Anonymous {
				planted(v.Field(i), path+"."+field.Name, markers)
			}
		}
	case reflect.Pointer:
		if v.CanSet() && len(*markers) < 2000 && strings.Count(path, ".") < 8 {
			v.Set(reflect.New(v.Type().Elem()))
			planted(v.Elem(), path, markers)
		}
	case reflect.Slice:
		if v.CanSet() && v.Type().Elem().Kind() != reflect.Uint8 && strings.Count(path, ".") < 8 {
			v.Set(reflect.MakeSlice(v.Type(), 1, 1))
			planted(v.Index(0), path, markers)
		}
	case reflect.Int, reflect.Int64, reflect.Uint64:
		if v.CanSet() && v.Kind() != reflect.Uint64 {
			v.SetInt(1)
		}
	default:
	}
}

// safe requires of what is served that it has only elements and attributes of our templates, and no
// character that shows nothing or changes how others are shown.
func safe(t *testing.T, name, body string) {
	t.Helper()
	require.False(t, strings.ContainsFunc(body, unseen), name)
	root, err := html.Parse(strings.NewReader(body))
	require.NoError(t, err)
	for node := range root.Descendants() {
		if node.Type != html.ElementNode {
			continue
		}
		require.NotContains(t, []string{"script", "iframe", "object", "embed", "base", "frame", "style", "link", "meta", "hx-partial"}, node.Data, name)
		for _, a := range node.Attr {
			require.False(t, strings.HasPrefix(a.Key, "on") || a.Key == "style", "%s: %s %s", name, node.Data, a.Key)
			value := strings.ToLower(strings.TrimSpace(a.Val))
			switch a.Key {
			case "src", "action", "formaction", "hx-get", "hx-post", "hx-sse:connect", "hx-delete", "hx-put":
				require.True(t, strings.HasPrefix(a.Val, "/ui/"), "%s: %s %s=%s", name, node.Data, a.Key, a.Val)
			case "href":
				require.False(t, strings.HasPrefix(value, "javascript:") || strings.HasPrefix(value, "data:") || strings.HasPrefix(value, "//"), "%s: %s %s", name, node.Data, a.Val)
			}
		}
	}
}

// TestPages_EachFieldIsText plants in each text of each event, and of each report, what must stay
// text, and serves all parts of pages that show them.
func TestPages_EachFieldIsText(t *testing.T) {
	t.Parallel()
	u := New(Options{Base: "/ui"}).ui
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/ui/sessions/s", nil)
	var markers []string
	c := newConversation("s")
	c.add(&loop.Event{Type: loop.EventTurnStarted, Turn: 1, Time: time.Now()}, "1-0")
	for i, kind := range []loop.EventType{
		loop.EventSessionStarted, loop.EventTurnStarted, loop.EventInputAdded, loop.EventTextDelta, loop.EventReasoningDelta, loop.EventModelReply, loop.EventNativeCall,
		loop.EventToolCall, loop.EventToolQueued, loop.EventToolRunning, loop.EventWorkerLost, loop.EventApprovalAsked, loop.EventQuestionAsked, loop.EventAgentMoved,
		loop.EventPolicyDecision, loop.EventCallJudged, loop.EventToolResult, loop.EventJobEnded, loop.EventCompacted, loop.EventRewound, loop.EventSessionForked,
		loop.EventReplyFailed, loop.EventBudgetLow, loop.EventAnswerRefused, loop.EventHookDecided, loop.EventModelWaits, loop.EventCallResolved, loop.EventTurnEnded,
	} {
		for _, open := range []bool{true, false} { // one call stays as it is, and one has a result
			e := &loop.Event{}
			planted(reflect.ValueOf(e).Elem(), string(kind), &markers)
			e.Type, e.Turn, e.Step = kind, 2, 1
			if e.CallID = protocol.CallID("call-ended" + evil); open {
				e.CallID = protocol.CallID(fmt.Sprintf("call-%d%s", i, evil))
			}
			if kind == loop.EventToolResult || kind == loop.EventJobEnded {
				e.Job, e.Status = "", "ok"+evil
			}
			if e.Question != nil {
				e.Question.Schema = []byte(`{"properties":{"a":{"type":"string","title":` + quoted(evil) + `,"description":` + quoted(evil) +
					`,"default":` + quoted(evil) + `,"enum":[` + quoted(evil) + `]},` + quoted(evil) + `:{"type":"boolean"}}}`)
			}
			if kind == loop.EventTurnStarted && !open || kind == loop.EventTurnEnded && open {
				continue
			}
			if c.add(e, "2-0"); open && kind == loop.EventApprovalAsked {
				c.calls[e.CallID].Agent = true
			}
			if of := c.calls[e.CallID]; of != nil && of.Open() {
				c.write(e.CallID, &fleet.Output{Data: []byte(evil)})
				c.write(e.CallID, &fleet.Output{Data: []byte(evil), Attempt: 2})
			}
		}
	}
	of, file, merged := &report.Session{}, report.File{}, report.MergedFiles{}
	planted(reflect.ValueOf(of).Elem(), "Session", &markers)
	planted(reflect.ValueOf(&file).Elem(), "File", &markers)
	planted(reflect.ValueOf(&merged).Elem(), "Merged", &markers)
	who := viewer{"key", true}
	p := &sessionPage{
		Session: "s", kept: &kept{id: "s", of: c}, who: who, Of: of, Turns: c.copied(position{}, position{}, 0, who),
		Live: true, Others: []report.Session{*of}, Listed: c.order, Tab: "session",
	}
	planted(reflect.ValueOf(&p.Effects).Elem(), "Effects", &markers)
	p.Tree = []branch{{Call: c.order[0], Session: of, Branches: []branch{{Call: c.order[0]}}}}
	p.Call = c.order[0]
	made := &report.Trace{}
	planted(reflect.ValueOf(made).Elem(), "Trace", &markers)
	p.Chart = chartOf("s", made, 0, 0, maxNow)
	files := &filesPage{
		sessionPage: p, At: protocol.CallID(evil), From: protocol.CallID(evil), Dir: evil,
		Entries: []entry{{File: file, Name: evil}, {File: report.File{Path: evil, Type: "file"}, Name: evil}},
		Changed: []report.File{file}, Compared: true,
		Changes: []report.Change{{Calls: []protocol.CallID{protocol.CallID(evil)}}},
	}
	files.differences("new file " + evil + "\n+" + evil + "\n-" + evil + "\n")
	text := &filesPage{sessionPage: p, Path: evil, Lines: []string{evil, "b"}, First: 1}
	list := &sessionList{
		sessionFilter: sessionFilter{evil, evil, evil, evil, evil, evil}, Sessions: []report.Session{*of},
		States: []string{evil}, Models: []string{evil}, Tenants: []string{evil}, Shown: evil, Fault: evil,
	}
	list.Chips = list.chips()
	planted(reflect.ValueOf(&list.Found).Elem(), "Found", &markers)
	asked := report.Question{}
	planted(reflect.ValueOf(&asked).Elem(), "Question", &markers)
	waits := waitsPage{New: []waiting{u.waitingOf(r, &asked)}, Gone: []string{evil}, Shown: evil}
	asked.Question = nil
	waits.New = append(waits.New, u.waitingOf(r, &asked))
	for _, part := range []struct {
		page, block string
		data        any
	}{
		{"session", "main", p},
		{"session", "now", p.Chart},
		{"session", "facts", p},
		{"timeline", "main", p},
		{"calls-of", "main", p},
		{"agents", "main", p},
		{"details", "main", p},
		{"call", "main", p},
		{"call", "about-call", p.Call},
		{"files", "main", files},
		{"files", "main", text},
		{"compare", "main", files},
		{"sessions", "main", list},
		{"waits", "main", waits},
		{"confirm", "main", &confirmPage{sessionPage: p, Act: "merge", Fork: protocol.SessionID(evil), Planned: &merged, Diff: evil, Fault: evil, LeftOver: p.Effects}},
		{"confirm", "main", &confirmPage{sessionPage: p, Act: "cancel-call", At: protocol.CallID(evil)}},
		{"output", "main", &outputPage{sessionPage: p, Part: "output", Text: evil, Prev: -1}},
		{"output", "main", &outputPage{sessionPage: p, Part: "output", Find: evil, Hits: []hit{{1, 1, evil}}}},
		{"error", "main", evil},
		{"error", "fault", evil},
	} {
		body, err := u.render(r, part.page, part.block, view{Title: evil, Data: part.data})
		require.NoError(t, err, "%s %s", part.page, part.block)
		safe(t, part.page+" "+part.block, string(body))
	}
	for _, marked := range []string{
		"tool_call.CallFields.Name", "approval_asked.Text", "tool_result.ResultFields.Content", "turn_started.StartFields.Input", "model_reply.Text",
	} {
		require.Contains(t, strings.Join(markers, "\n"), marked)
	}
}

func quoted(text string) string { return strings.ReplaceAll(fmt.Sprintf("%+q", text), `\x`, `\u00`) }

// TestOutput_IsReadByPages: of 200 MB in a line a page has 64 KiB, and a search reads all of it in
// the same room.
func TestOutput_IsReadByPages(t *testing.T) {
	t.Parallel()
	const size = 200 << 20
	of := func() *endless { return &endless{left: size} }
	o := &outputPage{Size: size}
	require.NoError(t, o.read(of(), 100<<20+5))
	require.Len(t, o.Text, pageBytes)
	require.Equal(t, int64(100<<20+5), o.At)
	require.Equal(t, o.At+pageBytes, o.Next)
	o = &outputPage{Size: size}
	require.NoError(t, o.read(of(), 1<<60))
	require.Zero(t, o.Next)
	require.Equal(t, int64(size), o.To())
	o = &outputPage{Size: size, Find: "needle"}
	require.NoError(t, o.search(of()))
	require.Len(t, o.Hits, 1)
	require.Equal(t, int64(size-6), o.Hits[0].At+int64(strings.Index(o.Hits[0].Text, "NEEDLE")))
}

// endless is a line of many letters that ends with a word.
type endless struct{ left int }

func (e *endless) Read(p []byte) (int, error) {
	const word = "NEEDLE"
	n := 0
	for n < len(p) && e.left > 0 {
		if p[n] = 'x'; e.left <= len(word) {
			p[n] = word[len(word)-e.left]
		}
		n++
		e.left--
	}
	if n == 0 {
		return 0, io.EOF
	}
	return n, nil
}
