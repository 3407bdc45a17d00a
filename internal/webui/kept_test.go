package webui_test

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"mime/multipart"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/natsio/natsiotest"
	"github.com/toolfleet/toolfleet/internal/session/journal"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools/policy"
	"github.com/toolfleet/toolfleet/pkg/worker"
)

// shared is the pages of a fleet that other processes use, too.
type shared struct {
	*site

	fleet   *natsiotest.Fleet
	journal *journal.Journal
	last    map[protocol.SessionID]uint64
}

func startShared(t *testing.T) *shared {
	t.Helper()
	f := natsiotest.New(t, natsio.Topology{})
	s := &shared{fleet: f, last: map[protocol.SessionID]uint64{}}
	s.site = startWith(t, s.process(t))
	_, err := s.client.StartWorker(t.Context(), worker.Options{Driver: "process", Slots: 2})
	require.NoError(t, err)
	s.journal, err = journal.Open(t.Context(), f.NC, f.Name)
	require.NoError(t, err)
	return s
}

// process is a client of its own.
func (s *shared) process(t *testing.T) *fleet.Client {
	t.Helper()
	client, err := fleet.Connect(t.Context(), fleet.Options{Conn: s.fleet.Connect(), Fleet: s.fleet.Name})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, client.Close()) })
	return client
}

// journaled appends events to a session, each as a message.
func (s *shared) journaled(id protocol.SessionID, events ...loop.Event) {
	s.t.Helper()
	for _, e := range events {
		e.SessionID, e.Time = id, time.Now()
		last, err := s.journal.Append(s.t.Context(), id, s.last[id], e)
		require.NoError(s.t, err)
		s.last[id] = last
	}
}

// aTurn is a turn with a call.
func aTurn(n int, text string) []loop.Event {
	id := fmt.Sprint("c", n)
	call := loop.CallFields{CallID: protocol.CallID(id), ToolCallID: id, Name: "bash", Arguments: asJSON("echo " + text)}
	image := &loop.Image{MediaType: "image/png", Data: []byte("\x89PNG" + text)}
	return []loop.Event{
		{Type: loop.EventTurnStarted, Turn: n, StartFields: loop.StartFields{Input: "input " + text}},
		{
			Type: loop.EventModelReply, Turn: n, Step: 1, Text: "reply " + text,
			ReplyFields: loop.ReplyFields{ToolCalls: []loop.ToolCall{{ID: id, Name: "bash", Arguments: call.Arguments}}},
		},
		{Type: loop.EventToolCall, Turn: n, Step: 1, CallFields: call},
		{Type: loop.EventToolResult, Turn: n, Step: 1, CallFields: call, Status: "ok", ResultFields: loop.ResultFields{Content: "result " + text, Image: image}},
		{Type: loop.EventTurnEnded, Turn: n, Step: 1, Status: "answered"},
	}
}

// TestKept_AllThatShowASessionShareOneReading: a hundred pages that follow a session of some
// thousand events, and each part that pages ask for by itself, cost one reading of its journal.
func TestKept_AllThatShowASessionShareOneReading(t *testing.T) {
	t.Parallel()
	s := startShared(t)
	s.signIn(operator)
	const turns, watchers = 300, 100
	s.journaled("long", loop.Event{Type: loop.EventSessionStarted})
	for n := 1; n <= turns; n++ {
		s.journaled("long", aTurn(n, fmt.Sprint(n))...)
	}
	const events = 1 + 5*turns
	var reads atomic.Int64
	counted, err := s.fleet.NC.Subscribe("$JS.API.STREAM.MSG.GET."+wire.SessionsStream(s.fleet.Name), func(*nats.Msg) { reads.Add(1) })
	require.NoError(t, err)
	require.NoError(t, s.fleet.NC.Flush())
	defer func() { _ = counted.Unsubscribe() }()
	var all sync.WaitGroup
	for range watchers {
		all.Go(func() {
			lines, end := s.stream(t.Context(), "/sessions/long/live?from=290.0")
			t.Cleanup(end)
			for lines.Scan() && !strings.Contains(lines.Text(), "result 300") { //nolint:revive // up to the last one
			}
		})
	}
	all.Wait()
	requests := watchers
	for range 5 {
		for path, text := range map[string]string{
			"": "result 300", "/calls/c300/brief": "c300", "/calls/c3": "result 3", "/calls/c5/output": "result 5", "/calls": "echo 1", "/image?call=c7": "\x89PNG7",
			"/timeline?turn=9": "Turn 9", "/confirm/remove": "Nothing brings them back", "/files/count": "", "/agents": "no sub-agents", "?until=200.0": "result 199",
		} {
			_, body, _ := s.get("/sessions/long" + path)
			require.Contains(t, body, text, path)
			requests++
		}
	}
	// One for the conversation, and one for the description that is next to it.
	require.Less(t, reads.Load(), int64(3*events+20*requests))
	folded, sessions := s.handler.Kept("long")
	require.Equal(t, events, folded)
	require.Equal(t, 1, sessions)
	s.journaled("long", aTurn(turns+1, "new")...)
	_, body, _ := s.get("/sessions/long")
	require.Contains(t, body, "result new")
	require.NotContains(t, body, "not sent")
	require.Eventually(t, func() bool { folded, _ = s.handler.Kept("long"); return folded == events+5 }, time.Minute, 10*time.Millisecond)
}

