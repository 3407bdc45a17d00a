// Package anthropic is a model of Anthropic's Messages API, or of a server that speaks it. It
// does without the official SDK: package endpoint sends the requests and reads the answers.
//
// What the model thinks is kept block by block, signed as it came, and goes back while its turn
// lasts: in front of the tool calls to which it led ([opaque]). Instructions, tools and the
// conversation have prompt caching marks, so that each step pays only for what is new.
//
// What a server rejects (caching marks, adaptive thinking, a bound of output tokens) is omitted or
// lowered in the session from then on. Blocks of thinking that it refuses are omitted from that
// request alone, which then asks for no thinking.
package anthropic

import (
	"context"
	"fmt"
	"regexp"

	"github.com/toolfleet/toolfleet/internal/model/endpoint"
	"github.com/toolfleet/toolfleet/pkg/loop"
)

// DefaultBaseURL is the server of a model that names none.
const DefaultBaseURL = "https://api.anthropic.com"

// version is the API's, which each request names.
const version = "2023-06-01"

// maxContinued bounds how often a reply is continued that the provider paused (pause_turn), which
// it does when its own tools take long.
const maxContinued = 16

// Model is one model of one server. It is safe for concurrent use.
type Model struct {
	*endpoint.Endpoint

	rejects *endpoint.Rejects
}

var (
	_ loop.Model    = (*Model)(nil)
	_ loop.Provider = (*Model)(nil)
)

// New returns a model. BaseURL is up to and without "/v1/messages". It connects to nothing; the
// error reports every error of the options.
func New(opts endpoint.Options) (*Model, error) {
	server, err := endpoint.New(endpoint.API{
		DefaultBaseURL: DefaultBaseURL, Example: DefaultBaseURL, Path: "/v1/messages",
		BaseHint: "which usually does not end in /v1", FinishField: "stop_reason",
	}, opts)
	if err != nil {
		return nil, fmt.Errorf("anthropic options: %w", err)
	}
	return &Model{server, endpoint.NewRejects(inMessage, rejected()...)}, nil
}

// Provider implements [loop.Provider].
func (m *Model) Provider() string { return provider }

// Reply implements [loop.Model]. An error is the cause of ctx's end or wraps an
// [*endpoint.Error]. After a broken attempt, delta gets the text from its start again.
func (m *Model) Reply(ctx context.Context, req loop.Request, delta func(loop.Delta)) (loop.Reply, error) {
	reply, err := m.Endpoint.Reply(ctx, delta, func() (loop.Reply, error) { return m.attempt(ctx, req, delta) })
	if err != nil {
		return reply, m.request(req, m.rejects.Of(req.Session)).Refused(err, inMessage, inContent)
	}
	return reply, nil
}

// Where the server says that something is wrong.
//
//nolint:gochecknoglobals // compiled once
var (
	inMessage = endpoint.Path("messages")
	inContent = endpoint.Path("content")
)

// What a server may reject of requests. Without thinking a request has no blocks of it, and asks
// for none: the API refuses a conversation without blocks from a model that thinks.
const (
	thinking  = "thinking"
	maxTokens = "max_tokens"
	marks     = "cache_control"
	adaptive  = "adaptive thinking" // the model wants a budget
)

func rejected() []endpoint.Field {
	return []endpoint.Field{
		// A signature does not fit, or a block is missing where another model replied.
		{Name: thinking, Says: regexp.MustCompile("signature|thinking. block|thinking block|redacted_thinking"), Once: true},
		{Name: maxTokens, Says: regexp.MustCompile(`max_tokens\D+\d+ > ([1-9]\d*)`)},
		{Name: marks, Says: regexp.MustCompile(`\bcache_control\b`)},
		{Name: adaptive, Says: regexp.MustCompile(`\badaptive thinking\b|['"]adaptive['"]|\bthinking\.adaptive\b|\boutput_config\b|\beffort parameter\b`)},
	}
}

// attempt asks once, and again without what the server turns out to reject, or for the rest of a
// reply that the provider paused.
func (m *Model) attempt(ctx context.Context, req loop.Request, delta func(loop.Delta)) (loop.Reply, error) {
	var parts assembler
	lessons := m.rejects.Of(req.Session)
	for {
		sent := m.request(req, lessons)
		sent.resume(parts.blocks)
		err := m.ask(ctx, sent, &parts, delta)
		switch {
		case lessons.Learn(err, &sent.Asked):
		case err != nil:
			return parts.Failed(), err
		case parts.Finish == "pause_turn" && parts.continued < maxContinued:
			parts.continued++
		default:
			parts.Reasoning, parts.Native = parts.reasoning(), parts.native(sent.Tools)
			return m.Finish(&parts.Assembler)
		}
	}
}

// ask sends one request and reads its stream to the end.
func (m *Model) ask(ctx context.Context, sent *request, parts *assembler, delta func(loop.Delta)) error {
	parts.begin()
	sent.body["messages"] = sent.messages
	headers := map[string]string{"X-Api-Key": m.Options().APIKey, "Anthropic-Version": version}
	return m.Stream(ctx, "/v1/messages", sent.body, headers, &parts.Assembler, func(data []byte) error { return parts.read(data, delta) })
}
