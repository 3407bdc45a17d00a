package anthropic

import (
	"encoding/base64"
	"encoding/json"
	"regexp"
	"slices"
	"strings"

	sdk "github.com/anthropics/anthropic-sdk-go"
	"github.com/anthropics/anthropic-sdk-go/packages/param"

	"github.com/toolfleet/toolfleet/internal/model/endpoint"
	"github.com/toolfleet/toolfleet/internal/model/lenient"
	"github.com/toolfleet/toolfleet/internal/render"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/tools"
)

// provider is the name under which tools are declared that the provider runs.
const provider = "anthropic"

// defaultOutput bounds the output tokens of a reply where the user does not: the API wants a bound.
const defaultOutput = 16_384

// request is one request, and what its errors may be about.
type request struct {
	endpoint.Asked

	params      sdk.MessageNewParams
	thoughtless bool
	thinks      bool // an effort was asked for
}

// request is req as the API wants it, without what the server rejects.
func (m *Model) request(req loop.Request, lessons *endpoint.Lessons) *request {
	out := &request{Asked: endpoint.Asked{Lessons: lessons}}
	out.thoughtless = lessons.Omits(adaptive) && !thought(req.Messages) || !out.May(thinking)
	out.params.Model = m.Options().Model
	if t := req.Settings.Temperature; t != nil {
		out.params.Temperature = param.NewOpt(*t)
	}
	out.bound(req.Settings)
	var system strings.Builder
	for i := range req.Messages {
		if req.Messages[i].Role == loop.RoleSystem {
			system.WriteString(req.Messages[i].Text)
			continue
		}
		out.add(&req.Messages[i])
	}
	out.Tools = lessons.Offered(req.Tools, func(definition tools.Definition) bool {
		_, declared := toolOf(definition)
		return declared
	})
	for _, definition := range out.Tools {
		tool, _ := toolOf(definition)
		out.params.Tools = append(out.params.Tools, tool)
	}
	system.WriteString(lessons.Notes(req.Tools))
	if text := strings.TrimSpace(system.String()); text != "" {
		out.params.System = []sdk.TextBlockParam{{Text: text}}
	}
	if out.May(marks) {
		out.mark()
	}
	return out
}

// bound sets how long the reply, and what the model thinks before it, may be.
func (r *request) bound(settings loop.Settings) {
	budget := map[string]int64{"minimal": 1024, "low": 2048, "medium": 8192, "high": 16_384, "xhigh": 24_576, "max": 32_768}[settings.Effort]
	r.thinks = budget > 0
	r.params.MaxTokens = settings.MaxOutput
	if r.params.MaxTokens == 0 {
		r.params.MaxTokens = defaultOutput + budget
	}
	if bound := r.Lessons.Most(maxTokens); bound > 0 {
		r.params.MaxTokens = min(r.params.MaxTokens, bound)
	}
	r.Has(maxTokens)
	switch {
	case settings.Effort == "none", r.thinks && r.thoughtless:
		r.params.Thinking = sdk.ThinkingConfigParamUnion{OfDisabled: &sdk.ThinkingConfigDisabledParam{}}
	case r.thinks && !r.May(adaptive):
		if budget >= r.params.MaxTokens {
			budget = max(1024, r.params.MaxTokens/2) // 1024 is the least that the API takes
		}
		r.params.Thinking = sdk.ThinkingConfigParamUnion{OfEnabled: &sdk.ThinkingConfigEnabledParam{BudgetTokens: budget}}
	case r.thinks:
		effort := settings.Effort
		if effort == "minimal" {
			effort = "low" // the least that the API knows
		}
		r.params.OutputConfig.Effort = sdk.OutputConfigEffort(effort)
		r.params.Thinking = sdk.ThinkingConfigParamUnion{
			OfAdaptive: &sdk.ThinkingConfigAdaptiveParam{Display: sdk.ThinkingConfigAdaptiveDisplaySummarized},
		}
	}
}

// thought reports whether the last reply that asked for tools begins with a thought: with a budget
// of thinking the API demands that. A reply of another provider's model has no thought here.
func thought(messages []loop.Message) bool {
	for i := range slices.Backward(messages) {
		if m := &messages[i]; m.Role == loop.RoleAssistant {
			kept := keptOf(m, false)
			return len(m.ToolCalls) == 0 || len(kept) > 0 && isThought(kept[0].Type)
		}
	}
	return true
}

// add adds a message; what the same side says in a row is one message of the API.
func (r *request) add(message *loop.Message) {
	switch message.Role {
	case loop.RoleAssistant:
		blocks, parts := r.assistant(message)
		r.append(sdk.MessageParamRoleAssistant, blocks, parts)
	case loop.RoleTool:
		block := sdk.ToolResultBlockParam{
			ToolUseID: idOf(message.ToolCallID),
			Content:   []sdk.ToolResultBlockParamContentUnion{{OfText: &sdk.TextBlockParam{Text: textOf(message.Text)}}},
		}
		if message.Image != nil {
			r.AddImage(message.ToolCallID)
			shown := shownOf(message.Image)
			block.Content = append(block.Content, sdk.ToolResultBlockParamContentUnion{OfDocument: shown.OfDocument, OfImage: shown.OfImage})
		}
		r.append(sdk.MessageParamRoleUser, []sdk.ContentBlockParamUnion{{OfToolResult: &block}},
			[]loop.Part{{ToolCallID: message.ToolCallID, Kind: loop.PartResult}})
	case loop.RoleUser, loop.RoleSystem:
		blocks, parts := []sdk.ContentBlockParamUnion{sdk.NewTextBlock(textOf(message.Text))}, []loop.Part{{}}
		for i := range message.Attachments {
			a := &message.Attachments[i]
			blocks, parts = append(blocks, shownOf(&a.Image)), append(parts, endpoint.AttachmentPart(a))
		}
		r.append(sdk.MessageParamRoleUser, blocks, parts)
	}
}

