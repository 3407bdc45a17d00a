// Package anthropic is a model of Anthropic's Messages API, or of a server that speaks it. The
// official SDK writes the requests; package endpoint reads the answers.
//
// What the model thinks is kept block by block, signed as it came, and goes back while its turn
// lasts: in front of the tool calls to which it led ([opaque]). Instructions, tools and the
// conversation have prompt caching marks, so that each step pays only for what is new.
//
// What a server rejects (caching marks, adaptive thinking, a bound of output tokens) is omitted or
// lowered from then on. Blocks of thinking that it refuses are omitted from that request alone,
// which then asks for no thinking.
package anthropic

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"

	sdk "github.com/anthropics/anthropic-sdk-go"
	"github.com/anthropics/anthropic-sdk-go/option"

	"github.com/toolfleet/toolfleet/internal/model/endpoint"
	"github.com/toolfleet/toolfleet/pkg/loop"
)

// DefaultBaseURL is the server of a model that names none.
const DefaultBaseURL = "https://api.anthropic.com"

// maxContinued bounds how often a reply is continued that the provider paused (pause_turn), which
// it does when its own tools take long.
const maxContinued = 16

// Model is one model of one server. It is safe for concurrent use.
type Model struct {
	*endpoint.Endpoint

	client  sdk.Client
	rejects rejects
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
	sent := []option.RequestOption{
		option.WithoutEnvironmentDefaults(), option.WithHTTPClient(server.Client()), option.WithMaxRetries(0),
		option.WithBaseURL(server.Options().BaseURL), option.WithJSONSet("stream", true),
	}
	if key := server.Options().APIKey; key != "" {
		sent = append(sent, option.WithAPIKey(key))
	}
	return &Model{Endpoint: server, client: sdk.NewClient(sent...)}, nil
}

// Provider implements [loop.Provider].
func (m *Model) Provider() string { return provider }

// Reply implements [loop.Model]. An error is the cause of ctx's end or wraps an
// [*endpoint.Error]. After a broken attempt, delta gets the text from its start again.
func (m *Model) Reply(ctx context.Context, req loop.Request, delta func(loop.Delta)) (loop.Reply, error) {
	reply, err := m.Endpoint.Reply(ctx, delta, func() (loop.Reply, error) { return m.attempt(ctx, req, delta) })
	if err != nil {
		return reply, m.request(req, false).sent.Refused(err, inMessage, inContent)
	}
	return reply, nil
}

// Where the server says that something is wrong.
var (
	inMessage = regexp.MustCompile(`messages\W{1,3}(\d+)`)
	inContent = regexp.MustCompile(`content\W{1,3}(\d+)`)
	maxTokens = regexp.MustCompile(`max_tokens\D+\d+ > (\d+)`)
)

// attempt asks once, and again without what the server turns out to reject, or for the rest of a
// reply that the provider paused.
func (m *Model) attempt(ctx context.Context, req loop.Request, delta func(loop.Delta)) (loop.Reply, error) {
	var parts assembler
	thoughtless := false // for this request alone: what is wrong is in its conversation
	for {
		sent := m.request(req, thoughtless)
		sent.resume(parts.blocks)
		err := m.ask(ctx, sent, &parts, delta)
		switch {
		case !thoughtless && refusesThoughts(err):
			thoughtless = true
		case m.rejects.learn(err, sent):
		case err != nil:
			return parts.Failed(), err
		case parts.Finish == "pause_turn" && parts.continued < maxContinued:
			parts.continued++
		default:
			parts.Reasoning, parts.Native = parts.reasoning(), parts.native(sent.offered)
			return m.Finish(&parts.Assembler)
		}
	}
}

// ask sends one request and reads its stream to the end.
func (m *Model) ask(ctx context.Context, sent *request, parts *assembler, delta func(loop.Delta)) error {
	events, err := m.Capture(ctx, func(ctx context.Context) error {
		var ignored *http.Response
		err := m.client.Execute(ctx, http.MethodPost, "v1/messages", sent.params, &ignored)
		if ignored != nil {
			_ = ignored.Body.Close()
		}
		return err
	})
	if err != nil {
		return err
	}
	parts.begin()
	return m.Read(events, func(data []byte) error { return parts.read(data, delta) }, func() bool { return parts.Finish != "" })
}

// rejects is what a server has rejected of requests, and is not sent again.
type rejects struct {
	marks     atomic.Bool  // cache_control
	adaptive  atomic.Bool  // adaptive thinking: the model wants a budget
	maxTokens atomic.Int64 // the most output tokens that the model takes; 0 if unknown
	tools     endpoint.Tools
}

// omitted is what a request is without. Without thinking it has no blocks of it, and asks for none:
// the API refuses a conversation without blocks from a model that thinks.
type omitted struct {
	marks, adaptive, thinking bool
	maxTokens                 int64
}

func (r *rejects) omitted() omitted {
	return omitted{marks: r.marks.Load(), adaptive: r.adaptive.Load(), maxTokens: r.maxTokens.Load()}
}

// refusesThoughts reports whether an error is about blocks of thinking: a signature that does not
// fit, or a block that is missing where another model replied.
func refusesThoughts(err error) bool {
	failure, ok := errors.AsType[*endpoint.Error](err)
	if !ok || failure.Type != endpoint.TypeInvalidRequest {
		return false
	}
	return thoughts.MatchString(failure.Text())
}

var thoughts = regexp.MustCompile("signature|thinking. block|thinking block|redacted_thinking")

// learn reports whether an error says that the server rejects something that the sent request has,
// so that one without it may do. Other requests may have learned the same meanwhile.
func (r *rejects) learn(err error, sent *request) bool {
	failure, ok := errors.AsType[*endpoint.Error](err)
	if !ok || failure.Type != endpoint.TypeInvalidRequest && failure.Type != endpoint.TypeContextLength {
		return false
	}
	text := failure.Text()
	if found := maxTokens.FindStringSubmatch(text); found != nil {
		most, err := strconv.ParseInt(found[1], 10, 64)
		if err != nil || most <= 0 || sent.omitted.maxTokens == most {
			return false
		}
		r.maxTokens.Store(most)
		return true
	}
	switch {
	case failure.Type == endpoint.TypeContextLength:
		return false
	case strings.Contains(text, "cache_control"):
		r.marks.Store(true)
		return !sent.omitted.marks
	case strings.Contains(text, "adaptive"), strings.Contains(text, "output_config"), strings.Contains(text, "effort"):
		r.adaptive.Store(true)
		return !sent.omitted.adaptive && sent.thinks
	case inMessage.MatchString(text):
		return false
	default:
		return r.tools.Learn(text, sent.offered)
	}
}
