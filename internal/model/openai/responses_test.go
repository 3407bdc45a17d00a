package openai_test

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/model/aimocktest"
	"github.com/toolfleet/toolfleet/internal/model/endpoint"
	"github.com/toolfleet/toolfleet/internal/model/modeltest"
	"github.com/toolfleet/toolfleet/internal/model/openai"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
)

func item(kind string, index int, format string, args ...any) string {
	return modeltest.Data(`{"type":"response.output_item.%s","output_index":%d,"item":{%s}}`, kind, index, modeltest.Data(format, args...)[len("data: "):])
}

// responses is how the Responses API writes a stream.
func responses() *modeltest.Dialect {
	return &modeltest.Dialect{
		New: func(opts endpoint.Options) (loop.Model, error) {
			return openai.New(openai.Options{Options: opts, API: openai.Responses, Images: true})
		},
		Base: "/v1", Path: "/responses",
		Begin: []string{
			"event: response.created\n" +
				modeltest.Data(`{"type":"response.created","response":{"id":"resp_1","status":"in_progress","model":"m-1-2026","output":[],"error":null,"usage":null}}`),
		},
		Text: func(piece string) string {
			return modeltest.Data(`{"type":"response.output_text.delta","item_id":"msg_1","output_index":50,"content_index":0,"delta":"%s"}`, piece)
		},
		Thought: func(piece string) string {
			return modeltest.Data(`{"type":"response.reasoning_summary_text.delta","output_index":0,"summary_index":0,"delta":"%s"}`, piece)
		},
		Call: func(index int, id, name string, pieces ...string) []string {
			events := []string{item("added", index+1, `"type":"function_call","call_id":"%s","name":"%s","arguments":""`, id, name)}
			for _, piece := range pieces {
				events = append(events, modeltest.Data(`{"type":"response.function_call_arguments.delta","output_index":%d,"delta":"%s"}`, index+1, modeltest.Quoted(piece)))
			}
			return append(events, modeltest.Data(`{"type":"response.function_call_arguments.done","output_index":%d}`, index+1))
		},
		CallObject: func(index int, id, name, object string) []string {
			return []string{item("done", index+1, `"type":"function_call","call_id":"%s","name":"%s","arguments":%s`, id, name, object)}
		},
		End: func(reason string, input, output int) []string {
			if reason == "completed" {
				return []string{modeltest.Data(`{"type":"response.completed","response":{"status":"completed","error":null,"incomplete_details":null,"usage":{"input_tokens":%d,"output_tokens":%d}}}`, input, output)}
			}
			return []string{modeltest.Data(`{"type":"response.incomplete","response":{"status":"incomplete","incomplete_details":{"reason":"%s"},"usage":{"input_tokens":%d,"output_tokens":%d}}}`, reason, input, output)}
		},
		Empty: []string{modeltest.Data(`{"type":"response.in_progress","response":{}}`), modeltest.Data(`{"type":"response.new_one","x":1}`), modeltest.Data(`{}`)},
		Native: []string{
			item("done", 10,
				`"type":"web_search_call","id":"ws_1","status":"completed","action":{"type":"search","query":"go 1.27","sources":[{"type":"url","url":"https://go.dev/"}]}`),
			item("done", 11, `"type":"code_interpreter_call","id":"ci_1","status":"failed","code":"print(1)","outputs":[{"type":"logs","logs":"boom"}]`),
			item("done", 12, `"type":"image_generation_call","id":"ig_1","status":"completed","revised_prompt":"a dot","output_format":"webp","result":"iVBORw=="`),
		},
		NativeCalls: []loop.NativeCall{
			{Name: "own_0", Kind: "web_search", Input: "go 1.27", Output: "https://go.dev/"},
			{Name: "own_1", Kind: "code_interpreter", Input: "print(1)", Output: "boom", Failed: true},
			{Name: "own_2", Kind: "image_generation", Input: "a dot", Image: &loop.Image{MediaType: "image/webp", Data: []byte("\x89PNG")}},
		},
		Whole: "completed", Length: "max_output_tokens", Filtered: "content_filter", Failed: "error",
		MayCut: true, Document: `"file_data":"data:application/pdf;base64,JVBERi0="`,
		Attached: []string{
			`{"text":"hello","type":"input_text"}`, `{"image_url":"data:image/png;base64,AA==","type":"input_image"}`,
			`{"file_data":"data:application/pdf;base64,AQ==","filename":"b.pdf","type":"input_file"}`,
		},
	}
}

func TestResponses_Conforms(t *testing.T) {
	t.Parallel()
	modeltest.Run(t, responses())
}

