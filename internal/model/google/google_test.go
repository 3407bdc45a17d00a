package google_test

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
	"github.com/toolfleet/toolfleet/internal/model/endpoint"
	"github.com/toolfleet/toolfleet/internal/model/google"
	"github.com/toolfleet/toolfleet/internal/model/modeltest"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// parts is a chunk with parts.
func parts(format string, args ...any) string {
	return modeltest.Data(`{"candidates":[{"content":{"role":"model","parts":[`+format+`]},"index":0}],"modelVersion":"m-1-2026","responseId":"r1"}`, args...)
}

// gemini is how the Gemini API writes a stream.
func gemini() *modeltest.Dialect {
	call := func(_ int, id, name string, pieces ...string) []string {
		arguments := strings.Join(pieces, "")
		if arguments == "" {
			arguments = "{}"
		}
		if !json.Valid([]byte(arguments)) { // cut off: the chunk is not whole
			return []string{parts(`{"functionCall":{"name":"%s","args":%s`, name, arguments), ""}
		}
		if id == "" {
			return []string{parts(`{"functionCall":{"name":"%s","args":%s}}`, name, arguments), parts(`{"text":""}`)}
		}
		return []string{parts(`{"functionCall":{"id":"%s","name":"%s","args":%s}}`, id, name, arguments), parts(`{"text":""}`)}
	}
	return &modeltest.Dialect{
		New:     func(opts endpoint.Options) (loop.Model, error) { return google.New(opts) },
		Path:    "/v1beta/models/m-1:streamGenerateContent",
		Text:    func(piece string) string { return parts(`{"text":"%s"}`, piece) },
		Thought: func(piece string) string { return parts(`{"text":"%s","thought":true}`, piece) },
		Call:    call,
		End: func(reason string, input, output int) []string {
			return []string{
				modeltest.Data(`{"candidates":[{"finishReason":"%s","index":0}],"modelVersion":"m-1-2026","usageMetadata":{"promptTokenCount":%d,"candidatesTokenCount":%d,"totalTokenCount":99}}`, reason, input, output),
			}
		},
		Empty: []string{modeltest.Data(`{"candidates":[]}`), modeltest.Data(`{}`), parts(`{}`), modeltest.Data(`{"usageMetadata":{}}`)},
		Native: []string{
			modeltest.Data(`{"candidates":[{"content":{"parts":[{"executableCode":{"language":"PYTHON","code":"plot()"}},{"codeExecutionResult":{"outcome":"OUTCOME_OK","output":"1"}},{"inlineData":{"mimeType":"image/png","data":"iVBORw=="}}]}}]}`),
			modeltest.Data(`{"candidates":[{"content":{"parts":[{"executableCode":{"language":"PYTHON","code":"x"}},{"codeExecutionResult":{"outcome":"OUTCOME_FAILED","output":"boom"}}]},"groundingMetadata":{"webSearchQueries":["go 1.27","go"],"groundingChunks":[{"web":{"uri":"https://go.dev/","title":"Go"}}]}}]}`),
		},
		NativeCalls: []loop.NativeCall{
			{Name: "own_1", Kind: "codeExecution", Input: "plot()", Output: "1", Image: &loop.Image{MediaType: "image/png", Data: []byte("\x89PNG")}},
			{Name: "own_1", Kind: "codeExecution", Input: "x", Output: "boom", Failed: true},
			{Name: "own_0", Kind: "googleSearch", Uses: 2, Input: "go 1.27; go", Output: "Go https://go.dev/"},
		},
		Whole: "STOP", Length: "MAX_TOKENS", Filtered: "SAFETY", Failed: "MALFORMED_FUNCTION_CALL", Document: `"mimeType":"application/pdf"`,
		Attached: []string{
			`{"text":"hello"}`, `{"inlineData":{"data":"AA==","mimeType":"image/png"}}`, `{"inlineData":{"data":"AQ==","mimeType":"application/pdf"}}`,
		},
	}
}

