// Package modeltest is the conformance suite of the adapters for models' servers. [Run] has a
// server misbehave in the form of the adapter's API ([Dialect]): it answers with errors and pages,
// breaks off, falls silent, and sends what it should not.
//
// What only one API has is tested by its adapter.
package modeltest

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/model/endpoint"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/tools"
)

// Key is the API key of models of the suite.
const Key = "sk-very-secret-key"

// Dialect is how an API writes a stream. Each string is an event, as "data: {...}".
type Dialect struct {
	// New makes a model of the adapter.
	New func(opts endpoint.Options) (loop.Model, error)
	// Base ends the base URL, and Path is the rest of the URL of requests; "" takes any.
	Base, Path string

	Begin   []string
	Text    func(piece string) string // of the inside of a JSON string
	Thought func(piece string) string
	// Call is a whole call, its arguments in pieces; "" as id is none. index is the index of the
	// call.
	Call func(index int, id, name string, pieces ...string) []string
	// CallObject is a whole call whose arguments are an object instead of a text; nil where the API
	// has only that.
	CallObject func(index int, id, name, object string) []string
	// End ends a reply, with the tokens that it took.
	End func(reason string, input, output int) []string
	// Done is what ends a stream; "" if the API has nothing.
	Done string
	// Empty are events that say nothing.
	Empty []string

	// The reasons for which a reply ends: it is whole, at a limit of tokens, filtered, failed.
	Whole, Length, Filtered, Failed string
	// Native are the events of calls that the provider ran itself, for the tools of [NativeTools],
	// and NativeCalls what a reply has of them; nil where the API has none.
	Native      []string
	NativeCalls []loop.NativeCall
	// Document is how a request has the PDF document of a tool result; "" if it is not sent.
	Document string
	// Attached are a text, an image and a PDF document of the user's, as a request has them; nil if
	// the model takes no images.
	Attached []string
	// MayCut says that arguments come in pieces, so that a reply can end within them.
	MayCut bool
}

// Stream is a whole reply of these events.
func (d *Dialect) Stream(events ...string) []string { return d.Ended(d.Whole, events...) }

// Ended is a reply that ends for a reason.
func (d *Dialect) Ended(reason string, events ...string) []string {
	lines := append([]string{}, d.Begin...)
	lines = append(append(lines, events...), d.End(reason, 12, 3)...)
	if d.Done != "" {
		lines = append(lines, d.Done)
	}
	return lines
}

// Answer is how a server treats one request.
type Answer func(w http.ResponseWriter, r *http.Request)

// Server answers one request after the other, each in its own way, and keeps what it was
// asked. The last way serves for all further requests.
type Server struct {
	*httptest.Server

	dialect *Dialect
	answers []Answer

	mu     sync.Mutex
	bodies []map[string]any
	header http.Header // of the last request
}

// Serve starts a server for as long as the test.
func Serve(t *testing.T, d *Dialect, answers ...Answer) *Server {
	t.Helper()
	s := &Server{dialect: d, answers: answers}
	s.Server = httptest.NewServer(http.HandlerFunc(s.handle))
	t.Cleanup(s.Close)
	return s
}

func (s *Server) handle(w http.ResponseWriter, r *http.Request) {
	raw, err := io.ReadAll(r.Body)
	wrong := s.dialect.Path != "" && r.URL.Path != s.dialect.Base+s.dialect.Path
	if err != nil || wrong || r.Method != http.MethodPost {
		http.Error(w, "unexpected request "+r.Method+" "+r.URL.Path, http.StatusTeapot)
		return
	}
	var body map[string]any
	if err := json.Unmarshal(raw, &body); err != nil {
		http.Error(w, err.Error(), http.StatusTeapot)
		return
	}
	s.mu.Lock()
	s.bodies, s.header = append(s.bodies, body), r.Header
	next := s.answers[min(len(s.bodies), len(s.answers))-1]
	s.mu.Unlock()
	next(w, r)
}

// Asked are the bodies of the requests.
func (s *Server) Asked() []map[string]any {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.bodies
}

// Header returns the header of the last request.
func (s *Server) Header() http.Header {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.header
}

// Model is one of the server, with delays too short to notice.
func (s *Server) Model(t *testing.T, change ...func(*endpoint.Options)) loop.Model {
	t.Helper()
	m, err := s.dialect.New(s.Options(change...))
	require.NoError(t, err)
	return m
}

// Options returns options of a model of the server.
func (s *Server) Options(change ...func(*endpoint.Options)) endpoint.Options {
	opts := endpoint.Options{
		Model: "m-1", APIKey: Key, BaseURL: s.URL + s.dialect.Base, HTTPClient: s.Client(),
		RetryDelay: time.Microsecond, MaxRetryDelay: time.Millisecond,
	}
	for _, f := range change {
		f(&opts)
	}
	return opts
}

