package openai_test

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/model/endpoint"
	"github.com/toolfleet/toolfleet/internal/model/modeltest"
	"github.com/toolfleet/toolfleet/internal/model/openai"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
)

func TestReply_StreamsText(t *testing.T) {
	t.Parallel()
	s := serve(t, modeltest.Stream(": keep-alive", "event: message\nid: 1\n"+text("Hel"), "", text("lo "), text("wörld"), stop, usage(12, 3), done))
	var got pieces
	reply := modeltest.Reply(t, s.model(t), modeltest.Hello(), got.add)
	require.Equal(t, loop.Reply{
		Text: "Hello wörld", Model: "m-1-2026", Finish: "stop", Usage: protocol.Usage{InputTokens: 12, OutputTokens: 3},
	}, reply)
	require.Equal(t, "Hel|lo |wörld", got.String())
	require.Equal(t, "Bearer "+key, s.Header().Get("Authorization"))
}

func TestReply_SendsTheConversation(t *testing.T) {
	t.Parallel()
	s := serve(t, modeltest.Stream(text("ok"), stop, done))
	m := s.model(t, func(o *openai.Options) { o.Organization = "org-1" })
	_, err := m.Reply(t.Context(), loop.Request{
		Messages: []loop.Message{
			{Role: loop.RoleSystem, Text: "Be brief."},
			{Role: loop.RoleUser, Text: "Look."},
			{Role: loop.RoleAssistant, ToolCalls: []loop.ToolCall{
				{ID: "c1", Name: "bash", Arguments: `{"command":"ls"}`},
				{ID: "c2", Name: "read", Arguments: `{"pa`},
				{ID: "c3", Name: "read", Arguments: `[1]`},
				{ID: "c4", Name: "functions.été\n" + strings.Repeat("x", 99), Arguments: `{}`},
				{ID: "c5", Arguments: `{}`},
			}},
			{Role: loop.RoleTool, ToolCallID: "c1", Name: "bash", Text: "a.go"},
			{Role: loop.RoleTool, ToolCallID: "c2", Name: "read", Text: ""},
			{Role: loop.RoleTool, ToolCallID: "c5", Text: "no such tool"},
			{Role: loop.RoleAssistant},
		},
		Tools: []tools.Definition{
			{Name: "bash", Description: "Runs.", Schema: json.RawMessage(`{"type":"object","properties":{"command":{"type":"string"}},"x":1}`)},
			{Name: "now"},
			{Name: "web", Native: map[string]json.RawMessage{"openai": json.RawMessage(`{"type":"web_search","search_context_size":"low"}`)}},
			{Name: "elsewhere", Native: map[string]json.RawMessage{"other": json.RawMessage(`{"type":"x"}`)}},
		},
	}, modeltest.Ignore)
	require.NoError(t, err)

	sent, err := json.Marshal(s.Asked()[0])
	require.NoError(t, err)
	require.JSONEq(t, `{
		"model": "m-1", "stream": true, "stream_options": {"include_usage": true},
		"messages": [
			{"role": "system", "content": "Be brief."},
			{"role": "user", "content": "Look."},
			{"role": "assistant", "tool_calls": [
				{"id": "c1", "type": "function", "function": {"name": "bash", "arguments": "{\"command\":\"ls\"}"}},
				{"id": "c2", "type": "function", "function": {"name": "read", "arguments": "{\"invalid_arguments\":\"{\\\"pa\"}"}},
				{"id": "c3", "type": "function", "function": {"name": "read", "arguments": "{\"invalid_arguments\":\"[1]\"}"}},
				{"id": "c4", "type": "function", "function": {"name": "functions__t__xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx", "arguments": "{}"}},
				{"id": "c5", "type": "function", "function": {"name": "_", "arguments": "{}"}}
			]},
			{"role": "tool", "tool_call_id": "c1", "name": "bash", "content": "a.go"},
			{"role": "tool", "tool_call_id": "c2", "name": "read", "content": "(empty)"},
			{"role": "tool", "tool_call_id": "c5", "name": "_", "content": "no such tool"},
			{"role": "assistant", "content": "(empty)"}
		],
		"tools": [
			{"type": "function", "function": {"name": "bash", "description": "Runs.",
				"parameters": {"type": "object", "properties": {"command": {"type": "string"}}, "x": 1}}},
			{"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}},
			{"type": "web_search", "search_context_size": "low"}
		]
	}`, string(sent))
	require.Equal(t, "org-1", s.Header().Get("OpenAI-Organization"))
}