func TestGemini_Conforms(t *testing.T) {
	t.Parallel()
	modeltest.Run(t, gemini())
}

func body(t *testing.T, s *modeltest.Server, i int) string {
	t.Helper()
	raw, err := json.Marshal(s.Asked()[i])
	require.NoError(t, err)
	return string(raw)
}

func TestGemini_SendsTheConversation(t *testing.T) {
	t.Parallel()
	image := &loop.Image{MediaType: "image/png", Data: []byte("\x89PNG")}
	request := loop.Request{
		Messages: []loop.Message{
			{Role: loop.RoleSystem, Text: "Be brief."},
			{Role: loop.RoleUser, Text: "Look."},
			{Role: loop.RoleAssistant, Text: "I look.", ToolCalls: []loop.ToolCall{
				{ID: "c1", Name: "bash", Arguments: `{"n":9007199254740993}`}, {ID: "c2", Name: "read.it", Arguments: `{"pa`},
			}},
			{Role: loop.RoleTool, ToolCallID: "c1", Name: "bash", Text: "a.png", Image: image},
			{Role: loop.RoleTool, ToolCallID: "c2", Name: "read.it"},
			{Role: loop.RoleUser, Text: "[A note.]"},
		},
		Tools: []tools.Definition{
			{Name: "bash", Description: "Runs.", Schema: json.RawMessage(`{"type":"object","properties":{"command":{"type":"string"}},"x":1}`)},
			{Name: "elsewhere", Native: map[string]json.RawMessage{"openai": json.RawMessage(`{"type":"x"}`)}},
			{Name: "web", Native: map[string]json.RawMessage{"google": json.RawMessage(`{"type":"googleSearch","exclude":[1]}`)}},
		},
		Settings: loop.Settings{Effort: "low", MaxOutput: 100},
	}
	want := func(result, config string) string {
		return `{
			"systemInstruction": {"role": "user", "parts": [{"text": "Be brief."}]},
			"generationConfig": {"maxOutputTokens": 100, "thinkingConfig": ` + config + `},
			"contents": [
				{"role": "user", "parts": [{"text": "Look."}]},
				{"role": "model", "parts": [{"text": "I look."},
					{"functionCall": {"id": "c1", "name": "bash", "args": {"n": 9007199254740993}}},
					{"functionCall": {"id": "c2", "name": "read_it", "args": {"invalid_arguments": "{\"pa"}}}]},
				{"role": "user", "parts": [` + result + `,
					{"functionResponse": {"id": "c2", "name": "read_it", "response": {"output": ""}}}, {"text": "[A note.]"}]}
			],
			"tools": [{"googleSearch": {"exclude": [1]}},
				{"functionDeclarations": [{"name": "bash", "description": "Runs.", "parametersJsonSchema": {"type": "object", "properties": {"command": {"type": "string"}}, "x": 1}}]}]
		}`
	}
	png := `{"inlineData": {"mimeType": "image/png", "data": "iVBORw=="}}`
	d := gemini()
	s := modeltest.Serve(t, d, modeltest.Stream(d.Stream(d.Text("ok"))...))
	modeltest.Reply(t, s.Model(t), request, modeltest.Ignore)
	require.JSONEq(t, strings.Replace(want(`{"functionResponse": {"id": "c1", "name": "bash", "response": {"output": "a.png"}, "parts": [`+png+`]}}`,
		`{"includeThoughts": true, "thinkingLevel": "LOW"}`), "{", `{"toolConfig": {"includeServerSideToolInvocations": true},`, 1), body(t, s, 0))
	require.Equal(t, modeltest.Key, s.Header().Get("X-Goog-Api-Key"))

	d = gemini()
	d.Path = "/v1beta/models/gemini-2.5-flash:streamGenerateContent"
	s = modeltest.Serve(t, d, modeltest.Stream(d.Stream(d.Text("ok"))...))
	_, err := s.Model(t, func(o *endpoint.Options) { o.Model = "gemini-2.5-flash" }).Reply(t.Context(), request, modeltest.Ignore)
	require.NoError(t, err)
	require.JSONEq(t, want(`{"functionResponse": {"id": "c1", "name": "bash", "response": {"output": "a.png"}}}, `+png,
		`{"includeThoughts": true, "thinkingBudget": 1024}`), body(t, s, 0))
}

