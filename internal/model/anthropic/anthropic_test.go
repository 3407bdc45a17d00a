package anthropic_test

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/toolfleet/toolfleet/internal/model/aimocktest"
	"github.com/toolfleet/toolfleet/internal/model/anthropic"
	"github.com/toolfleet/toolfleet/internal/model/endpoint"
	"github.com/toolfleet/toolfleet/internal/model/modeltest"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// delta is an event with a piece of the block with an index.
func delta(index int, format string, args ...any) string {
	return modeltest.Data(`{"type":"content_block_delta","index":%d,"delta":{`+modeltest.Data(format, args...)[len("data: "):]+`}}`, index)
}

func start(index int, block string) string {
	return modeltest.Data(`{"type":"content_block_start","index":%d,"content_block":%s}`, index, block)
}

// messages is how the Messages API writes a stream.
func messages() *modeltest.Dialect {
	return &modeltest.Dialect{
		New:  func(opts endpoint.Options) (loop.Model, error) { return anthropic.New(opts) },
		Path: "/v1/messages",
		Begin: []string{
			"event: message_start\n" + modeltest.Data(`{"type":"message_start","message":{"id":"msg_1","type":"message","role":"assistant","content":[],"model":"m-1-2026","stop_reason":null,"usage":{"input_tokens":2,"cache_read_input_tokens":null,"output_tokens":1}}}`),
			modeltest.Data(`{"type":"ping"}`),
		},
		Text:    func(piece string) string { return delta(0, `"type":"text_delta","text":"%s"`, piece) },
		Thought: func(piece string) string { return delta(7, `"type":"thinking_delta","thinking":"%s"`, piece) },
		Call: func(index int, id, name string, pieces ...string) []string {
			events := []string{start(index+1, modeltest.Data(`{"type":"tool_use","id":"%s","name":"%s","input":{}}`, id, name)[len("data: "):])}
			for _, piece := range pieces {
				events = append(events, delta(index+1, `"type":"input_json_delta","partial_json":"%s"`, modeltest.Quoted(piece)))
			}
			return append(events, modeltest.Data(`{"type":"content_block_stop","index":%d}`, index+1))
		},
		CallObject: func(index int, id, name, object string) []string {
			return []string{start(index+1, modeltest.Data(`{"type":"tool_use","id":"%s","name":"%s","input":%s}`, id, name, object)[len("data: "):])}
		},
		End: func(reason string, input, output int) []string {
			return []string{
				modeltest.Data(`{"type":"message_delta","delta":{"stop_reason":"%s","stop_sequence":null},"usage":{"input_tokens":%d,"output_tokens":%d}}`, reason, input, output),
				modeltest.Data(`{"type":"message_stop"}`),
			}
		},
		Empty: []string{modeltest.Data(`{"type":"ping"}`), modeltest.Data(`{"type":"a_new_one","x":1}`), modeltest.Data(`{}`)},
		Native: []string{
			modeltest.Data(`{"type":"content_block_start","index":20,"content_block":{"type":"server_tool_use","id":"srv_1","name":"web_search","input":{}}}`),
			modeltest.Data(`{"type":"content_block_delta","index":20,"delta":{"type":"input_json_delta","partial_json":"{\"query\":\"go 1.27\"}"}}`),
			modeltest.Data(`{"type":"content_block_start","index":21,"content_block":{"type":"web_search_tool_result","tool_use_id":"srv_1","content":[{"type":"web_search_result","title":"Go","url":"https://go.dev/"}]}}`),
			modeltest.Data(`{"type":"content_block_start","index":22,"content_block":{"type":"server_tool_use","id":"srv_2","name":"bash_code_execution","input":{"command":"echo 1; exit 3"}}}`),
			modeltest.Data(`{"type":"content_block_start","index":23,"content_block":{"type":"bash_code_execution_tool_result","tool_use_id":"srv_2","content":{"type":"bash_code_execution_result","stdout":"1","stderr":"","return_code":3}}}`),
			modeltest.Data(`{"type":"content_block_start","index":24,"content_block":{"type":"server_tool_use","id":"srv_3","name":"web_search","input":{"query":"x"}}}`),
			modeltest.Data(`{"type":"content_block_start","index":25,"content_block":{"type":"web_search_tool_result","tool_use_id":"srv_3","content":{"type":"web_search_tool_result_error","error_code":"unavailable"}}}`),
		},
		NativeCalls: []loop.NativeCall{
			{Name: "own_0", Kind: "web_search", Input: "go 1.27", Output: "Go https://go.dev/"},
			{Name: "own_1", Kind: "code_execution", Input: "echo 1; exit 3", Output: "1", Failed: true},
			{Name: "own_0", Kind: "web_search", Input: "x", Output: "unavailable", Failed: true},
		},
		Whole: "end_turn", Length: "max_tokens", Filtered: "refusal", Failed: "error", MayCut: true, Document: `"type":"document"`,
		Attached: []string{
			`{"text":"hello","type":"text"}`, `{"source":{"data":"AA==","media_type":"image/png","type":"base64"},"type":"image"}`,
			`"source":{"data":"AQ==","media_type":"application/pdf","type":"base64"},"type":"document"`,
		},
	}
}

