// Package openai is a model behind an OpenAI-compatible HTTP API, streamed, with tools: the
// Responses API (responses.go) or chat completions (chat.go). A base URL makes it vLLM, Ollama, a
// gateway, or any other server that speaks the same. Package endpoint has what adapters share:
// HTTP, retries, and the assembly of a reply.
//
// Chunks are decoded leniently in form and strictly in meaning (package lenient).
//
// # Servers differ
//
// What a server rejects (stream_options, max_tokens, reasoning that is sent back) it is asked again
// without, once, and the session sends it no more. Reasoning comes in several fields, and goes
// back, while its turn lasts, in the one that it came in. Tool calls are put together from pieces
// that may lack an index or an id, share an index, or come whole. Ids that are missing or repeated
// are made up, since a reply's ids must be unique. Arguments that are no JSON object go back to the
// server wrapped into one, because several servers fail on a history that holds anything else.
package openai

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"slices"

	"github.com/toolfleet/toolfleet/internal/model/endpoint"
	"github.com/toolfleet/toolfleet/internal/model/lenient"
	"github.com/toolfleet/toolfleet/internal/modeltext/render"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
)

// Model is one model of one server. It is safe for concurrent use.
type Model struct {
	*endpoint.Endpoint

	api          string // Auto, Responses or Chat
	images       bool
	organization string
	rejects      *endpoint.Rejects
}

var (
	_ loop.Model    = (*Model)(nil)
	_ loop.Provider = (*Model)(nil)
	_ loop.Viewer   = (*Model)(nil)
)

// DefaultBaseURL is the server of a model that names none.
const DefaultBaseURL = "https://api.openai.com/v1"

// api is the API of chat completions.
func api() endpoint.API {
	return endpoint.API{
		DefaultBaseURL: DefaultBaseURL, Example: "http://localhost:11434/v1", Path: "/chat/completions",
		BaseHint: "which usually ends in /v1", FinishField: "finish_reason",
	}
}

// Options configure a [Model]. Only Model is required. BaseURL is up to and without
// "/chat/completions".
type Options struct {
	endpoint.Options

	// API is [Auto], [Responses] or [Chat]; "" means Auto.
	API string
	// Images says that the model takes images: images of tool results and of inputs are sent, and
	// documents where the API has them.
	Images bool
	// Organization is sent as OpenAI-Organization; "" sends none.
	Organization string
}

// New returns a model. It connects to nothing; the error reports every error of the
// options.
func New(opts Options) (*Model, error) {
	server, err := endpoint.New(api(), opts.Options)
	if err != nil {
		return nil, fmt.Errorf("openai options: %w", err)
	}
	m := &Model{Endpoint: server, api: cmp.Or(opts.API, Auto), images: opts.Images, organization: opts.Organization}
	m.rejects = endpoint.NewRejects(endpoint.Path("(?:messages|input)"), rejected()...)
	if m.api == Auto && server.Options().BaseURL != DefaultBaseURL {
		m.api = Chat
	}
	return m, nil
}

// Provider implements [loop.Provider].
func (m *Model) Provider() string { return nativeProvider }

// Views implements [loop.Viewer]. Chat completions take documents at OpenAI alone: other servers
// mostly refuse them.
func (m *Model) Views(mediaType string) bool {
	return m.images && (mediaType != render.MediaPDF || m.api != Chat || m.Options().BaseURL == DefaultBaseURL)
}

// Reply implements [loop.Model]. An error is the cause of ctx's end or wraps an
// [*endpoint.Error]. After a broken attempt, delta gets the text from its start again.
func (m *Model) Reply(ctx context.Context, req loop.Request, delta func(loop.Delta)) (loop.Reply, error) {
	reply, err := m.Endpoint.Reply(ctx, delta, func() (loop.Reply, error) { return m.attempt(ctx, req, delta) })
	switch lessons := m.rejects.Of(req.Session); {
	case err == nil:
		return reply, nil
	case m.uses(lessons):
		return reply, m.responsesRequest(req, lessons).Refused(err, inInput, inOutput)
	default:
		return reply, m.refused(req, err)
	}
}

// uses reports whether the Responses API is asked.
func (m *Model) uses(lessons *endpoint.Lessons) bool {
	return m.api != Chat && !lessons.Omits(responseAPI)
}

