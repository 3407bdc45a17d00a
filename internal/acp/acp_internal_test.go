package acp

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	acp "github.com/coder/acp-go-sdk"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
	"github.com/toolfleet/toolfleet/pkg/tools/toolset"
)

// watched translates events, and collects the updates.
func watched(t *testing.T, workspace string) (*updates, *[]acp.SessionUpdate) {
	t.Helper()
	table, err := tools.NewTable(toolset.Core()...)
	require.NoError(t, err)
	var sent []acp.SessionUpdate
	return &updates{
		workspace: workspace, table: func() *tools.Table { return table }, calls: map[protocol.CallID]*running{},
		send: func(u acp.SessionUpdate) { sent = append(sent, u) },
	}, &sent
}

// asJSON is what the client gets, without what every update has.
func asJSON(t *testing.T, sent []acp.SessionUpdate) string {
	t.Helper()
	var lines []string
	for _, u := range sent {
		encoded, err := json.Marshal(u)
		require.NoError(t, err)
		lines = append(lines, string(encoded))
	}
	return strings.Join(lines, "\n")
}

func event(kind loop.EventType, change func(*loop.Event)) loop.Event {
	e := loop.Event{Type: kind, SessionID: "s", Turn: 1, Step: 1}
	change(&e)
	return e
}

func called(kind loop.EventType, id protocol.CallID, name, arguments string) loop.Event {
	return event(kind, func(e *loop.Event) { e.CallID, e.Name, e.Arguments = id, name, arguments })
}

func scratched(key, value string) loop.Event {
	return event(loop.EventToolResult, func(e *loop.Event) {
		e.CallID, e.Name, e.Status, e.Scratch = "s", "scratchpad", "ok", &loop.ScratchChange{Key: key, Value: &value}
	})
}