// The last event of some servers says only that there is no more; the response says how it ended.
func TestResponses_HowItEnds(t *testing.T) {
	t.Parallel()
	d := responses()
	for end, want := range map[string]string{
		`"response.done","response":{"status":"completed"}`:                                                           "",
		`"response.done","response":{}`:                                                                               "",
		`"response.done","response":{"status":"incomplete"}`:                                                          endpoint.TypeUnfinished,
		`"response.done","response":{"status":"cancelled"}`:                                                           endpoint.TypeUnfinished,
		`"response.done","response":{"status":"incomplete","incomplete_details":{"reason":"content_filter"}}`:         endpoint.TypeContentFilter,
		`"response.cancelled","response":{"status":"cancelled"}`:                                                      endpoint.TypeUnfinished,
		`"response.failed","response":{"status":"failed","error":null}`:                                               endpoint.TypeUnfinished,
		`"response.failed","response":{"status":"failed","error":{"code":"server_error","message":"worker is dead"}}`: endpoint.TypeServerError,
	} {
		events := append(slices.Clone(d.Begin), d.Text("half a"), `data: {"type":`+end+`}`, "data: [DONE]")
		m := modeltest.Serve(t, d, modeltest.Stream(events...)).Model(t, func(o *endpoint.Options) { o.MaxAttempts = 1 })
		reply, err := m.Reply(t.Context(), modeltest.Hello(), modeltest.Ignore)
		if want == "" {
			require.NoError(t, err, end)
			require.Equal(t, "half a", reply.Text)
			continue
		}
		modeltest.RequireType(t, want, err)
	}
}

func TestResponses_SendsTheConversation(t *testing.T) {
	t.Parallel()
	s := modeltest.Serve(t, responses(), modeltest.Stream(responses().Stream(responses().Text("ok"))...))
	_, err := s.Model(t).Reply(t.Context(), loop.Request{
		Messages: []loop.Message{
			{Role: loop.RoleSystem, Text: "Be brief."},
			{Role: loop.RoleUser, Text: "Look."},
			{
				Role: loop.RoleAssistant, Text: "I look.",
				ToolCalls: []loop.ToolCall{{ID: "c1", Name: "bash", Arguments: `{"n":1}`}, {ID: "c2", Name: "read.it", Arguments: `{"pa`}},
			},
			{Role: loop.RoleTool, ToolCallID: "c1", Name: "bash", Text: "a.png", Image: &loop.Image{MediaType: "image/png", Data: []byte("\x89PNG")}},
			{Role: loop.RoleTool, ToolCallID: "c2", Name: "read"},
		},
		Tools: []tools.Definition{
			{Name: "bash", Description: "Runs.", Schema: json.RawMessage(`{"type":"object","x":1}`)},
			{Name: "web", Native: map[string]json.RawMessage{"openai": json.RawMessage(`{"type":"web_search"}`)}},
		},
		Settings: loop.Settings{Effort: "low"},
	}, modeltest.Ignore)
	require.NoError(t, err)
	sent, err := json.Marshal(s.Asked()[0])
	require.NoError(t, err)
	require.JSONEq(t, `{
		"model": "m-1", "stream": true, "store": false, "include": ["reasoning.encrypted_content", "web_search_call.action.sources"],
		"reasoning": {"effort": "low", "summary": "auto"}, "instructions": "Be brief.",
		"input": [
			{"type": "message", "role": "user", "content": "Look."},
			{"type": "message", "role": "assistant", "content": "I look."},
			{"type": "function_call", "call_id": "c1", "name": "bash", "arguments": "{\"n\":1}"},
			{"type": "function_call", "call_id": "c2", "name": "read_it", "arguments": "{\"invalid_arguments\":\"{\\\"pa\"}"},
			{"type": "function_call_output", "call_id": "c1", "output": [
				{"type": "input_text", "text": "a.png"}, {"type": "input_image", "image_url": "data:image/png;base64,iVBORw=="}]},
			{"type": "function_call_output", "call_id": "c2", "output": "(empty)"}
		],
		"tools": [
			{"type": "function", "name": "bash", "description": "Runs.", "parameters": {"type": "object", "x": 1}, "strict": false},
			{"type": "web_search"}
		]
	}`, string(sent))
}

