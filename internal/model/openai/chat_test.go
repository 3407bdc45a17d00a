package openai_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/toolfleet/toolfleet/internal/model/endpoint"
	"github.com/toolfleet/toolfleet/internal/model/modeltest"
	"github.com/toolfleet/toolfleet/internal/model/openai"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/tools"
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
			reply := modeltest.Reply(t, s.model(t), modeltest.Hello(), func(d loop.Delta) { thought += d.Reasoning })
			require.Equal(t, test.text, thought)
			require.Equal(t, test.back == nil, reply.Reasoning == nil)

			next := modeltest.Hello()
			next.Messages = append(next.Messages, loop.Message{Role: loop.RoleAssistant, Text: "done", Reasoning: reply.Reasoning})
			modeltest.Reply(t, s.model(t), next, modeltest.Ignore)
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
		modeltest.Reply(t, m, request, modeltest.Ignore)
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
		modeltest.Reply(t, m, request, modeltest.Ignore)
	}
	asked := s.Asked()
	require.Len(t, asked, 3)
	require.Equal(t, 0.0, asked[0]["temperature"], "0 is not nothing") //nolint:testifylint // it is what was sent
	require.Equal(t, "high", asked[0]["reasoning_effort"])
	require.EqualValues(t, 300, asked[0]["max_tokens"])
	require.NotContains(t, asked[0], "max_completion_tokens")
	require.EqualValues(t, 300, asked[2]["max_completion_tokens"])
	require.NotContains(t, asked[2], "max_tokens")

	modeltest.Reply(t, m, modeltest.Hello(), modeltest.Ignore)
	for _, field := range []string{"temperature", "reasoning_effort", "max_tokens", "max_completion_tokens"} {
		require.NotContains(t, s.Asked()[3], field)
	}
}

// A refusal names the parts of the conversation that it is about.
func TestReply_RefusalsNameParts(t *testing.T) {
	t.Parallel()
	image := &loop.Image{MediaType: "image/png", Data: []byte("\x89PNG")}
	request := loop.Request{Messages: []loop.Message{
		{Role: loop.RoleSystem, Text: "Be brief."},
		{Role: loop.RoleUser, Text: "Look."},
		{Role: loop.RoleAssistant, ToolCalls: []loop.ToolCall{{ID: "c1", Name: "read"}, {ID: "c2", Name: "read"}}},
		{Role: loop.RoleTool, ToolCallID: "c1", Name: "read", Text: "a.png", Image: image},
		{Role: loop.RoleTool, ToolCallID: "c2", Name: "read", Text: "b.png", Image: image}, // and behind it message 5 with both
		{Role: loop.RoleAssistant, ToolCalls: []loop.ToolCall{{ID: "c3", Name: "read"}}},
		{Role: loop.RoleTool, ToolCallID: "c3", Name: "read", Text: "c.png", Image: image}, // message 7, and 8 with the image
	}}
	images := func(ids ...string) (parts []loop.Part) {
		for _, id := range ids {
			parts = append(parts, loop.Part{ToolCallID: id, Kind: loop.PartImage})
		}
		return parts
	}
	for name, test := range map[string]struct {
		code int
		body string
		want []loop.Part
	}{
		"by its place":         {400, `{"error":{"message":"Invalid image.","param":"messages[5].content[3].image_url"}}`, images("c2")},
		"by its message":       {400, `{"error":{"message":"messages.5: Could not process image"}}`, images("c1", "c2")},
		"a list of faults":     {422, `{"detail":[{"loc":["body","messages",5,"content",1,"image_url"],"msg":"bad"}]}`, images("c1")},
		"an image":             {400, `{"error":{"message":"The image data you provided does not represent a valid image."}}`, images("c3")},
		"counted otherwise":    {400, `{"error":{"message":"messages.6.content.1.image.source: image exceeds 5 MB maximum"}}`, images("c3")},
		"no images at all":     {404, `{"error":{"message":"No endpoints found that support image input"}}`, images("c3")},
		"too many images":      {400, `{"error":{"message":"At most 2 image(s) may be provided in one request."}}`, images("c1")},
		"a media type":         {415, `{"error":{"message":"unsupported image format"}}`, images("c3")},
		"a server that breaks": {500, `{"error":{"message":"cannot identify image file"}}`, images("c3")},
		"a result":             {400, `{"error":{"message":"Invalid 'messages[7].content': string too long."}}`, []loop.Part{{ToolCallID: "c3", Kind: loop.PartResult}}},
		"a tool call":          {400, `{"error":{"message":"Invalid value: 'messages[2].tool_calls[1].function.name'"}}`, []loop.Part{{ToolCallID: "c2", Kind: loop.PartCall}}},
		"the user's own":       {400, `{"error":{"message":"Invalid 'messages[1].content'"}}`, nil},
		"nothing":              {400, `{"error":{"message":"bad request"}}`, nil},
		"another failure":      {500, `{"error":{"message":"messages[7] broke me"}}`, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := serve(t, modeltest.Status(test.code, test.body))
			m := s.model(t, func(o *openai.Options) { o.Images, o.MaxAttempts = true, 1 })
			_, err := m.Reply(t.Context(), request, modeltest.Ignore)
			var fault *endpoint.Error
			require.ErrorAs(t, err, &fault)
			var refused *loop.RefusedError
			if test.want == nil {
				require.NotErrorAs(t, err, &refused)
				return
			}
			require.ErrorAs(t, err, &refused)
			require.Equal(t, test.want, refused.Parts)
			require.Len(t, s.Asked(), 1)
		})
	}
}