// Each kind of event, as the client gets it.
func TestUpdates(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "a.txt"), []byte("old\n"), 0o600))
	text := func(kind loop.EventType, text string) loop.Event {
		return event(kind, func(e *loop.Event) { e.Text = text })
	}
	for name, test := range map[string]struct {
		events []loop.Event
		want   []string // in this order
		not    string
	}{
		"a reply that streams is sent once": {
			events: []loop.Event{text(loop.EventTextDelta, "Hel"), text(loop.EventTextDelta, "lo"), text(loop.EventModelReply, "Hello.")},
			want:   []string{`"Hel"`, `"lo"`, `"."`}, not: "Hello.",
		},
		"a reply that does not stream": {events: []loop.Event{text(loop.EventModelReply, "Hello.")}, want: []string{`"agent_message_chunk"`}},
		"a reply that begins again": {
			events: []loop.Event{
				text(loop.EventTextDelta, "Hel"), text(loop.EventReplyFailed, "it broke"),
				text(loop.EventTextDelta, "Hello."), text(loop.EventModelReply, "Hello."),
			},
			want: []string{"cut off, and begins again", `"Hello."`},
		},
		"thoughts": {
			events: []loop.Event{
				text(loop.EventReasoningDelta, "I "),
				event(loop.EventModelReply, func(e *loop.Event) { e.Text, e.Reasoning = "Hi", &loop.Reasoning{Text: "I think"} }),
			},
			want: []string{`"I "`, `"agent_thought_chunk"`, `"think"`},
		},
		"a call that writes a file shows what changes": {
			events: []loop.Event{called(loop.EventToolCall, "c", "write", `{"path": "a.txt", "content": "new\n"}`)},
			want:   []string{`"newText":"new\n"`, `"oldText":"old\n"`, filepath.Join(dir, "a.txt"), `"kind":"edit"`, `"sessionUpdate":"tool_call"`, `"status":"pending"`},
		},
		"a long command is shown whole": {
			events: []loop.Event{called(loop.EventToolCall, "c", "bash", `{"command": "first\nsecond"}`)},
			want:   []string{"```\\nfirst\\nsecond\\n```", `"kind":"execute"`},
		},
		"edits show their parts": {
			events: []loop.Event{called(loop.EventToolCall, "c", "multi_edit", `{"path": "a.txt", "edits": [{"old": "x", "new": "y"}, {"old": "p", "new": "q"}]}`)},
			want:   []string{`"newText":"y","oldText":"x"`, `"newText":"q","oldText":"p"`},
		},
		"a call about which a person is asked is announced once": {
			events: []loop.Event{
				called(loop.EventApprovalAsked, "c", "bash", `{}`), called(loop.EventToolCall, "c", "bash", `{}`), called(loop.EventToolRunning, "c", "bash", ""),
			},
			want: []string{`"sessionUpdate":"tool_call"`, `"sessionUpdate":"tool_call_update","status":"in_progress"`},
		},
		"a job ends later": {
			events: []loop.Event{
				called(loop.EventToolCall, "c", "bash", `{}`),
				event(loop.EventToolResult, func(e *loop.Event) { e.CallID, e.Name, e.Job, e.Status = "c", "bash", "job_1", "ok" }),
				event(loop.EventJobEnded, func(e *loop.Event) {
					e.CallID, e.Name, e.Job, e.Status, e.Content = "c", "bash", "job_1", "ok", "it ran"
				}),
			},
			want: []string{`"status":"in_progress"`, "it ran", `"status":"completed"`},
		},
		"a failure": {
			events: []loop.Event{event(loop.EventToolResult, func(e *loop.Event) {
				e.CallID, e.Name, e.Status, e.Content, e.Error = "c", "bash", "failed", "no", protocol.Errorf(protocol.CodeNotFound, "There is none.")
			})},
			want: []string{`"sessionUpdate":"tool_call"`, "```\\nno\\n```", `"code":"not_found"`, `"status":"failed"`},
		},
		"a sub-agent moves": {
			events: []loop.Event{called(loop.EventToolCall, "c", "agent", `{}`), event(loop.EventAgentMoved, func(e *loop.Event) { e.CallID, e.Text = "c", "it reads" })},
			want:   []string{`"kind":"think"`, "it reads"},
		},
		"a list in the scratchpad is the plan": {
			events: []loop.Event{
				scratched("plan", "Do:\n- [x] read [it]\n* [~] write\n1. [ ] test\n- [?] no\n"), scratched("other", "- [ ] no"),
				event(loop.EventToolResult, func(e *loop.Event) {
					e.CallID, e.Name, e.Status, e.Scratch = "d", "scratchpad", "ok", &loop.ScratchChange{Key: "plan"}
				}),
			},
			want: []string{
				`"content":"read [it]","priority":"medium","status":"completed"`, `"content":"write","priority":"medium","status":"in_progress"`,
				`"content":"test","priority":"medium","status":"pending"`, `"sessionUpdate":"plan"`, `"entries":[]`,
			}, not: `"content":"no"`,
		},
		"a tool of the provider": {
			events: []loop.Event{event(loop.EventNativeCall, func(e *loop.Event) { e.Name, e.Text, e.Content, e.Status = "web_search", "go 1.27", "found", "ok" })},
			want:   []string{"found", `"kind":"fetch"`, `"status":"completed"`, "web_search go 1.27"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			u, sent := watched(t, dir)
			for _, e := range test.events {
				u.observe(e)
			}
			rest := asJSON(t, *sent)
			if test.not != "" {
				require.NotContains(t, rest, test.not)
			}
			for _, want := range test.want {
				_, behind, found := strings.Cut(rest, want)
				require.True(t, found, "%s is not in %s", want, rest)
				rest = behind
			}
		})
	}
}

// Output of a running call is bounded in size and in number of updates.
func TestUpdates_OutputIsBounded(t *testing.T) {
	t.Parallel()
	u, sent := watched(t, "")
	u.output("unknown", fleet.Output{Data: []byte("x")})
	require.Empty(t, *sent)
	u.observe(called(loop.EventToolCall, "c", "bash", `{}`))
	for range 1000 {
		u.output("c", fleet.Output{Data: bytes.Repeat([]byte("y"), 1000)})
	}
	require.Less(t, len(*sent), 100)
	require.Len(t, u.calls["c"].output, maxOutput)
}