// TestKept_ShowsTheSessionThatThereIs: what was read before a session was removed, made again,
// forked, taken back or continued by another process is not shown as if it were still so.
func TestKept_ShowsTheSessionThatThereIs(t *testing.T) {
	t.Parallel()
	s := startShared(t)
	s.signIn(operator)
	shows := func(id string, has, has_not []string) {
		t.Helper()
		for _, path := range []string{"/sessions/" + id, "/sessions/" + id + "/calls", "/sessions/" + id + "/live"} {
			if strings.HasSuffix(path, "live") {
				body := s.first(path)
				for _, text := range has {
					require.Contains(t, body, text, path)
				}
				for _, text := range has_not {
					require.NotContains(t, body, text, path)
				}
				continue
			}
			status, body, _ := s.get(path)
			require.Equal(t, 200, status, path)
			for _, text := range has_not {
				require.NotContains(t, body, text, path)
			}
			if path == "/sessions/"+id {
				for _, text := range has {
					require.Contains(t, body, text, path)
				}
			}
		}
	}
	s.run("work", "First", calls("bash", asJSON("echo one")), says("Answer one."))
	shows("work", []string{"First", "Answer one.", "answered"}, []string{"Second"})

	other := *s.site
	other.client = s.process(t)
	other.run("work", "Second", says("before"), says("before"), says("Answer two."))
	shows("work", []string{"First", "Answer one.", "Second", "Answer two."}, nil)

	_, _, forked := s.post("/sessions/work/fork", "key", s.key())
	fork := strings.TrimPrefix(forked, "/sessions/")
	s.run(protocol.SessionID(fork), "Third", says("before"), says("before"), says("before"), says("Answer three."))
	shows(fork, []string{"Answer two.", "Third", "Answer three."}, nil)
	shows("work", []string{"Answer two."}, []string{"Third"})

	last, err := s.journal.Last(t.Context(), "work")
	require.NoError(t, err)
	s.last["work"] = last
	s.journaled("work", loop.Event{Type: loop.EventRewound, NoteFields: loop.NoteFields{KeptTurn: 1}})
	shows("work", []string{"The conversation was taken back to before this turn."}, nil)

	status, _, _ := s.post("/sessions/work/remove", "key", s.key())
	require.Equal(t, 200, status)
	for _, path := range []string{"", "/live", "/calls", "/image?call=c1", "/timeline"} {
		status, body, _ := s.get("/sessions/work" + path)
		require.Equal(t, 404, status, path)
		require.NotContains(t, body, "Answer one.", path)
	}
	s.run("work", "Again", says("Answer four."))
	shows("work", []string{"Again", "Answer four."}, []string{"Answer one.", "First", "Third"})
}

// TestKept_IsForThoseWhoMaySeeIt: that one principal has read a session gives no other one
// anything of it, and a session of the same name that is another one is judged by itself.
func TestKept_IsForThoseWhoMaySeeIt(t *testing.T) {
	t.Parallel()
	s := startShared(t)
	parts := []string{
		"", "/live", "/calls", "/calls/c1", "/calls/c1/brief", "/calls/c1/output", "/image?call=c1",
		"/files/count", "/confirm/remove", "/timeline", "/details",
	}
	s.journaled("one", slices.Concat([]loop.Event{{Type: loop.EventSessionStarted}}, aTurn(1, "of the operator"))...)
	s.signIn(operator)
	_, body, _ := s.get("/sessions/one")
	require.Contains(t, body, "of the operator")
	s.signIn(reader) // of tenant acme
	for _, path := range parts {
		status, body, _ := s.get("/sessions/one" + path)
		require.Equal(t, path == "/files/count", status == 200, path) // which says that it has changed none
		require.NotContains(t, body, "of the operator", path)
	}
	_, err := s.client.Sessions("").Remove(t.Context(), "one", false)
	require.NoError(t, err)
	last, err := s.journal.Last(t.Context(), "one")
	require.NoError(t, err)
	s.last["one"] = last
	s.journaled("one", slices.Concat([]loop.Event{
		{Type: loop.EventSessionStarted, StartFields: loop.StartFields{Tenant: "acme"}, NoteFields: loop.NoteFields{By: "token:ann"}},
	}, aTurn(1, "of acme"))...)
	_, body, _ = s.get("/sessions/one")
	require.Contains(t, body, "of acme")
	require.NotContains(t, body, "of the operator")
	_, _, _ = s.post("/sign-out", "key", s.key())
	for _, path := range parts {
		_, body, at := s.get("/sessions/one" + path)
		require.Equal(t, "/sign-in", at, path)
		require.NotContains(t, body, "of acme", path)
	}
}