func TestMessages_Conforms(t *testing.T) {
	t.Parallel()
	modeltest.Run(t, messages())
}

// A character that is cut between the beginning of a block and what follows arrives whole.
func TestMessages_ACharacterCutAtTheBeginningOfABlock(t *testing.T) {
	t.Parallel()
	d := messages()
	events := append(slices.Clone(d.Begin),
		start(1, `{"type":"thinking","thinking":"h\ud83d"}`), delta(1, `"type":"thinking_delta","thinking":"%s"`, `\ude00`),
		start(2, `{"type":"text","text":"a\ud83d"}`), delta(2, `"type":"text_delta","text":"%s"`, `\ude00b`))
	s := modeltest.Serve(t, d, modeltest.Stream(append(events, d.End(d.Whole, 1, 1)...)...))
	reply := modeltest.Reply(t, s.Model(t), modeltest.Hello(), modeltest.Ignore)
	require.Equal(t, "a😀b", reply.Text)
	require.Equal(t, "h😀", reply.Reasoning.Text)
}

func TestMessages_SendsTheConversation(t *testing.T) {
	t.Parallel()
	s := modeltest.Serve(t, messages(), modeltest.Stream(messages().Stream(messages().Text("ok"))...))
	_, err := s.Model(t).Reply(t.Context(), loop.Request{
		Messages: []loop.Message{
			{Role: loop.RoleSystem, Text: "Be brief."},
			{Role: loop.RoleUser, Text: "Look."},
			{Role: loop.RoleAssistant, Text: "I look.", ToolCalls: []loop.ToolCall{
				{ID: "c1", Name: "bash", Arguments: `{"command":"ls","n":9007199254740993}`},
				{ID: "call of another", Name: "read.it", Arguments: `{"pa`},
			}},
			{Role: loop.RoleTool, ToolCallID: "c1", Name: "bash", Text: "a.png", Image: &loop.Image{MediaType: "image/png", Data: []byte("\x89PNG")}},
			{Role: loop.RoleTool, ToolCallID: "call of another", Name: "read", Text: " "},
			{Role: loop.RoleUser, Text: "[A note.]"},
			{Role: loop.RoleAssistant, Text: "Hm."},
			{Role: loop.RoleUser, Text: "Go on."},
		},
		Tools: []tools.Definition{
			{Name: "bash", Description: "Runs.", Schema: json.RawMessage(`{"type":"object","properties":{"command":{"type":"string"}},"x":1}`)},
			{Name: "elsewhere", Native: map[string]json.RawMessage{"openai": json.RawMessage(`{"type":"x"}`)}},
			{Name: "web", Native: map[string]json.RawMessage{"anthropic": json.RawMessage(`{"type":"web_search_20250305","name":"web_search"}`)}},
			{Name: "now"},
		},
	}, modeltest.Ignore)
	require.NoError(t, err)
	sent, err := json.Marshal(s.Asked()[0])
	require.NoError(t, err)
	require.JSONEq(t, `{
		"model": "m-1", "max_tokens": 16384, "stream": true,
		"system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
		"messages": [
			{"role": "user", "content": [{"type": "text", "text": "Look."}]},
			{"role": "assistant", "content": [
				{"type": "text", "text": "I look."},
				{"type": "tool_use", "id": "c1", "name": "bash", "input": {"command": "ls", "n": 9007199254740993}},
				{"type": "tool_use", "id": "`+endpoint.ShortID("call of another")+`", "name": "read_it", "input": {"invalid_arguments": "{\"pa"}}
			]},
			{"role": "user", "content": [
				{"type": "tool_result", "tool_use_id": "c1", "content": [
					{"type": "text", "text": "a.png"}, {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw=="}}]},
				{"type": "tool_result", "tool_use_id": "`+endpoint.ShortID("call of another")+`", "content": [{"type": "text", "text": "(empty)"}]},
				{"type": "text", "text": "[A note.]", "cache_control": {"type": "ephemeral"}}
			]},
			{"role": "assistant", "content": [{"type": "text", "text": "Hm."}]},
			{"role": "user", "content": [{"type": "text", "text": "Go on.", "cache_control": {"type": "ephemeral"}}]}
		],
		"tools": [
			{"name": "bash", "description": "Runs.", "input_schema": {"type": "object", "properties": {"command": {"type": "string"}}, "x": 1}},
			{"type": "web_search_20250305", "name": "web_search"},
			{"name": "now", "input_schema": {"type": "object", "properties": {}}, "cache_control": {"type": "ephemeral"}}
		]
	}`, string(sent))
	require.Equal(t, modeltest.Key, s.Header().Get("X-Api-Key"))
	require.NotEmpty(t, s.Header().Get("Anthropic-Version"))
}

