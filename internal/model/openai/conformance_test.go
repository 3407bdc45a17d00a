package openai_test

import (
	"testing"

	"github.com/toolfleet/toolfleet/internal/model/endpoint"
	"github.com/toolfleet/toolfleet/internal/model/modeltest"
	"github.com/toolfleet/toolfleet/internal/model/openai"
	"github.com/toolfleet/toolfleet/pkg/loop"
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