// Attachments are parts of the user's message, behind its text.
func TestReply_AttachmentsArePartsOfTheMessage(t *testing.T) {
	t.Parallel()
	request := modeltest.Hello()
	for i, name := range []string{"a.png", "b.png", "c.pdf"} {
		mediaType := []string{"image/png", "image/png", "application/pdf"}[i]
		request.Messages[0].Attachments = append(request.Messages[0].Attachments,
			loop.Attachment{ID: name, Name: name, Image: loop.Image{MediaType: mediaType, Data: []byte{byte(i)}}})
	}
	s := serve(t, modeltest.Stream(text("ok"), stop, done), modeltest.Status(http.StatusBadRequest, `{"error":{"message":"messages[0].content[2]: no image"}}`))
	m := s.model(t, func(o *openai.Options) { o.Images = true })
	modeltest.Reply(t, m, request, modeltest.Ignore)
	sent, err := json.Marshal(s.Asked()[0]["messages"])
	require.NoError(t, err)
	require.JSONEq(t, `[{"role": "user", "content": [
		{"type": "text", "text": "hello\n[The attached file c.pdf is not shown: this model takes no files of type application/pdf]"},
		{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}},
		{"type": "image_url", "image_url": {"url": "data:image/png;base64,AQ=="}}
	]}]`, string(sent))
	_, err = m.Reply(t.Context(), request, modeltest.Ignore)
	var refused *loop.RefusedError
	require.ErrorAs(t, err, &refused)
	require.Equal(t, []loop.Part{{ToolCallID: "b.png", Kind: loop.PartAttachment}}, refused.Parts)
}