// What a prompt may have, and what the model gets.
func TestInputOf(t *testing.T) {
	t.Parallel()
	dir, outside := t.TempDir(), filepath.Join(t.TempDir(), "note.md")
	require.NoError(t, os.WriteFile(outside, []byte("noted"), 0o600))
	gif := base64.StdEncoding.EncodeToString([]byte("GIF89a\x01\x00\x01\x00\x80\x00\x00\x00\x00\x00\xff\xff\xff,\x00\x00\x00\x00\x01\x00\x01\x00\x00\x02\x02D\x01\x00;"))
	for block, want := range map[string]struct{ text, attached string }{
		`{"type": "text", "text": " hi "}`:                                                                            {text: "hi"},
		`{"type": "resource_link", "name": "b.go", "uri": "file://` + dir + `/a/b.go#L2:4"}`:                          {text: "`a/b.go` (L2:4)"},
		`{"type": "resource_link", "name": "note.md", "uri": "file://` + outside + `"}`:                               {text: "`" + outside + "`", attached: "note.md"},
		`{"type": "resource_link", "name": "none", "uri": "file:///no/such"}`:                                         {text: "`/no/such`"},
		`{"type": "resource_link", "name": "site", "uri": "https://example.com/x"}`:                                   {text: "[site](https://example.com/x)"},
		`{"type": "resource", "resource": {"uri": "file://` + dir + `/a.go", "text": "package a"}}`:                   {text: "`a.go`", attached: "a.go"},
		`{"type": "resource", "resource": {"uri": "file://` + dir + `/a.go", "text": ""}}`:                            {text: "`a.go` (empty)"},
		`{"type": "resource", "resource": {"uri": "zed:///x/a.gif", "mimeType": "image/gif", "blob": "` + gif + `"}}`: {text: "[a.gif](zed:///x/a.gif)", attached: "a.gif"},
		`{"type": "image", "mimeType": "image/gif", "data": "` + gif + `"}`:                                           {attached: "image-1.gif"},
	} {
		in, wrong := inputOf([]json.RawMessage{json.RawMessage(block)}, dir)
		require.Nil(t, wrong, "%s", block)
		require.Equal(t, want.text, in.Text, block)
		if want.attached == "" {
			require.Empty(t, in.Attachments, block)
			continue
		}
		require.Len(t, in.Attachments, 1, block)
		require.Equal(t, want.attached, in.Attachments[0].Name)
	}
	_, wrong := inputOf([]json.RawMessage{json.RawMessage(`{"type": "resource", "resource": {"uri": "x", "blob": "AAAA"}}`)}, dir)
	require.Contains(t, wrong.Message, "prompt[0].resource.blob: ")
}

// A request to a client that goes away, or that is not needed any more, ends.
func TestConnection_RequestEnds(t *testing.T) {
	t.Parallel()
	var sent bytes.Buffer
	c := newConnection(&sent)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, c.request(ctx, "session/request_permission", struct{}{}, nil), context.Canceled)
	require.Contains(t, sent.String(), `"method":"$/cancel_request","params":{"requestId":1}`)
	r, w := io.Pipe()
	go func() {
		time.Sleep(time.Millisecond)
		_ = w.Close()
	}()
	go func() { _ = c.receive(r, nil) }()
	require.ErrorContains(t, c.request(t.Context(), "x", struct{}{}, nil), "closed the connection")
	require.Empty(t, c.waiting[`1`])
}

// unshown is a session of which only what a question shows is used.
type unshown struct{ Session }

func (unshown) ID() protocol.SessionID  { return "s" }
func (unshown) RemembersApproval() bool { return true }

// A client that goes away refuses nothing: the question lasts until the turn is stopped.
func TestApprove_TheClientIsGone(t *testing.T) {
	t.Parallel()
	a := New(Options{})
	a.conn = newConnection(io.Discard)
	close(a.conn.gone)
	u, _ := watched(t, "")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() {
		_, err := a.approve(ctx, &open{Session: unshown{}, updates: u}, loop.ApprovalRequest{Tool: "bash", Arguments: "{}"})
		done <- err
	}()
	select {
	case err := <-done:
		require.Fail(t, "the question was answered", "%v", err)
	case <-time.After(50 * time.Millisecond):
	}
	cancel()
	require.ErrorIs(t, <-done, errGone)
}
