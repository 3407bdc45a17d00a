package openai_test

import (
	"encoding/json"
	"fmt"
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
	_, err := m.Reply(t.Context(), request, modeltest.Ignore)
	require.NoError(t, err)
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
			_, err := m.Reply(t.Context(), request, modeltest.Ignore)
			require.NoError(t, err)
		}
		asked := s.Asked()
		require.Len(t, asked, 3)
		for i, count := range []int{3, 2, 2} {
			require.Len(t, asked[i]["tools"], count, "request %d", i+1)
		}
		require.NotContains(t, fmt.Sprint(asked[0]["messages"]), "left out")
		require.Contains(t, fmt.Sprint(asked[1]["messages"]), "[The tool b is left out, because the model's server refuses it:")

		request.Tools[2].Description = "Another declaration."
		_, err := m.Reply(t.Context(), request, modeltest.Ignore)
		require.NoError(t, err)
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
		_, err := m.Reply(t.Context(), request, modeltest.Ignore)
		require.NoError(t, err)
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