// Stream answers with the lines, each an event of its own.
func Stream(lines ...string) Answer {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for _, line := range lines {
			_, _ = io.WriteString(w, line+"\n\n")
		}
	}
}

// CutOff answers with the lines and then drops the connection.
func CutOff(lines ...string) Answer {
	return func(w http.ResponseWriter, r *http.Request) {
		Stream(lines...)(w, r)
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}
}

// Status answers with a status, a body, and headers by name and value.
func Status(code int, body string, headers ...string) Answer {
	return func(w http.ResponseWriter, _ *http.Request) {
		for i := 0; i+1 < len(headers); i += 2 {
			w.Header().Set(headers[i], headers[i+1])
		}
		w.WriteHeader(code)
		_, _ = io.WriteString(w, body)
	}
}

// NativeTools are declared to providers that run them, under names that are the session's own.
func NativeTools(provider string, types ...string) []tools.Definition {
	definitions := make([]tools.Definition, len(types))
	for i, kind := range types {
		declared, _ := json.Marshal(map[string]string{"type": kind, "name": kind})
		definitions[i] = tools.Definition{Name: fmt.Sprintf("own_%d", i), Native: map[string]json.RawMessage{provider: declared}}
	}
	return definitions
}

// Hello is a request that says hello.
func Hello() loop.Request {
	return loop.Request{Messages: []loop.Message{{Role: loop.RoleUser, Text: "hello"}}}
}

// Pieces collect the text that a model streams.
type Pieces []string

// Add is for [loop.Model.Reply].
func (p *Pieces) Add(piece loop.Delta) {
	if piece.Waits == "" && piece.Failed == nil {
		*p = append(*p, piece.Text)
	}
}

// String has the pieces apart.
func (p *Pieces) String() string { return strings.Join(*p, "|") }

// Reply is the reply of a model that has one.
func Reply(t *testing.T, model loop.Model, request loop.Request, delta func(loop.Delta)) loop.Reply {
	t.Helper()
	reply, err := model.Reply(t.Context(), request, delta)
	require.NoError(t, err)
	return reply
}

// Ignore is for [loop.Model.Reply].
func Ignore(loop.Delta) {}

// RequireType fails unless err is of a type of [endpoint.Error].
func RequireType(t *testing.T, want string, err error) {
	t.Helper()
	var failure *endpoint.Error
	require.ErrorAs(t, err, &failure)
	require.Equal(t, want, failure.Type, "%v", err)
}

// Quoted is a text as the inside of a JSON string.
func Quoted(text string) string {
	quoted, _ := json.Marshal(text)
	return strings.TrimSuffix(strings.TrimPrefix(string(quoted), `"`), `"`)
}

// Data is an event with data.
func Data(format string, args ...any) string { return "data: " + fmt.Sprintf(format, args...) }

// Servers say in many ways that an account has nothing left to pay with; a limit of a minute is
// another thing.
func usedUp(t *testing.T, d *Dialect) {
	t.Helper()
	for name, test := range map[string]struct {
		code int
		body string
		want string
	}{
		"Anthropic": {400, `{"error":{"type":"invalid_request_error","message":"Your credit balance is too low to access the Anthropic API. Please go to Plans & Billing to upgrade or purchase credits."}}`, endpoint.TypeQuotaExceeded},
		"Anthropic, limit": {
			400,
			`{"error":{"type":"invalid_request_error","message":"You have reached your specified API usage limits. You will regain access on 2026-12-01 at 00:00 UTC."}}`,
			endpoint.TypeQuotaExceeded,
		},
		"DeepSeek": {402, `{"error":{"message":"Insufficient Balance","type":"unknown_error"}}`, endpoint.TypeQuotaExceeded},
		"OpenRouter": {
			402, `{"error":{"message":"Prompt tokens limit exceeded: 9000 > 2000. This request requires more credits","code":402}}`, endpoint.TypeQuotaExceeded,
		},
		"OpenRouter, key": {403, `{"error":{"message":"Key limit exceeded (total limit)","code":403}}`, endpoint.TypeQuotaExceeded},
		"without a word":  {402, "", endpoint.TypeQuotaExceeded},
		"xAI":             {403, `{"code":"The caller does not have permission","error":"Your newly created team doesn't have any credits yet."}`, endpoint.TypeQuotaExceeded},
		"Google": {
			403,
			`{"error":{"code":403,"message":"The project is not set up.","status":"PERMISSION_DENIED","details":[{"@type":"x/ErrorInfo","reason":"BILLING_DISABLED"}]}}`,
			endpoint.TypeQuotaExceeded,
		},
		"Google, in words": {
			403, `{"error":{"code":403,"message":"This API method requires billing to be enabled.","status":"PERMISSION_DENIED"}}`, endpoint.TypeQuotaExceeded,
		},
		"Moonshot": {
			429,
			`{"error":{"message":"Your account is suspended due to insufficient balance","type":"exceeded_current_quota_error"}}`,
			endpoint.TypeQuotaExceeded,
		},
		"Fireworks": {412, `{"error":"Account suspended, possibly due to reaching the monthly spending limit"}`, endpoint.TypeQuotaExceeded},
		"Qwen":      {400, `{"error":{"code":"Arrearage","message":"Access denied."}}`, endpoint.TypeQuotaExceeded},
		"a minute's quota": {
			429,
			`{"error":{"code":429,"message":"You exceeded your current quota, please check your plan and billing details.","status":"RESOURCE_EXHAUSTED"}}`,
			endpoint.TypeRateLimited,
		},
		"an hour's limit": {429, `{"error":"you have reached your hourly usage limit"}`, endpoint.TypeRateLimited},
		"no right":        {403, `{"error":{"message":"Your key has no right to use this model"}}`, endpoint.TypePermission},
		"a bad parameter": {400, `{"error":{"message":"billing_metadata: unknown field"}}`, endpoint.TypeInvalidRequest},
	} {
		_, err := Serve(t, d, Status(test.code, test.body)).Model(t, func(o *endpoint.Options) { o.MaxAttempts = 1 }).Reply(t.Context(), Hello(), Ignore)
		RequireType(t, test.want, err)
		var failure *endpoint.Error
		require.ErrorAs(t, err, &failure)
		down := test.want == endpoint.TypeQuotaExceeded || test.want == endpoint.TypeRateLimited
		require.Equal(t, down, failure.Down(), name)
	}
}