// A name may say in which list of the server the model is; what else it has is no path.
func TestGemini_PathOfAModel(t *testing.T) {
	t.Parallel()
	for name, path := range map[string]string{
		"m-1": "models/m-1", "models/m-1": "models/m-1", "tunedModels/mine": "tunedModels/mine", "a/b?c": "models/a%2Fb%3Fc", "models/../x": "models/..%2Fx",
	} {
		d := gemini()
		d.Path = ""
		var asked, key string
		s := modeltest.Serve(t, d, func(w http.ResponseWriter, r *http.Request) {
			asked, key = r.URL.String(), r.Header.Get("X-Goog-Api-Key")
			modeltest.Stream(d.Stream(d.Text("ok"))...)(w, r)
		})
		_, err := s.Model(t, func(o *endpoint.Options) { o.Model, o.APIKey = name, "" }).Reply(t.Context(), modeltest.Hello(), modeltest.Ignore)
		require.NoError(t, err)
		require.Equal(t, "/v1beta/"+path+":streamGenerateContent?alt=sse", asked)
		require.Empty(t, key)
	}
}

// Signatures go back with the parts that they came with.
func TestGemini_SignaturesGoBackAsTheyCame(t *testing.T) {
	t.Parallel()
	d := gemini()
	s := modeltest.Serve(t, d, modeltest.Stream(slices.Concat([]string{
		parts(`{"text":"I think.","thought":true}`),
		parts(`{"text":"Fi"}`), parts(`{"text":"rst."},{"functionCall":{"name":"bash","args":{}},"thoughtSignature":"c2ln"}`),
		parts(`{"functionCall":{"name":"read","args":{"path":"a"}}}`), parts(`{"executableCode":{"code":"1","language":"PYTHON"}}`),
		parts(`{"text":"Second."},{"text":"","thoughtSignature":"ZW5k"}`),
		modeltest.Data(`{"usageMetadata":{"promptTokenCount":100,"cachedContentTokenCount":40,"candidatesTokenCount":5,"thoughtsTokenCount":7}}`),
	}, []string{modeltest.Data(`{"candidates":[{"finishReason":"STOP"}]}`)})...), modeltest.Stream(d.Stream(d.Text("ok"))...))
	m := s.Model(t)
	reply := modeltest.Reply(t, m, modeltest.Hello(), modeltest.Ignore)
	require.Equal(t, "I think.", reply.Reasoning.Text)
	require.Equal(t, "First.Second.", reply.Text)
	require.Equal(t, protocol.Usage{InputTokens: 100, OutputTokens: 12, CachedTokens: 40, ReasoningTokens: 7}, reply.Usage)
	calls := reply.ToolCalls
	next := modeltest.Hello()
	next.Messages = append(next.Messages, loop.Message{Role: loop.RoleAssistant, Text: reply.Text, ToolCalls: calls, Reasoning: reply.Reasoning})
	modeltest.Reply(t, m, next, modeltest.Ignore)
	said, err := json.Marshal(s.Asked()[1]["contents"].([]any)[1]) //nolint:errcheck // it panics
	require.NoError(t, err)
	require.JSONEq(t, `{"role":"model","parts":[
		{"text":"First."}, {"functionCall":{"id":"`+calls[0].ID+`","name":"bash","args":{}},"thoughtSignature":"c2ln"},
		{"functionCall":{"id":"`+calls[1].ID+`","name":"read","args":{"path":"a"}}}, {"executableCode":{"code":"1","language":"PYTHON"}},
		{"text":"Second.","thoughtSignature":"ZW5k"}
	]}`, string(said))
}