// Images of tool results go behind the last tool message of their step, where the API
// takes them, and nowhere for a model that takes none.
func TestReply_SendsImages(t *testing.T) {
	t.Parallel()
	image := &loop.Image{MediaType: "image/png", Data: []byte("\x89PNG")}
	request := loop.Request{Messages: []loop.Message{
		{Role: loop.RoleUser, Text: "Look."},
		{Role: loop.RoleAssistant, ToolCalls: []loop.ToolCall{{ID: "c1", Name: "read"}, {ID: "c2", Name: "read"}}},
		{Role: loop.RoleTool, ToolCallID: "c1", Name: "read", Text: "a.png", Image: image},
		{Role: loop.RoleTool, ToolCallID: "c2", Name: "read", Text: "b.txt"},
		{Role: loop.RoleAssistant, Text: "I see."},
	}}
	for _, takes := range []bool{true, false} {
		s := serve(t, modeltest.Stream(text("ok"), stop, done))
		m := s.model(t, func(o *openai.Options) { o.Images = takes })
		modeltest.Reply(t, m, request, modeltest.Ignore)
		messages, ok := s.Asked()[0]["messages"].([]any)
		require.True(t, ok)
		if !takes {
			require.Len(t, messages, 5)
			continue
		}
		require.Len(t, messages, 6)
		sent, err := json.Marshal(messages[4])
		require.NoError(t, err)
		require.JSONEq(t, `{"role": "user", "content": [
			{"type": "text", "text": "The image of tool call c1:"},
			{"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw=="}}
		]}`, string(sent))
	}
}

// Chat completions take documents at OpenAI alone.
func TestReply_SendsDocumentsToOpenAI(t *testing.T) {
	t.Parallel()
	var sent []byte
	m, err := openai.New(openai.Options{API: openai.Chat, Images: true, Options: endpoint.Options{Model: "m-1", HTTPClient: &http.Client{Transport: roundTrip(func(r *http.Request) (*http.Response, error) {
		sent, _ = io.ReadAll(r.Body)
		return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader(text("ok") + "\n\n" + stop + "\n\n" + done + "\n"))}, nil
	})}}})
	require.NoError(t, err)
	_, err = m.Reply(t.Context(), loop.Request{Messages: []loop.Message{
		{Role: loop.RoleTool, ToolCallID: "c1", Name: "read", Text: "a.pdf", Image: &loop.Image{MediaType: "application/pdf", Data: []byte("%PDF-")}},
	}}, modeltest.Ignore)
	require.NoError(t, err)
	require.Contains(t, string(sent), `{"type":"text","text":"The document of tool call c1:"},`+
		`{"type":"file","file":{"filename":"document.pdf","file_data":"data:application/pdf;base64,JVBERi0="}}`)
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestReply_SendsNoEmptyListsAndNoEmptyKey(t *testing.T) {
	t.Parallel()
	s := serve(t, modeltest.Stream(text("ok"), stop, done))
	m := s.model(t, func(o *openai.Options) { o.APIKey = "" })
	modeltest.Reply(t, m, loop.Request{Messages: []loop.Message{{Role: loop.RoleSystem}, {Role: loop.RoleUser, Text: "x"}}}, modeltest.Ignore)
	require.NotContains(t, s.Asked()[0], "tools", "several servers reject an empty list")
	require.Len(t, s.Asked()[0]["messages"], 1, "an empty system message says nothing")
	require.NotContains(t, s.Header(), "Authorization")
}

