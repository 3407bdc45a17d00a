package openai_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/toolfleet/toolfleet/internal/model/aimocktest"
	"github.com/toolfleet/toolfleet/internal/model/endpoint"
	"github.com/toolfleet/toolfleet/internal/model/modeltest"
	"github.com/toolfleet/toolfleet/internal/model/openai"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
)

// chat is how chat completions write a stream.
func chat() *modeltest.Dialect {
	delta := func(format string, args ...any) string {
		return modeltest.Data(`{"model":"m-1-2026","choices":[{"index":0,"delta":{`+format+`}}]}`, args...)
	}
	return &modeltest.Dialect{
		New:  func(opts endpoint.Options) (loop.Model, error) { return openai.New(openai.Options{Options: opts}) },
		Base: "/v1", Path: "/chat/completions",
		Text:    func(piece string) string { return delta(`"content":"%s"`, piece) },
		Thought: func(piece string) string { return delta(`"reasoning":"%s"`, piece) },
		Call: func(index int, id, name string, pieces ...string) []string {
			events := []string{delta(`"tool_calls":[{"index":%d,"id":"%s","function":{"name":"%s","arguments":""}}]`, index, id, name)}
			for _, piece := range pieces {
				events = append(events, delta(`"tool_calls":[{"index":%d,"function":{"arguments":"%s"}}]`, index, modeltest.Quoted(piece)))
			}
			return events
		},
		CallObject: func(index int, id, name, object string) []string {
			return []string{delta(`"tool_calls":[{"index":%d,"id":"%s","function":{"name":"%s","arguments":%s}}]`, index, id, name, object)}
		},
		End: func(reason string, input, output int) []string {
			return []string{
				modeltest.Data(`{"choices":[{"index":0,"delta":{},"finish_reason":"%s"}]}`, reason),
				modeltest.Data(`{"choices":[],"usage":{"prompt_tokens":%d,"completion_tokens":%d}}`, input, output),
			}
		},
		Done: "data: [DONE]", Empty: []string{modeltest.Data(`{"choices":[]}`), modeltest.Data(`{}`), delta(`"content":""`)},
		Whole: "stop", Length: "length", Filtered: "content_filter", Failed: "error", MayCut: true,
	}
}

func TestChat_Conforms(t *testing.T) {
	t.Parallel()
	modeltest.Run(t, chat())
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const key = modeltest.Key

// server is one of chat completions.
type server struct{ *modeltest.Server }

func serve(t *testing.T, answers ...modeltest.Answer) *server {
	t.Helper()
	return &server{modeltest.Serve(t, chat(), answers...)}
}

// model is one of the server, with delays too short to notice.
func (s *server) model(t *testing.T, change ...func(*openai.Options)) *openai.Model {
	t.Helper()
	opts := openai.Options{Options: s.Options()}
	for _, f := range change {
		f(&opts)
	}
	m, err := openai.New(opts)
	require.NoError(t, err)
	return m
}

// Parts of a stream.
const (
	done = "data: [DONE]"
	stop = `data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}`
)

func text(s string) string {
	quoted, _ := json.Marshal(s)
	return fmt.Sprintf(`data: {"model":"m-1-2026","choices":[{"index":0,"delta":{"content":%s}}]}`, quoted)
}

func toolCalls(pieces string) string {
	return `data: {"choices":[{"index":0,"delta":{"tool_calls":` + pieces + `}}]}`
}

func finish(reason string) string {
	return `data: {"choices":[{"index":0,"delta":{},"finish_reason":"` + reason + `"}]}`
}

func usage(in, out int) string {
	return fmt.Sprintf(`data: {"choices":[],"usage":{"prompt_tokens":%d,"completion_tokens":%d}}`, in, out)
}

// pieces collects what a model streams.
type pieces []string

func (p *pieces) add(piece loop.Delta) { *p = append(*p, piece.Text) }

func (p *pieces) String() string { return strings.Join(*p, "|") }

const fixtures = `{"fixtures": [
	{"match": {"userMessage": "greet"},
	 "response": {"content": "Grüß dich, Welt! How are you today?", "model": "mock-2026-01-01",
		"usage": {"prompt_tokens": 21, "completion_tokens": 8, "total_tokens": 29}}},

	{"match": {"userMessage": "fix", "turnIndex": 0, "toolName": "bash", "systemMessage": "Be brief."},
	 "response": {"content": "Let me look.", "toolCalls": [
		{"id": "call_tests", "name": "bash", "arguments": {"command": "go test ./... # it's \"quoted\""}},
		{"id": "call_file", "name": "read", "arguments": {"path": "a.go"}}]}},
	{"match": {"userMessage": "fix", "turnIndex": 1, "toolCallId": "call_file", "toolResultContains": "package a"},
	 "response": {"content": "All is well."}},

	{"match": {"userMessage": "busy", "sequenceIndex": 0},
	 "response": {"error": {"message": "Slow down", "type": "rate_limit_error", "code": "rate_limit_exceeded"}, "status": 429, "retryAfter": 1}},
	{"match": {"userMessage": "busy", "sequenceIndex": 1},
	 "response": {"error": {"message": "Try again", "type": "server_error"}, "status": 503}},
	{"match": {"userMessage": "busy"}, "response": {"content": "Here I am."}},

	{"match": {"userMessage": "flaky", "sequenceIndex": 0}, "response": {"content": "This reply will never end well."}, "truncateAfterChunks": 3, "latency": 20},
	{"match": {"userMessage": "flaky"}, "response": {"content": "This one is whole."}},

	{"match": {"userMessage": "forbidden"},
	 "response": {"error": {"message": "You must not", "type": "permission_error"}, "status": 403}},
	{"match": {"userMessage": "quota"},
	 "response": {"error": {"message": "Nothing left", "type": "insufficient_quota", "code": "insufficient_quota"}, "status": 429}},
	{"match": {"userMessage": "long"}, "response": {"content": "It goes on and", "finishReason": "length"}},
	{"match": {"userMessage": "rude"}, "response": {"content": "You", "finishReason": "content_filter"}}
]}`

// aimock is a real server that is not ours, and a model of it.
func aimock(t *testing.T) (*openai.Model, string) {
	t.Helper()
	base := aimocktest.Start(t, fixtures)
	return aimockModel(t, base, aimocktest.APIKey), base
}

func aimockModel(t *testing.T, base, apiKey string) *openai.Model {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{}}
	t.Cleanup(client.CloseIdleConnections)
	m, err := openai.New(openai.Options{
		Options: endpoint.Options{Model: "mock", APIKey: apiKey, BaseURL: base, HTTPClient: client, RetryDelay: time.Millisecond, MaxAttempts: 3},
	})
	require.NoError(t, err)
	return m
}