// What a server rejects is omitted, or sent in another form, from then on.
func TestGemini_WhatAServerRejects(t *testing.T) {
	t.Parallel()
	bad := func(message string) modeltest.Answer {
		return modeltest.Status(http.StatusBadRequest, `{"error":{"code":400,"message":"`+message+`","status":"INVALID_ARGUMENT"}}`)
	}
	d := gemini()
	s := modeltest.Serve(t, d,
		bad("Function call is missing a thought_signature in functionCall parts."),
		bad("Thinking level is not supported for this model."),
		bad("Invalid schema for function 'b'"),
		modeltest.Stream(d.Stream(d.Text("ok"))...))
	m := s.Model(t)
	request := modeltest.Hello()
	request.Messages = append(request.Messages, loop.Message{Role: loop.RoleAssistant, ToolCalls: []loop.ToolCall{{ID: "c1", Name: "a"}, {ID: "c2", Name: "a"}}})
	request.Settings.Effort = "high"
	request.Tools = []tools.Definition{{Name: "a"}, {Name: "b"}}
	for range 2 {
		modeltest.Reply(t, m, request, modeltest.Ignore)
	}
	require.Len(t, s.Asked(), 5)
	require.Equal(t, 1, strings.Count(body(t, s, 3), "skip_thought_signature_validator"), "the first call of a reply alone has one")
	last := body(t, s, 4)
	require.NotContains(t, last, "skip_thought_signature_validator", "what one conversation has is no lesson for others")
	require.Contains(t, last, `"thinkingBudget":24576`)
	require.NotContains(t, last, `"name":"b"`)
	require.Contains(t, last, "[The tool b is left out")

	s = modeltest.Serve(t, d, bad("Thinking is not enabled for models/m-1"), modeltest.Stream(d.Stream(d.Text("ok"))...))
	modeltest.Reply(t, s.Model(t), modeltest.Hello(), modeltest.Ignore)
	require.NotContains(t, body(t, s, 1), "thinking")
}

func TestGemini_Errors(t *testing.T) {
	t.Parallel()
	d := gemini()
	for name, test := range map[string]struct {
		answer   modeltest.Answer
		wantType string
		want     string
	}{
		"a blocked prompt": {modeltest.Stream(modeltest.Data(`{"promptFeedback":{"blockReason":"OTHER"}}`)), endpoint.TypeContentFilter, `blockReason "OTHER"`},
		"a bad key": {
			modeltest.Status(400, `[{"error":{"code":400,"message":"API key not valid. Please pass a valid API key.","status":"INVALID_ARGUMENT"}}]`),
			endpoint.TypeAuthentication, "check the API key",
		},
	} {
		s := modeltest.Serve(t, d, test.answer)
		_, err := s.Model(t).Reply(t.Context(), modeltest.Hello(), modeltest.Ignore)
		modeltest.RequireType(t, test.wantType, err)
		require.ErrorContains(t, err, test.want, name)
		require.Len(t, s.Asked(), 1)
	}
	s := modeltest.Serve(t, d, modeltest.Status(429, `{"error":{"code":429,"message":"Slow down","details":[{"@type":"x/RetryInfo","retryDelay":"0.2s"}]}}`),
		modeltest.Stream(d.Stream(d.Text("ok"))...))
	begun := time.Now()
	_, err := s.Model(t, func(o *endpoint.Options) { o.MaxRetryDelay = time.Minute }).Reply(t.Context(), modeltest.Hello(), modeltest.Ignore)
	require.NoError(t, err)
	require.GreaterOrEqual(t, time.Since(begun), 200*time.Millisecond, "the server asked for it")
}