// A tool is left out only for an error about its declaration, and in the session that had the
// error.
func rejectedTools(t *testing.T, d *Dialect) {
	t.Helper()
	asked := Hello()
	asked.Session = "one"
	asked.Tools = []tools.Definition{{Name: "bash"}, {Name: "read"}}
	ok := Stream(d.Stream(d.Text("ok"))...)
	for _, message := range []string{
		"Invalid arguments for tool bash", "the call of function 'bash' is too long", "tool bash: the documentation has the schema", "too many tools (1)",
	} {
		s := Serve(t, d, Status(http.StatusBadRequest, `{"error":{"message":"`+message+`"}}`), ok)
		m := s.Model(t)
		_, err := m.Reply(t.Context(), asked, Ignore)
		RequireType(t, endpoint.TypeInvalidRequest, err)
		Reply(t, m, asked, Ignore)
		require.Contains(t, encoded(t, s.Asked()[1]), `"bash"`, message)
	}
	for _, message := range []string{"Invalid schema for function 'bash': x", "Tool 'bash' is not supported with this model", "m-1 does not support tool types: bash"} {
		s := Serve(t, d, Status(http.StatusBadRequest, `{"error":{"message":"`+message+`"}}`), ok)
		m := s.Model(t)
		for range 2 {
			Reply(t, m, asked, Ignore)
		}
		other := asked
		other.Session = "two"
		Reply(t, m, other, Ignore)
		require.Len(t, s.Asked(), 4)
		for i, has := range []bool{true, false, false, true} {
			require.Equal(t, has, strings.Contains(encoded(t, s.Asked()[i]), `"name":"bash"`), "request %d of %s", i, message)
		}
	}
}

// An image is left out only for an error about images.
func aboutImages(t *testing.T, d *Dialect) {
	t.Helper()
	if d.Attached == nil {
		return
	}
	asked := Hello()
	asked.Messages[0].Attachments = []loop.Attachment{{ID: "a0", Name: "a.png", Image: loop.Image{MediaType: "image/png", Data: []byte("x")}}}
	for _, test := range []struct {
		code    int
		error   string
		refused bool
	}{
		{400, `"message":"Provisioned throughput is required for this model"`, false},
		{400, `"message":"Unknown parameter. See the documentation"`, false},
		{400, `"message":"This revision is not valid"`, false},
		{400, `"message":"Invalid JSON document"`, false},
		{400, `"message":"Image generation is not supported by this model"`, false},
		{500, `"message":"failed to pull container image: not found"`, false},
		{500, `"message":"the vision team was notified"`, false},
		{404, `"message":"The model m-1 was not found. See the multimodal guide"`, false},
		{400, `"message":"bad request","code":"image_parse_error"`, true},
		{400, `"message":"bad request","param":"content.image_url"`, true},
		{400, `"message":"Could not process image"`, true},
		{400, `"message":"Unable to process input image. Please retry."`, true},
		{400, `"message":"The document has no pages."`, true},
		{400, `"message":"This model does not support images"`, true},
		{500, `"message":"image input is not supported - hint: you may need to provide the mmproj"`, true},
		{404, `"message":"No endpoints found that support image input"`, true},
	} {
		_, err := Serve(t, d, Status(test.code, `{"error":{`+test.error+`}}`)).Model(t, func(o *endpoint.Options) { o.MaxAttempts = 1 }).Reply(t.Context(), asked, Ignore)
		var refused *loop.RefusedError
		require.Equal(t, test.refused, errors.As(err, &refused), test.error)
	}
}