func TestReply_PutsToolCallsTogether(t *testing.T) {
	t.Parallel()
	call := func(id, name, arguments string) loop.ToolCall {
		return loop.ToolCall{ID: id, Name: name, Arguments: arguments}
	}
	const made = "" // an id that the model made up
	tests := map[string]struct {
		pieces []string
		finish string
		want   []loop.ToolCall
	}{
		"pieces by index, interleaved": {
			pieces: []string{
				`[{"index":0,"id":"a","function":{"name":"bash","arguments":""}}]`,
				`[{"index":1,"id":"b","function":{"name":"read"}}]`,
				`[{"index":0,"function":{"arguments":"{\"x\""}},{"index":1,"function":{"arguments":"{"}}]`,
				`[{"index":1,"function":{"arguments":"}"}},{"index":0,"function":{"arguments":":1}"}}]`,
			},
			want: []loop.ToolCall{call("a", "bash", `{"x":1}`), call("b", "read", `{}`)},
		},
		"whole calls in one piece": {
			pieces: []string{`[{"index":0,"id":"a","function":{"name":"x","arguments":"{}"}},{"index":1,"id":"b","function":{"name":"y","arguments":"{}"}}]`},
			want:   []loop.ToolCall{call("a", "x", "{}"), call("b", "y", "{}")},
		},
		"all at index 0 with ids of their own": {
			pieces: []string{
				`[{"index":0,"id":"a","function":{"name":"x","arguments":"{\"n\":1}"}}]`,
				`[{"index":0,"id":"b","function":{"name":"x","arguments":"{\"n\":2}"}}]`,
			},
			want: []loop.ToolCall{call("a", "x", `{"n":1}`), call("b", "x", `{"n":2}`)},
		},
		"all at index 0 without ids": {
			pieces: []string{
				`[{"index":0,"function":{"name":"x","arguments":"{\"n\":1}"}}]`,
				`[{"index":0,"function":{"name":"x","arguments":"{\"n\":2}"}}]`,
			},
			want: []loop.ToolCall{call(made, "x", `{"n":1}`), call(made, "x", `{"n":2}`)},
		},
		"no index, id repeated in each piece": {
			pieces: []string{
				`[{"id":"a","function":{"name":"x","arguments":"{"}}]`,
				`[{"id":"a","function":{"name":"x","arguments":"}"}}]`,
				`[{"id":"b","function":{"name":"y","arguments":"{"}}]`,
				`[{"id":"b","function":{"arguments":"}"}}]`,
				`[{"id":"a","function":{"arguments":" "}}]`,
			},
			want: []loop.ToolCall{call("a", "x", "{} "), call("b", "y", "{}")},
		},
		"no index, no id": {
			pieces: []string{
				`[{"function":{"name":"x","arguments":"{"}}]`,
				`[{"function":{"arguments":"}"}}]`,
				`[{"function":{"name":"y","arguments":"{}"}}]`,
			},
			want: []loop.ToolCall{call(made, "x", "{}"), call(made, "y", "{}")},
		},
		"a new id in every piece of one call": {
			pieces: []string{
				`[{"index":0,"id":"a","function":{"name":"x","arguments":"{\"a\":"}}]`,
				`[{"index":0,"id":"b","function":{"arguments":"1}"}}]`,
			},
			want: []loop.ToolCall{call("a", "x", `{"a":1}`)},
		},
		"empty ids": {
			pieces: []string{`[{"index":0,"id":"","function":{"name":"x","arguments":"{}"}},{"index":1,"id":"","function":{"name":"y","arguments":"{}"}}]`},
			want:   []loop.ToolCall{call(made, "x", "{}"), call(made, "y", "{}")},
		},
		"one id for two calls": {
			pieces: []string{`[{"index":0,"id":"a","function":{"name":"x","arguments":"{}"}},{"index":1,"id":"a","function":{"name":"y","arguments":"{}"}}]`},
			want:   []loop.ToolCall{call("a", "x", "{}"), call(made, "y", "{}")},
		},
		"no arguments": {
			pieces: []string{`[{"index":0,"id":"a","function":{"name":"now"}}]`},
			want:   []loop.ToolCall{call("a", "now", "{}")},
		},
		"neither name nor arguments": {
			pieces: []string{`[{"index":0,"id":"a","function":{"name":"x","arguments":"{}"}},{"index":1,"id":"b","function":{}}]`},
			want:   []loop.ToolCall{call("a", "x", "{}")},
		},
		"cut off by the token limit": {
			pieces: []string{`[{"index":0,"id":"a","function":{"name":"x","arguments":"{\"pa"}},{"index":1,"id":"b","function":{"name":"y"}}]`},
			finish: "length",
			want:   []loop.ToolCall{call("a", "x", `{"pa`), call("b", "y", "")},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var lines []string
			for _, piece := range test.pieces {
				lines = append(lines, toolCalls(piece))
			}
			reason := test.finish
			if reason == "" {
				reason = "tool_calls"
			}
			s := serve(t, modeltest.Stream(append(lines, finish(reason), done)...))
			reply := modeltest.Reply(t, s.model(t), modeltest.Hello(), modeltest.Ignore)
			requireCalls(t, test.want, reply.ToolCalls)
		})
	}
}