// What is thought goes back signed, and where it stood between texts and calls.
func TestMessages_ThoughtsGoBackAsTheyCame(t *testing.T) {
	t.Parallel()
	lines := slices.Concat(messages().Begin, []string{
		start(0, `{"type":"thinking","thinking":"","signature":""}`),
		delta(0, `"type":"thinking_delta","thinking":"I \ud83d"`), delta(0, `"type":"thinking_delta","thinking":"\ude00"`),
		delta(0, `"type":"signature_delta","signature":"sig=="`),
		start(1, `{"type":"redacted_thinking","data":"xyz"}`),
		start(2, `{"type":"text","text":""}`), delta(2, `"type":"text_delta","text":"First."`),
		start(3, `{"type":"tool_use","id":"c1","name":"bash","input":{}}`), delta(3, `"type":"input_json_delta","partial_json":"{}"`),
		start(4, `{"type":"thinking","thinking":"more","signature":"sig2"}`),
		start(5, `{"type":"text","text":"Second."}`),
		start(6, `{"type":"tool_use","id":"c2","name":"read","input":{}}`),
	}, messages().End("tool_use", 100, 9)[:1],
		[]string{modeltest.Data(`{"type":"message_delta","delta":{},"usage":{"output_tokens":9,"cache_read_input_tokens":40,"cache_creation_input_tokens":5,"output_tokens_details":{"thinking_tokens":6}}}`)})
	s := modeltest.Serve(t, messages(), modeltest.Stream(lines...), modeltest.Status(http.StatusBadRequest,
		`{"type":"error","error":{"type":"invalid_request_error","message":"messages.1.content.0: Invalid `+"`signature` in `thinking`"+` block"}}`),
		modeltest.Stream(messages().Stream(messages().Text("ok"))...))
	m := s.Model(t)
	reply := modeltest.Reply(t, m, modeltest.Hello(), modeltest.Ignore)
	require.Equal(t, "I 😀more", reply.Reasoning.Text)
	require.Equal(t, "First.Second.", reply.Text)
	require.Equal(t, protocol.Usage{InputTokens: 145, OutputTokens: 9, CachedTokens: 40, CacheWriteTokens: 5, ReasoningTokens: 6}, reply.Usage)

	next := modeltest.Hello()
	next.Messages = append(next.Messages,
		loop.Message{Role: loop.RoleAssistant, Text: reply.Text, ToolCalls: reply.ToolCalls, Reasoning: reply.Reasoning},
		loop.Message{Role: loop.RoleTool, ToolCallID: "c1", Text: "1"}, loop.Message{Role: loop.RoleTool, ToolCallID: "c2", Text: "2"})
	modeltest.Reply(t, m, next, modeltest.Ignore)
	asked := s.Asked()
	require.Len(t, asked, 3)
	said := func(i int) string {
		content, err := json.Marshal(asked[i]["messages"].([]any)[1]) //nolint:errcheck // it panics
		require.NoError(t, err)
		return string(content)
	}
	require.JSONEq(t, `{"role":"assistant","content":[
		{"type":"thinking","thinking":"I 😀","signature":"sig=="}, {"type":"redacted_thinking","data":"xyz"},
		{"type":"text","text":"First."}, {"type":"tool_use","id":"c1","name":"bash","input":{}},
		{"type":"thinking","thinking":"more","signature":"sig2"},
		{"type":"text","text":"Second."}, {"type":"tool_use","id":"c2","name":"read","input":{}}
	]}`, said(1))
	require.JSONEq(t, `{"role":"assistant","content":[{"type":"text","text":"First.Second."},
		{"type":"tool_use","id":"c1","name":"bash","input":{}}, {"type":"tool_use","id":"c2","name":"read","input":{}}
	]}`, said(2), "a server that refuses them is asked without")
}

