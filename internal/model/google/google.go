// Package google is a model of the Gemini API, or of a server that speaks it. It does without the
// official SDK, which decodes numbers in arguments as floats.
//
// Signatures of thoughts are kept with the parts of a reply that they are of, and go back with them
// while the turn lasts ([endpoint.Piece]). Calls that another provider's model made have none; a
// server that insists gets the value by which the API skips the check.
package google

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/toolfleet/toolfleet/internal/model/endpoint"
	"github.com/toolfleet/toolfleet/internal/model/lenient"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/tools"
)

// DefaultBaseURL is the server of a model that names none.
const DefaultBaseURL = "https://generativelanguage.googleapis.com"

// Model is one model of one server. It is safe for concurrent use.
type Model struct {
	*endpoint.Endpoint

	rejects *endpoint.Rejects
}

var (
	_ loop.Model    = (*Model)(nil)
	_ loop.Provider = (*Model)(nil)
)

// New returns a model. BaseURL is up to and without "/v1beta". It connects to nothing; the error
// reports every error of the options.
func New(opts endpoint.Options) (*Model, error) {
	server, err := endpoint.New(endpoint.API{
		DefaultBaseURL: DefaultBaseURL, Example: DefaultBaseURL, Path: "/v1beta",
		BaseHint: "which usually does not end in /v1beta", FinishField: "finishReason",
	}, opts)
	if err != nil {
		return nil, fmt.Errorf("google options: %w", err)
	}
	return &Model{server, endpoint.NewRejects(inContents, rejected()...)}, nil
}

// path is where the model's replies are streamed: a name may begin with the list that has it.
func (m *Model) path() string {
	list, name, is := strings.Cut(m.Options().Model, "/")
	if !is || list != "models" && list != "tunedModels" {
		list, name = "models", m.Options().Model
	}
	return "/v1beta/" + list + "/" + url.PathEscape(name) + ":streamGenerateContent?alt=sse"
}

// Provider implements [loop.Provider].
func (m *Model) Provider() string { return provider }

// Reply implements [loop.Model]. An error is the cause of ctx's end or wraps an
// [*endpoint.Error]. After a broken attempt, delta gets the text from its start again.
func (m *Model) Reply(ctx context.Context, req loop.Request, delta func(loop.Delta)) (loop.Reply, error) {
	reply, err := m.Endpoint.Reply(ctx, delta, func() (loop.Reply, error) { return m.attempt(ctx, req, delta) })
	if err != nil {
		return reply, m.request(req, m.rejects.Of(req.Session)).Refused(err, inContents, inParts)
	}
	return reply, nil
}

// Where the server says that something is wrong.
//
//nolint:gochecknoglobals // compiled once
var (
	inContents = endpoint.Path("contents")
	inParts    = endpoint.Path("parts")
)

// What a server may reject of requests.
const (
	unsigned = "calls without a signature"
	foreign  = "signatures of another model"
	levels   = "thinkingLevel"  // the model wants a budget
	thinking = "thinkingConfig" // the model does not think
)

func rejected() []endpoint.Field {
	return []endpoint.Field{
		{Name: unsigned, Says: regexp.MustCompile(`(?i)\b(?:missing|requires?d?)\b.*signature|signature.*\b(?:missing|required)\b`), Once: true},
		{Name: foreign, Says: regexp.MustCompile(`(?i)signature`), Once: true},
		{Name: levels, Says: regexp.MustCompile(`(?i)thinking[ _]?level`)},
		{Name: thinking, Says: regexp.MustCompile(`(?i)thinking_?(?:config|budget)|\bthinking (?:is|mode)\b|\bsupport thinking\b`)},
	}
}

// attempt asks once, and again without what the server turns out to reject.
func (m *Model) attempt(ctx context.Context, req loop.Request, delta func(loop.Delta)) (loop.Reply, error) {
	lessons := m.rejects.Of(req.Session)
	for {
		sent := m.request(req, lessons)
		reply, err := m.send(ctx, sent, delta)
		if !lessons.Learn(err, &sent.Asked) {
			return reply, err
		}
	}
}

// send sends one request and reads its stream to the end.
func (m *Model) send(ctx context.Context, sent *request, delta func(loop.Delta)) (loop.Reply, error) {
	parts := assembler{endpoint: m.Endpoint, offered: sent.Tools}
	headers := map[string]string{"X-Goog-Api-Key": m.Options().APIKey}
	err := m.Stream(ctx, m.path(), sent.body, headers, &parts.Assembler, func(data []byte) error { return parts.read(data, delta) })
	if err != nil {
		return parts.Failed(), err
	}
	parts.Keep(provider, parts.parts)
	if parts.searched != nil {
		parts.Native = append(parts.Native, *parts.searched)
	}
	return m.Finish(&parts.Assembler)
}