// TestKept_AnotherSessionWithoutARecord: a fleet without room stores no record of a session that
// was removed. Who begins another one of its name sees that one alone.
func TestKept_AnotherSessionWithoutARecord(t *testing.T) {
	t.Parallel()
	s := startShared(t)
	s.journaled("one", slices.Concat([]loop.Event{{Type: loop.EventSessionStarted}}, aTurn(1, "of the operator"))...)
	s.signIn(operator)
	lines, end := s.stream(t.Context(), "/sessions/one/live")
	defer end()
	for lines.Scan() {
		if strings.Contains(lines.Text(), "of the operator") {
			break
		}
	}
	require.NoError(t, s.journal.Mark(t.Context(), "one"))
	_, err := s.journal.Forget(t.Context(), "one", 0)
	require.NoError(t, err)
	s.last["one"] = 0
	s.journaled("one", slices.Concat([]loop.Event{{Type: loop.EventSessionStarted, StartFields: loop.StartFields{Tenant: "acme"}, NoteFields: loop.NoteFields{By: "token:ann"}}}, aTurn(1, "of acme"))...)
	for lines.Scan() { // it ends
		require.NotContains(t, lines.Text(), "of acme")
	}
	s.signIn(reader) // of tenant acme
	for _, path := range []string{"", "/calls", "/timeline"} {
		_, body, _ := s.get("/sessions/one" + path)
		require.Contains(t, body, "of acme", path)
		require.NotContains(t, body, "of the operator", path)
	}
}

// TestReply_ItsCallsStandInTheirOrder: while one call of a reply waits for a person, each of the
// others stands in its order, as it is: on the page that is open, on one that is loaded, and
// at the end.
func TestReply_ItsCallsStandInTheirOrder(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.signIn(operator)
	s.run("work", "Begin", says("Begun."))
	lines, end := s.stream(t.Context(), "/sessions/work/live")
	defer end()
	rules, err := policy.Parse("rules.yaml", []byte("approval:\n  commands: [touch]\n"))
	require.NoError(t, err)
	judged, err := policy.New(rules)
	require.NoError(t, err)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		var all []any
		for _, command := range []string{"echo first", "touch second", "echo third"} {
			all = append(all, map[string]any{"name": "bash", "arguments": map[string]any{"command": command}})
		}
		s.runJudged("work", "Three", judged, says("before"), map[string]any{"text": "I do three things.", "tool_calls": all}, says("Done."))
	}()
	inOrder := func(body string, texts ...string) {
		t.Helper()
		at := -1
		for _, text := range texts {
			next := strings.Index(body[at+1:], text)
			require.GreaterOrEqual(t, next, 0, "%s is missing, or not behind what is before it", text)
			at += 1 + next
		}
	}
	var body string
	require.Eventually(t, func() bool {
		_, body, _ = s.get("/sessions/work")
		return strings.Contains(body, "Approve for this session")
	}, time.Minute, 50*time.Millisecond)
	cards := []string{"I do three things.", `<code>bash echo first</code>`, `<code>bash touch second</code>`, `<code>bash echo third</code>`}
	inOrder(body, cards...)
	inOrder(body, `<code>bash touch second</code>`, "not sent", `<code>bash echo third</code>`, "waits: what a person says of bash touch second")
	var seen bytes.Buffer
	for (!strings.Contains(seen.String(), "Approve for this session") || !strings.Contains(seen.String(), "echo third</code>")) && lines.Scan() {
		seen.Write(lines.Bytes())
	}
	live := seen.String()
	inOrder(live[strings.LastIndex(live, "I do three things."):], cards[1:]...)
	_, after, _ := strings.Cut(body, `class="card ask" id="call-`)
	call, _, _ := strings.Cut(after, `"`)
	status, answer, _ := s.post("/sessions/work/approve", "key", s.key(), "call", call)
	require.Equal(t, 200, status, answer)
	<-ended
	_, body, _ = s.get("/sessions/work")
	inOrder(body, append(cards, "Done.")...)
	require.NotContains(t, body, "not sent")
	require.Equal(t, 3, strings.Count(body, `<article class="card`))
}