func says(text string) loop.Request {
	return loop.Request{Messages: []loop.Message{{Role: loop.RoleUser, Text: text}}}
}

func TestAimock_Session(t *testing.T) {
	t.Parallel()
	m, _ := aimock(t)

	var got pieces
	reply := modeltest.Reply(t, m, says("greet me"), got.add)
	require.NotEmpty(t, reply.ID)
	require.Equal(t, loop.Reply{
		ID: reply.ID, Finish: "stop",
		Text: "Grüß dich, Welt! How are you today?", Model: "mock-2026-01-01",
		Usage: protocol.Usage{InputTokens: 21, OutputTokens: 8},
	}, reply)
	require.Greater(t, len(got), 3, "it must stream")
	require.Equal(t, reply.Text, strings.Join(got, ""))

	object := json.RawMessage(`{"type":"object","properties":{}}`)
	req := loop.Request{
		Messages: []loop.Message{{Role: loop.RoleSystem, Text: "Be brief."}, {Role: loop.RoleUser, Text: "fix the tests"}},
		Tools:    []tools.Definition{{Name: "bash", Description: "Runs.", Schema: object}, {Name: "read", Schema: object}},
	}
	reply = modeltest.Reply(t, m, req, modeltest.Ignore)
	require.Equal(t, "Let me look.", reply.Text)
	require.Equal(t, []loop.ToolCall{
		{ID: "call_tests", Name: "bash", Arguments: `{"command":"go test ./... # it's \"quoted\""}`},
		{ID: "call_file", Name: "read", Arguments: `{"path":"a.go"}`},
	}, reply.ToolCalls)

	req.Messages = append(req.Messages,
		loop.Message{Role: loop.RoleAssistant, Text: reply.Text, ToolCalls: reply.ToolCalls},
		loop.Message{Role: loop.RoleTool, ToolCallID: "call_tests", Name: "bash"},
		loop.Message{Role: loop.RoleTool, ToolCallID: "call_file", Name: "read", Text: "package a\n"})
	reply = modeltest.Reply(t, m, req, modeltest.Ignore)
	require.Equal(t, "All is well.", reply.Text)
	require.Empty(t, reply.ToolCalls)
}

func TestAimock_TriesAgain(t *testing.T) {
	t.Parallel()
	m, _ := aimock(t)

	start := time.Now()
	reply := modeltest.Reply(t, m, says("are you busy?"), modeltest.Ignore)
	require.Equal(t, "Here I am.", reply.Text)
	require.GreaterOrEqual(t, time.Since(start), time.Second, "the server asked for a second")

	var got pieces
	reply = modeltest.Reply(t, m, says("are you flaky?"), got.add)
	require.Equal(t, "This one is whole.", reply.Text)
	require.True(t, strings.HasSuffix(strings.Join(got, ""), reply.Text))
	require.Greater(t, len(strings.Join(got, "")), len(reply.Text), "part of the first attempt must have been streamed")
}

func TestAimock_Errors(t *testing.T) {
	t.Parallel()
	m, base := aimock(t)
	tests := map[string]struct {
		says     string
		wantType string
		want     string
	}{
		"forbidden":      {"forbidden things", endpoint.TypePermission, "403 Forbidden: You must not"},
		"quota":          {"my quota", endpoint.TypeQuotaExceeded, "429 Too Many Requests: Nothing left"},
		"content filter": {"something rude", endpoint.TypeContentFilter, "content filter"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := m.Reply(t.Context(), says(test.says), modeltest.Ignore)
			requireType(t, test.wantType, err)
			require.ErrorContains(t, err, test.want)
			require.ErrorContains(t, err, "model mock at "+base)
			require.NotContains(t, err.Error(), "attempts")
		})
	}

	reply := modeltest.Reply(t, m, says("a long story"), modeltest.Ignore)
	require.Equal(t, "It goes on and", reply.Text)

	_, err := aimockModel(t, base, "another-key").Reply(t.Context(), says("greet"), modeltest.Ignore)
	requireType(t, endpoint.TypeAuthentication, err)
	require.ErrorContains(t, err, "401 Unauthorized: Invalid API key (check the API key)")

	_, err = aimockModel(t, base+"/nowhere", aimocktest.APIKey).Reply(t.Context(), says("greet"), modeltest.Ignore)
	requireType(t, endpoint.TypeNotFound, err)
	require.ErrorContains(t, err, "usually ends in /v1")
}