// requireCalls compares calls; a wanted id of "" stands for one that was made up.
func requireCalls(t *testing.T, want, got []loop.ToolCall) {
	t.Helper()
	require.Len(t, got, len(want))
	seen := map[string]bool{}
	for i := range want {
		if want[i].ID == "" {
			require.Regexp(t, "^[A-Z0-9]{9}$", got[i].ID)
			want[i].ID = got[i].ID
		}
		require.False(t, seen[got[i].ID], "ids must be unique")
		seen[got[i].ID] = true
	}
	require.Equal(t, want, got)
}

func TestReply_HowItEnds(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		lines    []string
		want     string
		wantType string
		wantCut  bool
	}{
		"done without a reason":         {lines: []string{text("a"), done}, want: "a"},
		"a reason without done":         {lines: []string{text("a"), stop}, want: "a"},
		"empty, but finished":           {lines: []string{stop, done}, want: ""},
		"cut":                           {lines: []string{text("a"), finish("length"), done}, want: "a", wantCut: true},
		"cut, as others say":            {lines: []string{text("a"), finish("MAX_TOKENS"), done}, want: "a", wantCut: true},
		"cut at the end of the context": {lines: []string{text("a"), finish("model_context_window_exceeded"), done}, want: "a", wantCut: true},
		"a good end, as others say":     {lines: []string{text("a"), finish("END-TURN"), done}, want: "a"},
		"a reason that is null":         {lines: []string{text("a"), `data: {"choices":[{"delta":{},"finish_reason":"null"}]}`, done}, want: "a"},
		"sensitive":                     {lines: []string{text("a"), finish("sensitive"), done}, wantType: endpoint.TypeContentFilter},
		"safety":                        {lines: []string{text("a"), finish("SAFETY"), done}, wantType: endpoint.TypeContentFilter},
		"an unknown end":                {lines: []string{text("a"), finish("because"), done}, wantType: endpoint.TypeUnfinished},
		"an unknown end of a tool call": {
			lines: []string{toolCalls(`[{"id":"a","function":{"name":"x","arguments":"{}"}}]`), finish("because"), done}, wantType: endpoint.TypeUnfinished,
		},
		"a reason that is an object": {
			lines: []string{text("a"), `data: {"choices":[{"delta":{},"finish_reason":{"type":"x"}}]}`, done}, wantType: endpoint.TypeUnfinished,
		},
		"a refusal":                      {lines: []string{`data: {"choices":[{"index":0,"delta":{"refusal":"No."}}]}`, stop, done}, want: "No."},
		"an answer that was not asked":   {lines: []string{text("a"), `data: {"choices":[{"index":1,"delta":{"content":"b"}}]}`, stop, done}, want: "a"},
		"no space behind data, CRLF":     {lines: []string{"data:" + strings.TrimPrefix(text("a"), "data: ") + "\r", stop + "\r", done + "\r"}, want: "a"},
		"a chunk that talks of an error": {lines: []string{text(`"error": {"error":1}`), stop, done}, want: `"error": {"error":1}`},
		"an error that is null":          {lines: []string{`data: {"error":null,"choices":[{"index":0,"delta":{"content":"a"}}]}`, stop, done}, want: "a"},
		"an error that is empty": {lines: []string{
			`data: {"error":"","choices":[{"index":0,"delta":{"content":"a"}}]}`, `data: {"error":{},"choices":[{"delta":{"content":"b"}}]}`,
			`data: {"error":{"code":0,"message":"","param":null},"choices":[{"delta":{"content":"c"}}]}`, stop, done,
		}, want: "abc"},
		"token limit before the text": {lines: []string{finish("length"), done}, want: "", wantCut: true},
		"content filter":              {lines: []string{text("a"), finish("content_filter"), done}, wantType: endpoint.TypeContentFilter},
		"an endless line":             {lines: []string{"data: " + strings.Repeat("x", 9<<20)}, wantType: endpoint.TypeInvalidResponse},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := serve(t, modeltest.Stream(test.lines...))
			reply, err := s.model(t).Reply(t.Context(), modeltest.Hello(), modeltest.Ignore)
			require.Len(t, s.Asked(), 1, "none of these may be tried again")
			if test.wantType != "" {
				requireType(t, test.wantType, err)
				return
			}
			require.NoError(t, err)
			require.Equal(t, test.want, reply.Text)
			require.Equal(t, test.wantCut, reply.Cut)
		})
	}
}