// Reasoning goes back encrypted, in front of the call to which it led.
func TestResponses_ReasoningGoesBackAsItCame(t *testing.T) {
	t.Parallel()
	const thought = `"type":"reasoning","id":"rs_1","summary":[{"type":"summary_text","text":"I look."}],"encrypted_content":"xyz"`
	d := responses()
	s := modeltest.Serve(t, d, modeltest.Stream(slices.Concat(d.Begin, []string{
		item("added", 0, `"type":"reasoning","id":"rs_1","summary":[]`), item("done", 0, thought),
		item("added", 1, `"type":"message","content":[]`), item("done", 1, `"type":"message","content":[{"type":"output_text","text":"Look."}]`),
		item("done", 2, `"type":"reasoning","id":"rs_2","summary":[]`),
		item("done", 3, `"type":"function_call","call_id":"c1","name":"bash","arguments":"{}"`),
		modeltest.Data(`{"type":"response.completed","response":{"usage":{"input_tokens":100,"input_tokens_details":{"cached_tokens":40},"output_tokens":9,"output_tokens_details":{"reasoning_tokens":6}}}}`),
	})...), modeltest.Status(http.StatusBadRequest, `{"error":{"message":"Item 'rs_1' of type 'reasoning' was provided without its required following item."}}`),
		modeltest.Stream(d.Stream(d.Text("ok"))...))
	m := s.Model(t)
	reply := modeltest.Reply(t, m, modeltest.Hello(), modeltest.Ignore)
	require.Equal(t, "I look.", reply.Reasoning.Text)
	require.Equal(t, "Look.", reply.Text, "which came whole")
	require.Equal(t, protocol.Usage{InputTokens: 100, OutputTokens: 9, CachedTokens: 40, ReasoningTokens: 6}, reply.Usage)
	next := modeltest.Hello()
	next.Messages = append(next.Messages, loop.Message{Role: loop.RoleAssistant, Text: reply.Text, ToolCalls: reply.ToolCalls, Reasoning: reply.Reasoning},
		loop.Message{Role: loop.RoleTool, ToolCallID: "c1", Text: "done"})
	modeltest.Reply(t, m, next, modeltest.Ignore)
	input := func(i int) string {
		sent, err := json.Marshal(s.Asked()[i]["input"].([]any)[1:]) //nolint:errcheck // it panics
		require.NoError(t, err)
		return string(sent)
	}
	const rest = `{"type":"message","role":"assistant","content":"Look."}, {"type":"function_call","call_id":"c1","name":"bash","arguments":"{}"},
		{"type":"function_call_output","call_id":"c1","output":"done"}]`
	require.JSONEq(t, `[{`+thought+`}, `+rest, input(1))
	require.JSONEq(t, `[`+rest, input(2), "a server that refuses it is asked without")
}

// What a server rejects is omitted from then on.
func TestResponses_WhatAServerRejects(t *testing.T) {
	t.Parallel()
	bad := func(message string) modeltest.Answer {
		return modeltest.Status(http.StatusBadRequest, `{"error":{"message":"`+message+`"}}`)
	}
	s := modeltest.Serve(t, responses(),
		bad("Encrypted content is not supported with this model."), bad("Unsupported parameter: 'reasoning.summary'"), bad("Invalid schema for function 'b'"),
		modeltest.Stream(responses().Stream(responses().Text("ok"))...))
	m := s.Model(t)
	request := modeltest.Hello()
	request.Tools = []tools.Definition{{Name: "a"}, {Name: "b"}}
	for range 2 {
		modeltest.Reply(t, m, request, modeltest.Ignore)
	}
	require.Len(t, s.Asked(), 5)
	last := s.Asked()[4]
	require.NotContains(t, last, "include")
	require.NotContains(t, last, "reasoning")
	require.Len(t, last["tools"], 1)
	require.Contains(t, last["instructions"], "[The tool b is left out")

	s = modeltest.Serve(t, responses(), bad("Invalid 'input[2].output[1].image_url': bad image"))
	request = modeltest.Hello()
	request.Messages = append(request.Messages, loop.Message{Role: loop.RoleAssistant, ToolCalls: []loop.ToolCall{{ID: "c1", Name: "a"}}},
		loop.Message{Role: loop.RoleTool, ToolCallID: "c1", Text: "x", Image: &loop.Image{MediaType: "image/png", Data: []byte("x")}})
	_, err := s.Model(t).Reply(t.Context(), request, modeltest.Ignore)
	var refused *loop.RefusedError
	require.ErrorAs(t, err, &refused)
	require.Equal(t, []loop.Part{{ToolCallID: "c1", Kind: loop.PartImage}}, refused.Parts)
}

// elsewhere sends requests to another host than that of their URL.
type elsewhere struct{ to *modeltest.Server }

func (e elsewhere) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.URL.Scheme, r.URL.Host = "http", e.to.Listener.Addr().String()
	return e.to.Client().Transport.RoundTrip(r)
}

