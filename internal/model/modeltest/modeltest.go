// Package modeltest is the conformance suite of the adapters for models' servers. [Run] has a
// server misbehave in the form of the adapter's API ([Dialect]): it answers with errors and pages,
// breaks off, falls silent, and sends what it should not.
//
// What only one API has is tested by its adapter.
package modeltest

import (
	"encoding/json"
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
	// Call is a whole call, its arguments in pieces; "" as id is none. index is that of the call.
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

// Header is that of the last request.
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

// Options are those of a model of the server.
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