// A reply that the provider paused for its own tools is continued, and counted as one.
func TestMessages_PausedRepliesGoOn(t *testing.T) {
	t.Parallel()
	first := slices.Concat(messages().Begin, []string{
		start(0, `{"type":"text","text":"I search."}`),
		start(1, `{"type":"server_tool_use","id":"s1","name":"web_search","input":{}}`), delta(1, `"type":"input_json_delta","partial_json":"{\"query\":\"x\"}"`),
		start(2, `{"type":"web_search_tool_result","tool_use_id":"s1","content":[{"type":"web_search_result","url":"https://a","title":"A","encrypted_content":"e"}]}`),
	}, messages().End("pause_turn", 10, 2))
	s := modeltest.Serve(t, messages(), modeltest.Stream(first...), modeltest.Stream(messages().Stream(messages().Text(" Found."))...))
	reply := modeltest.Reply(t, s.Model(t), modeltest.Hello(), modeltest.Ignore)
	require.Equal(t, "I search. Found.", reply.Text)
	require.Equal(t, protocol.Usage{InputTokens: 22, OutputTokens: 5}, reply.Usage)
	back, err := json.Marshal(s.Asked()[1]["messages"].([]any)[1]) //nolint:errcheck // it panics
	require.NoError(t, err)
	require.JSONEq(t, `{"role":"assistant","content":[
		{"type":"text","text":"I search."}, {"type":"server_tool_use","id":"s1","name":"web_search","input":{"query":"x"}},
		{"type":"web_search_tool_result","tool_use_id":"s1","content":[{"type":"web_search_result","url":"https://a","title":"A","encrypted_content":"e"}]}
	]}`, string(back))
}

// What a server rejects is omitted, or lowered, from then on.
func TestMessages_WhatAServerRejects(t *testing.T) {
	t.Parallel()
	bad := func(message string) modeltest.Answer {
		return modeltest.Status(http.StatusBadRequest, `{"type":"error","error":{"type":"invalid_request_error","message":"`+message+`"}}`)
	}
	s := modeltest.Serve(t, messages(),
		bad("max_tokens: 32768 > 8192, which is the maximum allowed number of output tokens for m-1"),
		bad("adaptive thinking is not supported by this model"),
		bad("system.0.cache_control: Extra inputs are not permitted"),
		bad("tools.1.custom.input_schema: JSON schema is invalid"),
		modeltest.Stream(messages().Stream(messages().Text("ok"))...))
	m := s.Model(t)
	request := modeltest.Hello()
	request.Settings.Effort = "high"
	request.Tools = []tools.Definition{{Name: "a"}, {Name: "b"}}
	for range 2 {
		modeltest.Reply(t, m, request, modeltest.Ignore)
	}
	asked := s.Asked()
	require.Len(t, asked, 6)
	require.Equal(t, map[string]any{"effort": "high"}, asked[0]["output_config"])
	require.Equal(t, map[string]any{"type": "adaptive", "display": "summarized"}, asked[0]["thinking"])
	last, err := json.Marshal(asked[5])
	require.NoError(t, err)
	require.JSONEq(t, `{
		"model": "m-1", "stream": true, "max_tokens": 8192, "thinking": {"type": "enabled", "budget_tokens": 4096},
		"system": [{"type": "text", "text": "[The tool b is left out, because the model's server refuses it: tools.1.custom.input_schema: JSON schema is invalid]"}],
		"messages": [{"role": "user", "content": [{"type": "text", "text": "hello"}]}],
		"tools": [{"name": "a", "input_schema": {"type": "object", "properties": {}}}]
	}`, string(last))
}