// Where the Responses API is not found, chat completions give the same reply, and all later ones.
func TestResponses_FallsBackToChat(t *testing.T) {
	t.Parallel()
	d := chat()
	d.Path = "" // of both
	answer := func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v1/chat/completions" {
			modeltest.Status(http.StatusNotFound, "404 page not found")(w, r)
			return
		}
		modeltest.Stream(d.Stream(d.Text("ok"))...)(w, r)
	}
	for name, test := range map[string]struct {
		api   string
		paths []string
	}{
		openai.Auto: {openai.Auto, []string{"/v1/responses", "/v1/chat/completions", "/v1/chat/completions"}},
		openai.Chat: {openai.Chat, []string{"/v1/chat/completions", "/v1/chat/completions"}},
	} {
		var paths []string
		s := modeltest.Serve(t, d, func(w http.ResponseWriter, r *http.Request) {
			paths = append(paths, r.URL.Path)
			answer(w, r)
		})
		m, err := openai.New(openai.Options{API: test.api, Options: endpoint.Options{
			Model: "m-1", APIKey: key, HTTPClient: &http.Client{Transport: elsewhere{s}}, RetryDelay: time.Microsecond,
		}})
		require.NoError(t, err)
		for range 2 {
			reply, err := m.Reply(t.Context(), modeltest.Hello(), modeltest.Ignore)
			require.NoError(t, err, name)
			require.Equal(t, "ok", reply.Text)
		}
		require.Equal(t, test.paths, paths, name)
	}
	s := modeltest.Serve(t, responses(), modeltest.Status(http.StatusNotFound, "404 page not found"))
	_, err := s.Model(t).Reply(t.Context(), modeltest.Hello(), modeltest.Ignore)
	modeltest.RequireType(t, endpoint.TypeNotFound, err)
}

// A real server that is not ours agrees about the API.
func TestResponses_AimockSession(t *testing.T) {
	t.Parallel()
	base := aimocktest.Start(t, fixtures)
	client := &http.Client{Transport: &http.Transport{}}
	t.Cleanup(client.CloseIdleConnections)
	m, err := openai.New(openai.Options{
		API:     openai.Responses,
		Options: endpoint.Options{Model: "mock", APIKey: aimocktest.APIKey, BaseURL: base, HTTPClient: client, RetryDelay: time.Millisecond},
	})
	require.NoError(t, err)
	req := loop.Request{
		Messages: []loop.Message{{Role: loop.RoleSystem, Text: "Be brief."}, {Role: loop.RoleUser, Text: "fix the tests"}},
		Tools:    []tools.Definition{{Name: "bash", Description: "Runs."}, {Name: "read"}},
	}
	reply := modeltest.Reply(t, m, req, modeltest.Ignore)
	require.Equal(t, "Let me look.", reply.Text)
	require.Equal(t, []loop.ToolCall{
		{ID: "call_tests", Name: "bash", Arguments: `{"command":"go test ./... # it's \"quoted\""}`},
		{ID: "call_file", Name: "read", Arguments: `{"path":"a.go"}`},
	}, reply.ToolCalls)
	req.Messages = append(req.Messages,
		loop.Message{Role: loop.RoleAssistant, Text: reply.Text, ToolCalls: reply.ToolCalls, Reasoning: reply.Reasoning},
		loop.Message{Role: loop.RoleTool, ToolCallID: "call_tests", Name: "bash"},
		loop.Message{Role: loop.RoleTool, ToolCallID: "call_file", Name: "read", Text: "package a\n"})
	reply = modeltest.Reply(t, m, req, modeltest.Ignore)
	require.Equal(t, "All is well.", reply.Text)
	reply = modeltest.Reply(t, m, says("a long story"), modeltest.Ignore)
	require.Equal(t, "It goes on and", reply.Text)
	_, err = m.Reply(t.Context(), says("forbidden things"), modeltest.Ignore)
	modeltest.RequireType(t, endpoint.TypePermission, err)
}

// What a server refuses of one conversation's thoughts is left out of that request alone.
func TestResponses_ARefusedThoughtIsALessonForItsRequest(t *testing.T) {
	t.Parallel()
	ok := modeltest.Stream(responses().Stream(responses().Text("ok"))...)
	s := modeltest.Serve(t, responses(),
		modeltest.Status(http.StatusBadRequest, `{"error":{"code":"invalid_encrypted_content","message":"The encrypted content of item rs_1 could not be verified."}}`), ok)
	m := s.Model(t)
	request := modeltest.Hello()
	request.Messages = append(request.Messages, loop.Message{
		Role: loop.RoleAssistant, ToolCalls: []loop.ToolCall{{ID: "c1", Name: "a", Arguments: "{}"}},
		Reasoning: &loop.Reasoning{
			Opaque: json.RawMessage(`{"responses":[{"type":"reasoning","raw":{"type":"reasoning","id":"rs_1","encrypted_content":"xyz"}},{"type":"call"}]}`),
		},
	}, loop.Message{Role: loop.RoleTool, ToolCallID: "c1", Text: "1"})
	for range 2 {
		modeltest.Reply(t, m, request, modeltest.Ignore)
	}
	require.Len(t, s.Asked(), 3)
	for i, has := range []bool{true, false, true} {
		body, err := json.Marshal(s.Asked()[i])
		require.NoError(t, err)
		require.Equal(t, has, strings.Contains(string(body), "rs_1"), "request %d", i)
		require.Contains(t, string(body), "reasoning.encrypted_content")
	}
}