// A tool that a server refuses is left out, the others are there, and the model is told.
func TestReply_ToolThatAServerRejectsIsLeftOut(t *testing.T) {
	t.Parallel()
	for _, message := range []string{
		`"Invalid schema for function 'b': ..."`, `"bad","param":"tools[1].function.name"`, `"tools.1.type: Input should be 'function'"`,
	} {
		s := serve(t, modeltest.Status(http.StatusBadRequest, `{"error":{"message":`+message+`}}`), modeltest.Stream(text("ok"), stop, done))
		m := s.model(t)
		request := modeltest.Hello()
		request.Tools = []tools.Definition{
			{Name: "0", Native: map[string]json.RawMessage{"other": json.RawMessage(`{"type":"x"}`)}}, {Name: "a"}, {Name: "b"}, {Name: "c"},
		}
		for range 2 {
			modeltest.Reply(t, m, request, modeltest.Ignore)
		}
		asked := s.Asked()
		require.Len(t, asked, 3)
		for i, count := range []int{3, 2, 2} {
			require.Len(t, asked[i]["tools"], count, "request %d", i+1)
		}
		require.NotContains(t, fmt.Sprint(asked[0]["messages"]), "left out")
		require.Contains(t, fmt.Sprint(asked[1]["messages"]), "[The tool b is left out, because the model's server refuses it:")

		request.Tools[2].Description = "Another declaration."
		modeltest.Reply(t, m, request, modeltest.Ignore)
		require.Len(t, s.Asked()[3]["tools"], 3, "may do")
	}
}

// Fields of messages that a server does not know, and ids that it does not take, are sent once.
func TestReply_FieldsThatAServerRejects(t *testing.T) {
	t.Parallel()
	request := modeltest.Hello()
	request.Messages = append(request.Messages,
		loop.Message{Role: loop.RoleAssistant, ToolCalls: []loop.ToolCall{{ID: "toolu_01-of-another-server", Name: "read"}}},
		loop.Message{Role: loop.RoleTool, ToolCallID: "toolu_01-of-another-server", Name: "read", Text: "x"})
	s := serve(t,
		modeltest.Status(http.StatusUnprocessableEntity, `{"detail":[{"loc":["body","messages",2,"name"],"msg":"Extra inputs are not permitted"}]}`),
		modeltest.Status(http.StatusBadRequest, `{"message":"Tool call id was toolu_01-of-another-server but must be a-z, A-Z, 0-9, with a length of 9."}`),
		modeltest.Stream(text("ok"), stop, done))
	m := s.model(t)
	for range 2 {
		modeltest.Reply(t, m, request, modeltest.Ignore)
	}
	asked := s.Asked()
	require.Len(t, asked, 4)
	for i, last := range asked {
		messages, _ := last["messages"].([]any)
		result, _ := messages[2].(map[string]any)
		call, _ := messages[1].(map[string]any)["tool_calls"].([]any)[0].(map[string]any)
		require.Equal(t, call["id"], result["tool_call_id"])
		_, named := result["name"]
		require.Equal(t, i == 0, named)
		if i >= 2 {
			require.Regexp(t, "^[a-z0-9]{9}$", call["id"])
		}
	}
}

// What a server rejects of several requests at once is left out of each of them, and nothing else.
func TestReply_RejectedOfSeveralAtOnce(t *testing.T) {
	t.Parallel()
	for name, message := range map[string]string{"a field": `"stream_options is not supported"`, "a tool": `"bad","param":"tools[1].function.name"`} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const several = 4
			var arrived sync.WaitGroup
			arrived.Add(several)
			rejected := func(w http.ResponseWriter, r *http.Request) {
				arrived.Done()
				arrived.Wait()
				modeltest.Status(http.StatusBadRequest, `{"error":{"message":`+message+`}}`)(w, r)
			}
			s := serve(t, rejected, rejected, rejected, rejected, modeltest.Stream(text("ok"), stop, done))
			m := s.model(t)
			var asking errgroup.Group
			for range several {
				asking.Go(func() error {
					request := modeltest.Hello()
					request.Tools = []tools.Definition{{Name: "a"}, {Name: "b"}, {Name: "c"}}
					_, err := m.Reply(t.Context(), request, modeltest.Ignore)
					return err
				})
			}
			require.NoError(t, asking.Wait())
			asked := s.Asked()
			require.Len(t, asked, 2*several)
			for _, again := range asked[several:] {
				_, has := again["stream_options"]
				require.Equal(t, name == "a tool", has)
				require.Contains(t, fmt.Sprint(again["tools"]), "name:c")
				require.Equal(t, name == "a field", strings.Contains(fmt.Sprint(again["tools"]), "name:b"))
			}
		})
	}
}