// attempt asks once, and again without what the server turns out to reject.
func (m *Model) attempt(ctx context.Context, req loop.Request, delta func(loop.Delta)) (loop.Reply, error) {
	lessons := m.rejects.Of(req.Session)
	for {
		var reply loop.Reply
		var err error
		var sent *endpoint.Asked
		if m.uses(lessons) {
			request := m.responsesRequest(req, lessons)
			sent = &request.Asked
			reply, err = m.sendResponses(ctx, request, delta)
		} else {
			request := m.request(req, lessons)
			sent = &request.Asked
			reply, err = m.send(ctx, request, delta)
		}
		if !m.learn(lessons, err, sent) {
			return reply, err
		}
	}
}

// send sends one request and reads its stream to the end.
func (m *Model) send(ctx context.Context, request *request, delta func(loop.Delta)) (loop.Reply, error) {
	var parts assembler
	err := m.Stream(ctx, "/chat/completions", request, m.headers(), &parts.Assembler, func(data []byte) error { return parts.read(data, delta) })
	if err != nil {
		return parts.Failed(), err
	}
	parts.Reasoning = parts.reasoning()
	return m.Finish(&parts.Assembler)
}

// headers returns the headers of each request.
func (m *Model) headers() map[string]string {
	headers := map[string]string{"OpenAI-Organization": m.organization}
	if key := m.Options().APIKey; key != "" {
		headers["Authorization"] = "Bearer " + key
	}
	return headers
}

// visibleText returns the text and the reasoning in a value of a message. A part of another kind,
// as a reference, says nothing.
func visibleText(where string, raw json.RawMessage) (text, thought string, err error) {
	switch {
	case !lenient.IsSet(raw):
		return "", "", nil
	case lenient.Kind(raw) == '"':
		return lenient.Unquote(raw), "", nil
	case lenient.IsNumber(raw):
		return string(raw), "", nil
	case lenient.Kind(raw) == '{':
		return spokenPart(where, raw)
	case lenient.Kind(raw) != '[':
		return "", "", lenient.WrongForm(where, raw, "a text")
	}
	parts, err := lenient.List(where, raw)
	for i, part := range parts {
		said, thinks, err := visibleText(fmt.Sprintf("%s[%d]", where, i), part)
		if err != nil {
			return "", "", err
		}
		text, thought = text+said, thought+thinks
	}
	return text, thought, err
}

func spokenPart(where string, raw json.RawMessage) (text, thought string, err error) {
	part, err := lenient.FieldsOf(where, raw)
	if err != nil {
		return "", "", err
	}
	for _, name := range []string{"thinking", "reasoning", "text", "refusal"} {
		if !lenient.IsSet(part[name]) {
			continue
		}
		said, thinks, err := visibleText(where+"."+name, part[name])
		if kind := lenient.String(part["type"]); kind == "thinking" || kind == "reasoning" {
			return "", thinks + said, err
		}
		return said, thinks, err
	}
	return "", "", nil
}

// usageOf returns the usage of a reply; 0 where the server gives no number.
func usageOf(raw json.RawMessage) (protocol.Usage, bool) {
	var usage lenient.Fields
	if !lenient.IsSet(raw) || json.Unmarshal(raw, &usage) != nil {
		return protocol.Usage{}, false
	}
	detail := func(of ...string) lenient.Fields {
		for _, name := range of {
			if details, err := lenient.FieldsOf(name, usage[name]); err == nil && len(details) > 0 {
				return details
			}
		}
		return nil
	}
	cached := lenient.Count(detail("prompt_tokens_details", "input_tokens_details"), "cached_tokens")
	return protocol.Usage{
		InputTokens:     lenient.Count(usage, "prompt_tokens", "input_tokens"),
		OutputTokens:    lenient.Count(usage, "completion_tokens", "output_tokens"),
		CachedTokens:    max(cached, lenient.Count(usage, "prompt_cache_hit_tokens")), // of DeepSeek
		ReasoningTokens: lenient.Count(detail("completion_tokens_details", "output_tokens_details"), "reasoning_tokens"),
	}, true
}

// What a server may reject of requests: of chat completions, and of the Responses API.
const (
	usage       = "stream_options"
	maxTokens   = "max_tokens" // the server wants max_completion_tokens
	reasoning   = "reasoning"  // the fields of [fieldNames] in messages
	thoughts    = "thoughts"   // what the model thought in this conversation
	names       = "name"       // in messages
	ids         = "ids"        // of tool calls as other servers make them
	responseAPI = "the Responses API"
	encrypted   = "reasoning.encrypted_content"
	include     = "include" // what else is included of native tools
	summary     = "reasoning.summary"
)

