// Package openai is a model behind an OpenAI-compatible HTTP API, streamed, with tools: the
// Responses API (responses.go) or chat completions. A base URL makes it vLLM, Ollama, a gateway, or
// any other server that speaks the same.
// Package endpoint has what adapters share: HTTP, retries, and the assembly of a reply.
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
	"fmt"

	"github.com/toolfleet/toolfleet/internal/model/endpoint"
	"github.com/toolfleet/toolfleet/internal/render"
	"github.com/toolfleet/toolfleet/pkg/loop"
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

// api is that of chat completions.
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
	// Images says that the model takes images: those of tool results and of inputs are sent, and
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
			reply, err = m.askResponses(ctx, request, delta)
		} else {
			request := m.request(req, lessons)
			sent = &request.Asked
			reply, err = m.ask(ctx, request, delta)
		}
		if !m.learn(lessons, err, sent) {
			return reply, err
		}
	}
}

// ask sends one request and reads its stream to the end.
func (m *Model) ask(ctx context.Context, request *request, delta func(loop.Delta)) (loop.Reply, error) {
	var parts assembler
	err := m.Stream(ctx, "/chat/completions", request, m.headers(), &parts.Assembler, func(data []byte) error { return parts.read(data, delta) })
	if err != nil {
		return parts.Failed(), err
	}
	parts.Reasoning = parts.reasoning()
	return m.Finish(&parts.Assembler)
}

// headers are those of each request.
func (m *Model) headers() map[string]string {
	headers := map[string]string{"OpenAI-Organization": m.organization}
	if key := m.Options().APIKey; key != "" {
		headers["Authorization"] = "Bearer " + key
	}
	return headers
}