// TestSession_ACallThatRunsIsSaidToRun: also on pages that come after its start, and although it
// writes nothing.
func TestSession_ACallThatRunsIsSaidToRun(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.signIn(operator)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.run("work", "Wait", calls("bash", `{"command": "sleep 600"}`), says("Done."))
	}()
	var body string
	require.Eventually(t, func() bool {
		_, body, _ = s.get("/sessions/work")
		return strings.Contains(body, `<span class="pill run">running</span><a class="row" href="/ui/sessions/work/calls/`)
	}, time.Minute, 50*time.Millisecond, "%s", body)
	_, listed, _ := s.get("/sessions/work/calls")
	require.Contains(t, listed, ">running<")
	_, call, _ := strings.Cut(body, `<article class="card" id="call-`)
	call, _, _ = strings.Cut(call, `"`)
	_, body, _ = s.get("/sessions/work/calls/" + call)
	require.Contains(t, body, ">running<")
	status, body, _ := s.post("/sessions/work/cancel-call", "key", s.key(), "call", call)
	require.Equal(t, 200, status, body)
	<-ended
}

// upload sends a form with files, by their names.
func (s *site) upload(path, key, prompt string, files map[string]string) (status int, body, at string) {
	s.t.Helper()
	var form bytes.Buffer
	parts := multipart.NewWriter(&form)
	require.NoError(s.t, parts.WriteField("key", key))
	require.NoError(s.t, parts.WriteField("prompt", prompt))
	for name, content := range files {
		part, err := parts.CreateFormFile("files", name)
		require.NoError(s.t, err)
		_, err = part.Write([]byte(content))
		require.NoError(s.t, err)
	}
	require.NoError(s.t, parts.Close())
	request, err := http.NewRequestWithContext(s.t.Context(), http.MethodPost, s.URL+"/ui"+path, &form)
	require.NoError(s.t, err)
	request.Header.Set("Content-Type", parts.FormDataContentType())
	return s.do(request)
}

// TestAttachments_ComeWithTheForm: files of a form are those of the turn. What no turn takes, what
// is too large, and a form of another sign-in begin none.
func TestAttachments_ComeWithTheForm(t *testing.T) {
	t.Parallel()
	s := startShared(t)
	s.signIn(operator)
	s.run("work", "Begin", says("Begun."))
	sent := make(chan string, 1000)
	all, err := s.fleet.NC.Subscribe(string(s.fleet.Name)+".>", func(m *nats.Msg) {
		if bytes.Contains(m.Data, []byte(wire.KindTurnRun)) {
			sent <- string(m.Data)
		}
	})
	require.NoError(t, err)
	defer func() { _ = all.Unsubscribe() }()
	require.NoError(t, s.fleet.NC.Flush())
	_, page, _ := s.get("/sessions/work")
	require.Contains(t, page, `enctype="multipart/form-data"`)
	require.Contains(t, page, `name="files" type="file"`)
	key := s.key()
	for name, content := range map[string]string{"program.bin": "\x7fELF\x00\x01", "empty.txt": "", "large.txt": strings.Repeat("x", 300<<10)} {
		status, body, _ := s.upload("/sessions/work/send", key, "Look", map[string]string{name: content})
		require.Equal(t, 422, status, name)
		require.Contains(t, body, name)
	}
	many := map[string]string{}
	for i := range 17 {
		many[fmt.Sprintf("%d.txt", i)] = "x"
	}
	status, body, _ := s.upload("/sessions/work/send", key, "Look", many)
	require.Equal(t, 422, status)
	require.Contains(t, body, "17")
	status, body, _ = s.upload("/sessions", key, "Look", map[string]string{"a.txt": strings.Repeat("x", 7<<20)})
	require.Equal(t, 422, status)
	require.Contains(t, body, "must have at most 6 MiB")
	_, body, _ = s.get("/sessions/work")
	require.Contains(t, body, "6 MiB together", "the page says the same")
	status, _, _ = s.upload("/sessions/work/send", "forged", "Look", map[string]string{"a.txt": "a"})
	require.Equal(t, 403, status)
	require.Empty(t, sent, "none of these has begun a turn")
	for _, path := range []string{"/sessions/work/send", "/sessions"} {
		status, body, _ = s.upload(path, key, "Look", map[string]string{"notes.txt": "What I noted."})
		require.Equal(t, 200, status, body)
		select {
		case call := <-sent:
			require.Contains(t, call, "notes.txt")
			require.Contains(t, call, base64.StdEncoding.EncodeToString([]byte("What I noted.")))
		case <-time.After(time.Minute):
			require.Fail(t, "no turn was sent", path)
		}
	}
}