const fixtures = `{"fixtures": [
	{"match": {"userMessage": "fix", "turnIndex": 0, "toolName": "bash", "systemMessage": "Be brief."},
	 "response": {"content": "Let me look.", "toolCalls": [
		{"name": "bash", "arguments": {"command": "go test ./... # it's \"quoted\""}},
		{"name": "read", "arguments": {"path": "a.go"}}]}},
	{"match": {"userMessage": "fix", "turnIndex": 1, "toolResultContains": "package a"},
	 "response": {"content": "All is well.", "usage": {"prompt_tokens": 21, "completion_tokens": 8, "total_tokens": 29}}},
	{"match": {"userMessage": "long"}, "response": {"content": "It goes on and", "finishReason": "length"}}
]}`

// A real server that is not ours agrees about the API.
func TestAimock_Session(t *testing.T) {
	t.Parallel()
	base := strings.TrimSuffix(aimocktest.Start(t, fixtures), "/v1")
	client := &http.Client{Transport: &http.Transport{}}
	t.Cleanup(client.CloseIdleConnections)
	m, err := google.New(endpoint.Options{Model: "gemini-mock", APIKey: aimocktest.APIKey, BaseURL: base, HTTPClient: client, RetryDelay: time.Millisecond})
	require.NoError(t, err)
	req := loop.Request{
		Messages: []loop.Message{{Role: loop.RoleSystem, Text: "Be brief."}, {Role: loop.RoleUser, Text: "fix the tests"}},
		Tools:    []tools.Definition{{Name: "bash", Description: "Runs."}, {Name: "read"}},
	}
	reply := modeltest.Reply(t, m, req, modeltest.Ignore)
	require.Equal(t, "Let me look.", reply.Text)
	require.Len(t, reply.ToolCalls, 2)
	require.JSONEq(t, `{"command":"go test ./... # it's \"quoted\""}`, reply.ToolCalls[0].Arguments)
	req.Messages = append(req.Messages,
		loop.Message{Role: loop.RoleAssistant, Text: reply.Text, ToolCalls: reply.ToolCalls, Reasoning: reply.Reasoning},
		loop.Message{Role: loop.RoleTool, ToolCallID: reply.ToolCalls[0].ID, Name: "bash"},
		loop.Message{Role: loop.RoleTool, ToolCallID: reply.ToolCalls[1].ID, Name: "read", Text: "package a\n"})
	reply = modeltest.Reply(t, m, req, modeltest.Ignore)
	require.Equal(t, "All is well.", reply.Text)
	require.Equal(t, protocol.Usage{InputTokens: 21, OutputTokens: 8}, reply.Usage)
	reply = modeltest.Reply(t, m, loop.Request{Messages: []loop.Message{{Role: loop.RoleUser, Text: "a long story"}}}, modeltest.Ignore)
	require.True(t, reply.Cut)
}

// Functions are declared in a list of their own: an error that counts them is about that one.
func TestGemini_RejectedFunctionsAreCountedAmongFunctions(t *testing.T) {
	t.Parallel()
	d := gemini()
	bad := modeltest.Status(http.StatusBadRequest,
		`{"error":{"code":400,"message":"* GenerateContentRequest.tools[0].function_declarations[1].parameters.properties: should be non-empty","status":"INVALID_ARGUMENT"}}`)
	s := modeltest.Serve(t, d, bad, modeltest.Stream(d.Stream(d.Text("ok"))...))
	request := modeltest.Hello()
	request.Tools = append([]tools.Definition{{Name: "a"}, {Name: "b"}, {Name: "c"}}, modeltest.NativeTools("google", "google_search")...)
	modeltest.Reply(t, s.Model(t), request, modeltest.Ignore)
	for tool, sent := range map[string]bool{`"name":"a"`: true, `"name":"b"`: false, `"name":"c"`: true, "google_search": true} {
		require.Equal(t, sent, strings.Contains(body(t, s, 1), tool), tool)
	}
}