// A refusal names the parts of the conversation that it is about.
func TestMessages_RefusalsNameParts(t *testing.T) {
	t.Parallel()
	image := &loop.Image{MediaType: "image/png", Data: []byte("\x89PNG")}
	request := modeltest.Hello()
	request.Messages = append(request.Messages,
		loop.Message{Role: loop.RoleAssistant, ToolCalls: []loop.ToolCall{{ID: "c1", Name: "read"}, {ID: "c2", Name: "read"}}},
		loop.Message{Role: loop.RoleTool, ToolCallID: "c1", Text: "a"}, loop.Message{Role: loop.RoleTool, ToolCallID: "c2", Text: "b", Image: image})
	for message, want := range map[string][]loop.Part{
		"messages.2.content.1.tool_result.content.1.image.source: image exceeds 5 MB maximum": {{ToolCallID: "c2", Kind: loop.PartImage}},
		"messages.2.content.0.tool_result: too long":                                          {{ToolCallID: "c1", Kind: loop.PartResult}},
		"messages.1.content.1.tool_use.input: bad":                                            {{ToolCallID: "c2", Kind: loop.PartCall}},
		"Could not process image":                                                             {{ToolCallID: "c2", Kind: loop.PartImage}},
		"messages.0.content.0: bad":                                                           nil,
	} {
		s := modeltest.Serve(t, messages(), modeltest.Status(http.StatusBadRequest, `{"error":{"type":"invalid_request_error","message":"`+message+`"}}`))
		_, err := s.Model(t).Reply(t.Context(), request, modeltest.Ignore)
		var refused *loop.RefusedError
		if want == nil {
			require.NotErrorAs(t, err, &refused)
			continue
		}
		require.ErrorAs(t, err, &refused, message)
		require.Equal(t, want, refused.Parts)
		require.Len(t, s.Asked(), 1)
	}
}

const fixtures = `{"fixtures": [
	{"match": {"userMessage": "fix", "turnIndex": 0, "toolName": "bash", "systemMessage": "Be brief."},
	 "response": {"content": "Let me look.", "reasoning": "First the tests.", "toolCalls": [
		{"id": "call_tests", "name": "bash", "arguments": {"command": "go test ./... # it's \"quoted\""}},
		{"id": "call_file", "name": "read", "arguments": {"path": "a.go"}}]}},
	{"match": {"userMessage": "fix", "turnIndex": 1, "toolCallId": "call_file", "toolResultContains": "package a"},
	 "response": {"content": "All is well.", "usage": {"prompt_tokens": 21, "completion_tokens": 8, "total_tokens": 29}}},
	{"match": {"userMessage": "busy", "sequenceIndex": 0},
	 "response": {"error": {"message": "Slow down", "type": "rate_limit_error"}, "status": 429, "retryAfter": 1}},
	{"match": {"userMessage": "busy"}, "response": {"content": "Here I am."}},
	{"match": {"userMessage": "long"}, "response": {"content": "It goes on and", "finishReason": "length"}}
]}`

// A real server that is not ours agrees about the API.
func TestAimock_Session(t *testing.T) {
	t.Parallel()
	base := strings.TrimSuffix(aimocktest.Start(t, fixtures), "/v1")
	client := &http.Client{Transport: &http.Transport{}}
	t.Cleanup(client.CloseIdleConnections)
	m, err := anthropic.New(endpoint.Options{Model: "claude-mock", APIKey: aimocktest.APIKey, BaseURL: base, HTTPClient: client, RetryDelay: time.Millisecond})
	require.NoError(t, err)
	req := loop.Request{
		Messages: []loop.Message{{Role: loop.RoleSystem, Text: "Be brief."}, {Role: loop.RoleUser, Text: "fix the tests"}},
		Tools:    []tools.Definition{{Name: "bash", Description: "Runs."}, {Name: "read"}},
	}
	reply := modeltest.Reply(t, m, req, modeltest.Ignore)
	require.Equal(t, "Let me look.", reply.Text)
	require.Equal(t, "First the tests.", reply.Reasoning.Text)
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
	require.Equal(t, protocol.Usage{InputTokens: 21, OutputTokens: 8}, reply.Usage)

	says := func(text string) loop.Request {
		return loop.Request{Messages: []loop.Message{{Role: loop.RoleUser, Text: text}}}
	}
	begun := time.Now()
	reply = modeltest.Reply(t, m, says("are you busy?"), modeltest.Ignore)
	require.Equal(t, "Here I am.", reply.Text)
	require.GreaterOrEqual(t, time.Since(begun), time.Second, "the server asked for a second")
	reply = modeltest.Reply(t, m, says("a long story"), modeltest.Ignore)
	require.True(t, reply.Cut)

	other, err := anthropic.New(endpoint.Options{Model: "claude-mock", APIKey: "another-key", BaseURL: base, HTTPClient: client})
	require.NoError(t, err)
	_, err = other.Reply(t.Context(), says("greet"), modeltest.Ignore)
	modeltest.RequireType(t, endpoint.TypeAuthentication, err)
}