// shownOf is an image or document as a block.
func shownOf(image *loop.Image) sdk.ContentBlockParamUnion {
	data := base64.StdEncoding.EncodeToString(image.Data)
	if image.MediaType == render.MediaPDF {
		return sdk.NewDocumentBlock(sdk.Base64PDFSourceParam{Data: data})
	}
	return sdk.NewImageBlockBase64(image.MediaType, data)
}

func (r *request) append(role sdk.MessageParamRole, blocks []sdk.ContentBlockParamUnion, parts []loop.Part) {
	if n := len(r.params.Messages); n > 0 && r.params.Messages[n-1].Role == role {
		r.params.Messages[n-1].Content = append(r.params.Messages[n-1].Content, blocks...)
		r.Messages[n-1] = append(r.Messages[n-1], parts...)
		return
	}
	r.params.Messages = append(r.params.Messages, sdk.MessageParam{Role: role, Content: blocks})
	r.Messages = append(r.Messages, parts)
}

// assistant is what the model said: blocks that are only the provider's stand where they stood.
func (r *request) assistant(message *loop.Message) (blocks []sdk.ContentBlockParamUnion, parts []loop.Part) {
	add := func(block sdk.ContentBlockParamUnion, part loop.Part) {
		blocks, parts = append(blocks, block), append(parts, part)
	}
	endpoint.Replay{
		Text: func(said, _ string) { add(sdk.NewTextBlock(said), loop.Part{}) },
		Raw:  func(piece json.RawMessage) { add(param.Override[sdk.ContentBlockParamUnion](piece), loop.Part{}) },
		Call: func(call *loop.ToolCall, _ string) {
			add(sdk.NewToolUseBlock(idOf(call.ID), json.RawMessage(endpoint.Arguments(call.Arguments)), endpoint.ToolName(call.Name)),
				loop.Part{ToolCallID: call.ID, Kind: loop.PartCall})
		},
	}.Message(message, keptOf(message, r.thoughtless))
	return blocks, parts
}

// resume adds the blocks of a reply that the provider paused, as it wants them back.
func (r *request) resume(blocks []*block) {
	var said []sdk.ContentBlockParamUnion
	for _, block := range blocks {
		if raw := block.whole(); raw != nil && (!r.thoughtless || !isThought(block.kind)) {
			said = append(said, param.Override[sdk.ContentBlockParamUnion](raw))
		}
	}
	if len(said) > 0 {
		r.append(sdk.MessageParamRoleAssistant, said, make([]loop.Part, len(said)))
	}
}

// mark sets the four caching marks that the API takes: after tools, after instructions, and after
// each of the user's last two messages. The older one ended the request before, so it is cached.
func (r *request) mark() {
	mark := sdk.NewCacheControlEphemeralParam()
	if n := len(r.params.Tools); n > 0 {
		if at := r.params.Tools[n-1].GetCacheControl(); at != nil {
			*at = mark
		}
	}
	if n := len(r.params.System); n > 0 {
		r.params.System[n-1].CacheControl = mark
	}
	left := 2
	for i := len(r.params.Messages) - 1; i >= 0 && left > 0; i-- {
		message := r.params.Messages[i]
		if message.Role != sdk.MessageParamRoleUser {
			continue
		}
		if at := message.Content[len(message.Content)-1].GetCacheControl(); at != nil {
			*at = mark
			left--
		}
	}
}

// toolOf declares a tool. One that a provider runs is declared in that provider's own form;
// declared is false when it is another's.
func toolOf(definition tools.Definition) (tool sdk.ToolUnionParam, declared bool) {
	if len(definition.Native) > 0 {
		native := definition.Native[provider]
		object, err := lenient.Object("", native)
		return param.Override[sdk.ToolUnionParam](native), err == nil && lenient.String(object["type"]) != ""
	}
	declaration := sdk.ToolParam{Name: definition.Name, InputSchema: param.Override[sdk.ToolInputSchemaParam](endpoint.SchemaOf(definition))}
	if definition.Description != "" {
		declaration.Description = param.NewOpt(definition.Description)
	}
	return sdk.ToolUnionParam{OfTool: &declaration}, true
}

// textOf is a text as the API takes it: it refuses blank ones.
func textOf(text string) string {
	if strings.TrimSpace(text) == "" {
		return endpoint.NoText
	}
	return text
}

var validID = regexp.MustCompile(`^[a-zA-Z0-9_-]+$`)

// idOf is the id of a tool call, which another provider may have made up, as the API takes it.
func idOf(id string) string {
	if validID.MatchString(id) {
		return id
	}
	return endpoint.ShortID(id)
}