func requireType(t *testing.T, want string, err error) {
	t.Helper()
	var fault *endpoint.Error
	require.ErrorAs(t, err, &fault)
	require.Equal(t, want, fault.ErrorType(), "%v", err)
	require.NotContains(t, err.Error(), key)
}

func TestReply_ServerWithoutStreamOptions(t *testing.T) {
	t.Parallel()
	good := modeltest.Stream(text("ok"), stop, done)
	s := serve(t, modeltest.Status(http.StatusBadRequest, `{"error":{"message":"Unrecognized request argument supplied: stream_options"}}`), good)
	m := s.model(t, func(o *openai.Options) { o.MaxAttempts = 1 })
	for range 2 {
		reply := modeltest.Reply(t, m, modeltest.Hello(), modeltest.Ignore)
		require.Equal(t, "ok", reply.Text)
	}
	asked := s.Asked()
	require.Len(t, asked, 3, "it must remember what the server rejects")
	require.Contains(t, asked[0], "stream_options")
	require.NotContains(t, asked[1], "stream_options")
	require.NotContains(t, asked[2], "stream_options")
}

func TestNew_NamesEveryFault(t *testing.T) {
	t.Parallel()
	_, err := openai.New(openai.Options{Options: endpoint.Options{BaseURL: "localhost:11434/v1", MaxAttempts: -1, RetryDelay: -1, IdleTimeout: -1}})
	for _, want := range []string{"model: missing", `base URL "localhost:11434/v1"`, "http://localhost:11434/v1", "max attempts -1", "retry delay -1", "idle timeout -1"} {
		require.ErrorContains(t, err, want)
	}
	for base, want := range map[string]string{
		"ftp://x/v1":                              "must start with http:// or https://",
		"http:///v1":                              "name a host",
		"http://x/v1?a=b":                         "neither a query nor a fragment",
		"http://x/v1/chat/completions":            "must end before /chat/completions",
		"http://user:hunter2@x:bad/v1":            "is not a URL",
		"http://user:hunter2@x/v1#f":              "xxxxx",
		"http://user:hunter2@x/chat/completions/": "xxxxx",
		"http://hunter2@x/v1/chat/completions":    "xxxxx@x/v1",
		"http://x/v1?key=hunter2":                 "http://x/v1?xxxxx",
		"http://x/v1#hunter2":                     "http://x/v1#xxxxx",
		"user:hunter2@x/v1":                       "xxxxx@x/v1",
		"hunter2@x/v1":                            "xxxxx@x/v1",
	} {
		_, err := openai.New(openai.Options{Options: endpoint.Options{Model: "m", BaseURL: base}})
		require.ErrorContains(t, err, want, base)
		require.NotContains(t, err.Error(), "hunter2")
	}
}