// A thought that the server refuses is left out of its own request alone, which then asks for no
// thinking: else the server refuses that, too. Other sessions of the model, and this one in its
// next turn, think as before; so does a turn in which the model of another provider has replied.
func TestMessages_ARefusedThoughtIsALessonForItsRequest(t *testing.T) {
	t.Parallel()
	d := messages()
	bad := func(message string) modeltest.Answer {
		return modeltest.Status(http.StatusBadRequest, `{"type":"error","error":{"type":"invalid_request_error","message":"`+message+`"}}`)
	}
	// strict is what the API does with a budget of thinking.
	var s *modeltest.Server
	strict := func(w http.ResponseWriter, r *http.Request) {
		asked := s.Asked()
		body, _ := json.Marshal(asked[len(asked)-1]) //nolint:errchkjson // decoded
		thinks := strings.Contains(string(body), `"budget_tokens"`)
		list, _ := asked[len(asked)-1]["messages"].([]any)
		last := ""
		for _, m := range list {
			if encoded, _ := json.Marshal(m); strings.Contains(string(encoded), `"role":"assistant"`) { //nolint:errchkjson // decoded
				last = string(encoded)
			}
		}
		switch {
		case strings.Contains(string(body), `"adaptive"`):
			bad("adaptive thinking is not supported on this model")(w, r)
		case thinks && strings.Contains(string(body), "forged"):
			bad("messages.1.content.0: Invalid `signature` in `thinking` block")(w, r)
		case thinks && strings.Contains(last, "tool_use") && !strings.Contains(last, `"content":[{"signature"`):
			bad("messages.1.content.0.type: Expected `thinking` or `redacted_thinking`, but found `tool_use`")(w, r)
		default:
			modeltest.Stream(d.Stream(d.Text("ok"))...)(w, r)
		}
	}
	s = modeltest.Serve(t, d, strict)
	m := s.Model(t)
	request := func(signature string) loop.Request {
		next := modeltest.Hello()
		next.Settings.Effort = "high"
		said := loop.Message{Role: loop.RoleAssistant, ToolCalls: []loop.ToolCall{{ID: "c1", Name: "bash", Arguments: "{}"}}}
		if signature != "" {
			said.Reasoning = &loop.Reasoning{
				Opaque: json.RawMessage(`{"anthropic":[{"type":"thinking","raw":{"signature":"` + signature + `","thinking":"I","type":"thinking"}},{"type":"call"}]}`),
			}
		}
		next.Messages = append(next.Messages, said, loop.Message{Role: loop.RoleTool, ToolCallID: "c1", Text: "1"})
		return next
	}
	last := func() string {
		body, err := json.Marshal(s.Asked()[len(s.Asked())-1])
		require.NoError(t, err)
		return string(body)
	}
	for _, signature := range []string{"forged", "genuine", "", "genuine", "forged"} {
		_, err := m.Reply(t.Context(), request(signature), modeltest.Ignore)
		require.NoError(t, err, signature)
		require.Equal(t, signature == "genuine", strings.Contains(last(), `"budget_tokens"`), signature)
		require.Equal(t, signature == "genuine", strings.Contains(last(), "genuine"), signature)
		require.NotContains(t, last(), "forged")
	}
	require.Len(t, s.Asked(), 1+2+1+1+1+2, "adaptive thinking is no lesson of a reply")
}
