// Package google is a model of the Gemini API, or of a server that speaks it. The official SDK
// (genai) writes the requests; package endpoint reads the answers, because the SDK decodes numbers
// in arguments as floats.
//
// Signatures of thoughts are kept with the parts of a reply that they are of, and go back with them
// while the turn lasts ([opaque]). Calls that another provider's model made have none; a server
// that insists gets the value by which the API skips the check.
package google

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"sync/atomic"

	"google.golang.org/genai"

	"github.com/toolfleet/toolfleet/internal/model/endpoint"
	"github.com/toolfleet/toolfleet/pkg/loop"
)

// DefaultBaseURL is the server of a model that names none.
const DefaultBaseURL = "https://generativelanguage.googleapis.com"

// noKey is sent to servers that need no key: the SDK wants one.
const noKey = "none"

// Model is one model of one server. It is safe for concurrent use.
type Model struct {
	*endpoint.Endpoint

	rejects rejects
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
	return &Model{Endpoint: server}, nil
}

// send has the SDK send a request.
func (m *Model) send(ctx context.Context, sent *request) error {
	opts := m.Options()
	if opts.APIKey == "" {
		opts.APIKey = noKey
	}
	client, err := genai.NewClient(ctx, &genai.ClientConfig{
		APIKey: opts.APIKey, Backend: genai.BackendGeminiAPI, HTTPClient: m.Client(),
		HTTPOptions: genai.HTTPOptions{BaseURL: opts.BaseURL},
	})
	if err != nil {
		return err
	}
	config := &genai.GenerateContentConfig{
		AutomaticContinuation: new(bool), // which asks again by itself
		HTTPOptions:           &genai.HTTPOptions{ExtrasRequestProvider: func(map[string]any) map[string]any { return sent.body }},
	}
	for _, err := range client.Models.GenerateContentStream(ctx, opts.Model, nil, config) {
		return err
	}
	return nil
}

// Provider implements [loop.Provider].
func (m *Model) Provider() string { return provider }

// Reply implements [loop.Model]. An error is the cause of ctx's end or wraps an
// [*endpoint.Error]. After a broken attempt, delta gets the text from its start again.
func (m *Model) Reply(ctx context.Context, req loop.Request, delta func(loop.Delta)) (loop.Reply, error) {
	reply, err := m.Endpoint.Reply(ctx, delta, func() (loop.Reply, error) { return m.attempt(ctx, req, delta) })
	if err != nil {
		return reply, m.request(req, signatures{}).sent.Refused(err, inContents, inParts)
	}
	return reply, nil
}

// Where the server says that something is wrong.
var (
	inContents = regexp.MustCompile(`contents\W{1,3}(\d+)`)
	inParts    = regexp.MustCompile(`parts\W{1,3}(\d+)`)
)

// attempt asks once, and again without what the server turns out to reject.
func (m *Model) attempt(ctx context.Context, req loop.Request, delta func(loop.Delta)) (loop.Reply, error) {
	var without signatures // for this request alone: what is wrong is in its conversation
	for {
		sent := m.request(req, without)
		reply, err := m.ask(ctx, sent, delta)
		if !without.learn(err) && !m.rejects.learn(err, sent) {
			return reply, err
		}
	}
}

// ask sends one request and reads its stream to the end.
func (m *Model) ask(ctx context.Context, sent *request, delta func(loop.Delta)) (loop.Reply, error) {
	events, err := m.Capture(ctx, func(ctx context.Context) error { return m.send(ctx, sent) })
	if err != nil {
		return loop.Reply{}, err
	}
	parts := assembler{endpoint: m.Endpoint, offered: sent.offered}
	err = m.Read(events, func(data []byte) error { return parts.read(data, delta) }, func() bool { return parts.Finish != "" })
	if err != nil {
		return parts.Failed(), err
	}
	parts.Reasoning = parts.reasoning()
	if parts.searched != nil {
		parts.Native = append(parts.Native, *parts.searched)
	}
	return m.Finish(&parts.Assembler)
}

// rejects is what a server has rejected of requests, and is not sent again.
type rejects struct {
	thinking atomic.Bool // thinkingConfig: the model does not think
	levels   atomic.Bool // thinkingLevel: the model wants a budget
	tools    endpoint.Tools
}

// omitted is what a request is without.
type omitted struct {
	thinking, levels bool
	signatures
}

// signatures are those that a request is without, because a reply of its conversation has none, or
// those of another model.
type signatures struct {
	unsigned bool // calls without a signature
	foreign  bool // signatures of another model
}

// learn reports whether an error is about signatures that the request has had.
func (s *signatures) learn(err error) bool {
	failure, ok := errors.AsType[*endpoint.Error](err)
	if !ok || failure.Type != endpoint.TypeInvalidRequest {
		return false
	}
	text, before := strings.ToLower(failure.Text()), *s
	if !strings.Contains(text, "signature") {
		return false
	}
	s.unsigned = true
	s.foreign = s.foreign || !strings.Contains(text, "missing") && !strings.Contains(text, "required")
	return *s != before
}

func (r *rejects) omitted() omitted {
	return omitted{thinking: r.thinking.Load(), levels: r.levels.Load()}
}

// learn reports whether an error says that the server rejects something that the sent request has,
// so that one without it may do. Other requests may have learned the same meanwhile.
func (r *rejects) learn(err error, sent *request) bool {
	failure, ok := errors.AsType[*endpoint.Error](err)
	if !ok || failure.Type != endpoint.TypeInvalidRequest {
		return false
	}
	text := strings.ToLower(failure.Text())
	switch {
	case strings.Contains(text, "signature"): // see signatures
		return false
	case strings.Contains(text, "thinking level"), strings.Contains(text, "thinking_level"), strings.Contains(text, "thinkinglevel"):
		r.levels.Store(true)
		return !sent.omitted.levels && sent.levels
	case strings.Contains(text, "thinking"):
		r.thinking.Store(true)
		return !sent.omitted.thinking && !sent.effort // which the user asked for
	case inContents.MatchString(text):
		return false
	default:
		return r.tools.Learn(failure.Text(), sent.offered)
	}
}
