// Package google is a model of the Gemini API, or of a server that speaks it. It does without the
// official SDK, which decodes numbers in arguments as floats.
//
// Signatures of thoughts are kept with the parts of a reply that they are of, and go back with them
// while the turn lasts ([opaque]). Calls that another provider's model made have none; a server
// that insists gets the value by which the API skips the check.
package google

import (
	"context"
	"fmt"
	"net/url"
	"regexp"
	"strings"

	"github.com/toolfleet/toolfleet/internal/model/endpoint"
	"github.com/toolfleet/toolfleet/pkg/loop"
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
		reply, err := m.ask(ctx, sent, delta)
		if !lessons.Learn(err, &sent.Asked) {
			return reply, err
		}
	}
}

// ask sends one request and reads its stream to the end.
func (m *Model) ask(ctx context.Context, sent *request, delta func(loop.Delta)) (loop.Reply, error) {
	parts := assembler{endpoint: m.Endpoint, offered: sent.Tools}
	headers := map[string]string{"X-Goog-Api-Key": m.Options().APIKey}
	err := m.Stream(ctx, m.path(), sent.body, headers, &parts.Assembler, func(data []byte) error { return parts.read(data, delta) })
	if err != nil {
		return parts.Failed(), err
	}
	parts.Reasoning = parts.reasoning()
	if parts.searched != nil {
		parts.Native = append(parts.Native, *parts.searched)
	}
	return m.Finish(&parts.Assembler)
}