// provider is the name under which tools are declared that the provider runs.
const provider = "google"

// skipSignature is the signature of a call that has none, where the server insists on one.
const skipSignature = "skip_thought_signature_validator"

// request is one request, and what its errors may be about.
type request struct {
	endpoint.Asked

	body     map[string]any
	contents []content
	older    bool // the model takes budgets of thinking, and images behind results instead of in them
}

type content struct {
	Role  string `json:"role"`
	Parts []part `json:"parts"`
}

// part is a part of a content as the API wants it.
type part struct {
	Text             *string          `json:"text,omitempty"`
	FunctionCall     *functionCall    `json:"functionCall,omitempty"`     //nolint:tagliatelle // of the API
	FunctionResponse *functionResult  `json:"functionResponse,omitempty"` //nolint:tagliatelle // of the API
	InlineData       *inlineData      `json:"inlineData,omitempty"`       //nolint:tagliatelle // of the API
	ThoughtSignature string           `json:"thoughtSignature,omitempty"` //nolint:tagliatelle // of the API
	Raw              *json.RawMessage `json:"-"`                          // instead of all else
}

// MarshalJSON implements [json.Marshaler].
func (p part) MarshalJSON() ([]byte, error) {
	if p.Raw != nil {
		return *p.Raw, nil
	}
	type plain part
	return json.Marshal(plain(p))
}

type functionCall struct {
	ID   string          `json:"id,omitempty"`
	Name string          `json:"name"`
	Args json.RawMessage `json:"args"`
}

type functionResult struct {
	ID       string            `json:"id,omitempty"`
	Name     string            `json:"name"`
	Response map[string]string `json:"response"`
	Parts    []part            `json:"parts,omitempty"`
}

type inlineData struct {
	MIMEType string `json:"mimeType"` //nolint:tagliatelle // of the API
	Data     []byte `json:"data"`
}

// request is req as the API wants it, without what the server rejects.
func (m *Model) request(req loop.Request, lessons *endpoint.Lessons) *request {
	name := strings.ToLower(m.Options().Model)
	older := strings.HasPrefix(name, "gemini-1") || strings.HasPrefix(name, "gemini-2")
	out := &request{Asked: endpoint.Asked{Lessons: lessons}, body: map[string]any{}, older: older}
	var system strings.Builder
	for i := range req.Messages {
		if req.Messages[i].Role == loop.RoleSystem {
			system.WriteString(req.Messages[i].Text)
			continue
		}
		out.add(&req.Messages[i])
	}
	out.body["contents"] = out.contents
	out.body["generationConfig"] = out.config(req.Settings)
	native := func(definition tools.Definition) bool { _, is := nativeOf(definition); return is }
	out.Tools = lessons.Offered(req.Tools, native)
	out.Functions = lessons.Offered(req.Tools, func(definition tools.Definition) bool { return len(definition.Native) == 0 })
	if declared := toolsOf(slices.Concat(out.Tools, out.Functions)); len(declared) > 0 {
		out.body["tools"] = declared
		if len(declared) > 1 && !older { // which mixes both kinds only if asked so
			out.body["toolConfig"] = map[string]any{"includeServerSideToolInvocations": true}
		}
	}
	system.WriteString(lessons.Notes(req.Tools))
	if text := strings.TrimSpace(system.String()); text != "" {
		out.body["systemInstruction"] = content{Role: "user", Parts: []part{{Text: &text}}}
	}
	return out
}

func (r *request) config(settings loop.Settings) map[string]any {
	config := map[string]any{}
	if settings.Temperature != nil {
		config["temperature"] = *settings.Temperature
	}
	if settings.MaxOutput > 0 {
		config["maxOutputTokens"] = settings.MaxOutput
	}
	if r.Lessons.Omits(thinking) {
		return config
	}
	how := map[string]any{"includeThoughts": true}
	config["thinkingConfig"] = how
	budgets := map[string]int{"none": 0, "minimal": 512, "low": 1024, "medium": 8192, "high": 24_576, "xhigh": 24_576, "max": 24_576}
	budget, asked := budgets[settings.Effort]
	switch {
	case !asked:
		r.Has(thinking)
	case r.older || !r.May(levels):
		how["thinkingBudget"] = budget
	default:
		named := map[string]string{"none": "MINIMAL", "minimal": "MINIMAL", "low": "LOW", "medium": "MEDIUM"}
		how["thinkingLevel"] = cmp.Or(named[settings.Effort], "HIGH")
	}
	return config
}

