package openai_test

import (
	"maps"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/model/endpoint"
	"github.com/toolfleet/toolfleet/internal/model/modeltest"
	"github.com/toolfleet/toolfleet/pkg/loop"
)

// delta is a chunk with the fields of a message.
func delta(fields string) string { return `data: {"choices":[{"index":0,"delta":` + fields + `}]}` }

// What is thought in one form is shown to people, kept, and sent back in that form.
func TestReply_ReasoningOfEveryServer(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		lines []string
		text  string
		back  map[string]any
	}{
		"DeepSeek": {
			lines: []string{delta(`{"content":null,"reasoning_content":"I "}`), delta(`{"content":null,"reasoning_content":"look"}`)},
			text:  "I look", back: map[string]any{"reasoning_content": "I look"},
		},
		"vLLM": {
			lines: []string{delta(`{"reasoning":"I "}`), delta(`{"reasoning":"look"}`)},
			text:  "I look", back: map[string]any{"reasoning": "I look"},
		},
		"both fields at once": {
			lines: []string{delta(`{"reasoning":"I look","reasoning_content":"I look"}`)},
			text:  "I look", back: map[string]any{"reasoning_content": "I look"},
		},
		"OpenRouter": {
			lines: []string{
				delta(`{"reasoning":"I ","reasoning_details":[{"type":"reasoning.text","text":"I ","format":"f","index":0}]}`),
				delta(`{"reasoning":"look","reasoning_details":[{"type":"reasoning.text","text":"look","signature":null,"index":0}]}`),
				delta(`{"reasoning_details":[{"type":"reasoning.text","signature":"sig","index":0}]}`),
				delta(`{"reasoning_details":[{"type":"reasoning.encrypted","data":"xyz","id":"e1","index":1}]}`),
			},
			text: "I look",
			back: map[string]any{"reasoning_details": []any{
				map[string]any{"type": "reasoning.text", "text": "I look", "format": "f", "signature": "sig", "index": 0.0},
				map[string]any{"type": "reasoning.encrypted", "data": "xyz", "id": "e1", "index": 1.0},
			}},
		},
		"encrypted only": {
			lines: []string{delta(`{"reasoning":null,"reasoning_details":[{"type":"reasoning.encrypted","data":"xyz"}]}`)},
			back:  map[string]any{"reasoning_details": []any{map[string]any{"type": "reasoning.encrypted", "data": "xyz"}}},
		},
		"none":             {lines: []string{delta(`{"reasoning_content":null,"reasoning":""}`)}},
		"another form":     {lines: []string{delta(`{"reasoning":{"text":"x"},"reasoning_details":"x"}`)}},
		"another choice":   {lines: []string{`data: {"choices":[{"index":1,"delta":{"reasoning":"x"}}]}`}},
		"only in the text": {lines: []string{text(`the field "reasoning" is`)}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := serve(t, modeltest.Stream(append(test.lines, text("done"), stop, done)...))
			thought := ""
			reply, err := s.model(t).Reply(t.Context(), modeltest.Hello(), func(d loop.Delta) { thought += d.Reasoning })
			require.NoError(t, err)
			require.Equal(t, test.text, thought)
			require.Equal(t, test.back == nil, reply.Reasoning == nil)

			next := modeltest.Hello()
			next.Messages = append(next.Messages, loop.Message{Role: loop.RoleAssistant, Text: "done", Reasoning: reply.Reasoning})
			_, err = s.model(t).Reply(t.Context(), next, modeltest.Ignore)
			require.NoError(t, err)
			want := map[string]any{"role": "assistant", "content": "done"}
			maps.Copy(want, test.back)
			require.Equal(t, want, s.Asked()[1]["messages"].([]any)[1]) //nolint:errcheck // it panics
		})
	}
}

func TestReply_ReasoningThatAServerRejectsIsLeftOut(t *testing.T) {
	t.Parallel()
	good := modeltest.Stream(text("a"), stop, done)
	s := serve(t, modeltest.Status(http.StatusBadRequest, `{"error":{"message":"'messages.1' : property 'reasoning_content' is unsupported"}}`), good)
	m := s.model(t)
	request := modeltest.Hello()
	request.Messages = append(request.Messages, loop.Message{
		Role: loop.RoleAssistant, Text: "x", Reasoning: &loop.Reasoning{Text: "hm", Opaque: []byte(`{"field":"reasoning_content"}`)},
	})
	for range 2 {
		_, err := m.Reply(t.Context(), request, modeltest.Ignore)
		require.NoError(t, err)
	}
	require.Len(t, s.Asked(), 3)
	for i, there := range []bool{true, false, false} {
		_, has := s.Asked()[i]["messages"].([]any)[1].(map[string]any)["reasoning_content"] //nolint:errcheck // it panics
		require.Equal(t, there, has, "request %d", i+1)
	}
}

// A request that is refused for what the user asked for is not sent again without it.
func TestReply_RejectedSettingsAreErrors(t *testing.T) {
	t.Parallel()
	for _, message := range []string{"Unsupported value: 'reasoning_effort' does not support 'max'", "temperature is fixed at 1"} {
		s := serve(t, modeltest.Status(http.StatusBadRequest, `{"error":{"message":"`+message+`"}}`))
		_, err := s.model(t).Reply(t.Context(), modeltest.Hello(), modeltest.Ignore)
		requireType(t, endpoint.TypeInvalidRequest, err)
		require.Len(t, s.Asked(), 1)
	}
}

func TestReply_Settings(t *testing.T) {
	t.Parallel()
	cold := 0.0
	request := modeltest.Hello()
	request.Settings = loop.Settings{Temperature: &cold, Effort: "high", MaxOutput: 300}
	good := modeltest.Stream(text("a"), stop, done)
	s := serve(t, good, modeltest.Status(http.StatusBadRequest, `{"error":{"message":"Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead."}}`), good)
	m := s.model(t)
	for range 2 {
		_, err := m.Reply(t.Context(), request, modeltest.Ignore)
		require.NoError(t, err)
	}
	asked := s.Asked()
	require.Len(t, asked, 3)
	require.Equal(t, 0.0, asked[0]["temperature"], "0 is not nothing") //nolint:testifylint // it is what was sent
	require.Equal(t, "high", asked[0]["reasoning_effort"])
	require.EqualValues(t, 300, asked[0]["max_tokens"])
	require.NotContains(t, asked[0], "max_completion_tokens")
	require.EqualValues(t, 300, asked[2]["max_completion_tokens"])
	require.NotContains(t, asked[2], "max_tokens")

	_, err := m.Reply(t.Context(), modeltest.Hello(), modeltest.Ignore)
	require.NoError(t, err)
	for _, field := range []string{"temperature", "reasoning_effort", "max_tokens", "max_completion_tokens"} {
		require.NotContains(t, s.Asked()[3], field)
	}
}