func rejected() []endpoint.Field {
	return []endpoint.Field{
		// A thought is of another model or account, or its item is not whole. Other sessions'
		// thoughts are not.
		{Name: thoughts, Says: regexp.MustCompile(`(?i)signature|invalid_encrypted|encrypted.*(?:verif|decrypt|pars)|of type .reasoning.`), Once: true},
		{Name: usage, Says: regexp.MustCompile(`\b(?:stream_options|include_usage)\b`)},
		{Name: maxTokens, Says: regexp.MustCompile(`\bmax_completion_tokens\b`)},
		{Name: reasoning, Says: regexp.MustCompile(`\breasoning_(?:content|details)\b|['".]reasoning\b`)},
		{Name: names, Says: regexp.MustCompile(`messages\W{1,3}\d+\W{1,3}name\b|property 'name'`)},
		{Name: ids, Says: regexp.MustCompile(`(?i)\btool.call.id\b.*\b(?:must|invalid|long|length|match)|\binvalid\b.*\btool.call.id\b|tool_calls\W{1,3}\d+\W{1,3}id\b`)},
		{Name: encrypted, Says: regexp.MustCompile(`(?i)\bencrypted(?:_| )content\b`)},
		{Name: include, Says: regexp.MustCompile(`(?i)\binclude\b`)},
		{Name: summary, Says: regexp.MustCompile(`\breasoning[.']*summary\b|\bsummary\b`)},
	}
}

// Where a server says that something is wrong.
//
//nolint:gochecknoglobals // compiled once
var (
	inMessage = endpoint.Path("messages")
	inCall    = endpoint.Path("tool_calls")
	inContent = endpoint.Path("content")
	inInput   = endpoint.Path("input")
	inOutput  = endpoint.Path("(?:output|content)")
)

// learn is [endpoint.Lessons.Learn], which also learns that there is no Responses API.
func (m *Model) learn(lessons *endpoint.Lessons, err error, sent *endpoint.Asked) bool {
	failure, ok := errors.AsType[*endpoint.Error](err)
	if ok && m.api == Auto && m.uses(lessons) && (failure.Type == endpoint.TypeNotFound ||
		failure.Status == http.StatusMethodNotAllowed || failure.Status == http.StatusNotImplemented) {
		lessons.Omit(responseAPI, failure.Message)
		return true
	}
	return lessons.Learn(err, sent)
}

// offered returns the tools that are sent: no tools of other providers.
func offered(lessons *endpoint.Lessons, all []tools.Definition) []tools.Definition {
	return lessons.Offered(all, func(definition tools.Definition) bool {
		_, declared := toolOf(definition)
		return declared
	})
}

// idOf is the id of a tool call as the server takes it.
func (r *request) idOf(id string) string {
	if r.May(ids) {
		return id
	}
	return endpoint.ShortID(id)
}

// refused makes the error of a request that the server refuses for parts of the conversation a
// [loop.RefusedError].
func (m *Model) refused(req loop.Request, err error) error {
	if _, ok := errors.AsType[*endpoint.Error](err); !ok {
		return err
	}
	sent := m.request(req, m.rejects.Of(req.Session))
	return endpoint.Refused(err, func(text string, aboutImages bool) []loop.Part {
		at, named := endpoint.IndexIn(inMessage, text, len(sent.Conversation))
		if !named {
			return nil
		}
		return partsOf(&sent.Conversation[at], text, aboutImages)
	}, func() (groups [][]loop.Part) {
		for i := range sent.Conversation {
			if images := distinct(sent.Conversation[i].shown); len(images) > 0 {
				groups = append(groups, images)
			}
		}
		return groups
	})
}

// distinct are the parts of a content that can be left out, each once.
func distinct(shown []loop.Part) []loop.Part {
	return slices.DeleteFunc(slices.Compact(slices.Clone(shown)), func(part loop.Part) bool { return part == loop.Part{} })
}

// partsOf are the parts of a message that can be left out.
func partsOf(at *message, text string, aboutImages bool) []loop.Part {
	switch {
	case len(at.shown) > 0:
		if i, named := endpoint.IndexIn(inContent, text, len(at.shown)); named {
			return distinct(at.shown[i : i+1])
		}
		return distinct(at.shown)
	case aboutImages: // the server counts in another way
		return nil
	case at.Role == loop.RoleTool:
		return []loop.Part{{ToolCallID: at.callID, Kind: loop.PartResult}}
	case len(at.ToolCalls) > 0:
		i, _ := endpoint.IndexIn(inCall, text, len(at.ToolCalls))
		return []loop.Part{{ToolCallID: at.ToolCalls[i].callID, Kind: loop.PartCall}}
	default:
		return nil
	}
}