// add adds a message; what the same side says in a row is one content of the API.
func (r *request) add(message *loop.Message) {
	switch message.Role {
	case loop.RoleAssistant:
		parts, of := r.assistant(message)
		r.append("model", parts, of)
	case loop.RoleTool:
		result := loop.Part{ToolCallID: message.ToolCallID, Kind: loop.PartResult}
		answer := functionResult{ID: message.ToolCallID, Name: endpoint.ToolName(message.Name), Response: map[string]string{"output": message.Text}}
		parts, of := []part{{FunctionResponse: &answer}}, []loop.Part{result}
		if image := message.Image; image != nil {
			r.AddImage(message.ToolCallID)
			shown := part{InlineData: &inlineData{image.MediaType, image.Data}}
			if !r.older {
				answer.Parts = []part{shown}
			} else {
				parts, of = append(parts, shown), append(of, loop.Part{ToolCallID: message.ToolCallID, Kind: loop.PartImage})
			}
		}
		r.append("user", parts, of)
	case loop.RoleUser, loop.RoleSystem:
		parts, of := []part{{Text: new(endpoint.TextOf(message.Text))}}, []loop.Part{{}}
		for i := range message.Attachments {
			a := &message.Attachments[i]
			parts, of = append(parts, part{InlineData: &inlineData{a.MediaType, a.Data}}), append(of, endpoint.AttachmentPart(a))
		}
		r.append("user", parts, of)
	}
}

func (r *request) append(role string, parts []part, of []loop.Part) {
	if n := len(r.contents); n > 0 && r.contents[n-1].Role == role {
		r.contents[n-1].Parts = append(r.contents[n-1].Parts, parts...)
		r.Messages[n-1] = append(r.Messages[n-1], of...)
		return
	}
	r.contents = append(r.contents, content{role, parts})
	r.Messages = append(r.Messages, of)
}

// assistant is what the model said, with the signatures that it came with.
func (r *request) assistant(message *loop.Message) (parts []part, of []loop.Part) {
	add := func(p part, about loop.Part) { parts, of = append(parts, p), append(of, about) }
	signed := func(signature string) string {
		if signature != "" && !r.May(foreign) {
			return ""
		}
		return signature
	}
	first := true
	endpoint.Replay{
		Text: func(said, signature string) { add(part{Text: &said, ThoughtSignature: signed(signature)}, loop.Part{}) },
		Raw:  func(piece json.RawMessage) { add(part{Raw: &piece}, loop.Part{}) },
		Call: func(call *loop.ToolCall, signature string) {
			signature = signed(signature)
			if signature == "" && first && (r.Lessons.Omits(foreign) || !r.May(unsigned)) {
				signature = skipSignature
			}
			first = false
			add(part{ThoughtSignature: signature, FunctionCall: &functionCall{
				call.ID, endpoint.ToolName(call.Name), json.RawMessage(endpoint.Arguments(call.Arguments)),
			}}, loop.Part{ToolCallID: call.ID, Kind: loop.PartCall})
		},
	}.Message(message, endpoint.Kept(provider, message))
	return parts, of
}

// toolsOf declares tools: all functions in one, and each that the provider runs by itself.
func toolsOf(definitions []tools.Definition) []map[string]any {
	var declared []map[string]any
	var functions []map[string]any
	for _, definition := range definitions {
		if native, is := nativeOf(definition); is {
			declared = append(declared, native)
			continue
		}
		functions = append(functions, map[string]any{
			"name": definition.Name, "description": definition.Description, "parametersJsonSchema": endpoint.SchemaOf(definition),
		})
	}
	if len(functions) > 0 {
		declared = append(declared, map[string]any{"functionDeclarations": functions})
	}
	return declared
}

// nativeOf declares a tool that the provider runs: {"type": T, ...} is {T: {...}} in the API.
func nativeOf(definition tools.Definition) (declared map[string]any, is bool) {
	object, err := lenient.FieldsOf("", definition.Native[provider])
	kind := lenient.String(object["type"])
	if err != nil || kind == "" {
		return nil, false
	}
	delete(object, "type")
	return map[string]any{kind: object}, true
}
