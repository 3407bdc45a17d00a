package openai_test

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
	"go.uber.org/goleak"

	"github.com/toolfleet/toolfleet/internal/model/endpoint"
	"github.com/toolfleet/toolfleet/internal/model/openai"
	"github.com/toolfleet/toolfleet/pkg/loop"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const key = "sk-very-secret-key"

// answer is how a server treats one request.
type answer func(w http.ResponseWriter, r *http.Request)

// server answers one request after the other, each in its own way, and keeps what it was
// asked. The last way serves for all further requests.
type server struct {
	*httptest.Server

	answers []answer

	mu     sync.Mutex
	bodies []map[string]any
	header http.Header // of the last request
}

func serve(t *testing.T, answers ...answer) *server {
	t.Helper()
	s := &server{answers: answers}
	s.Server = httptest.NewServer(http.HandlerFunc(s.handle))
	t.Cleanup(s.Close)
	return s
}

func (s *server) handle(w http.ResponseWriter, r *http.Request) {
	raw, err := io.ReadAll(r.Body)
	if err != nil || r.URL.Path != "/v1/chat/completions" || r.Method != http.MethodPost {
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

func (s *server) asked() []map[string]any {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.bodies
}

// model is one of the server, with delays too short to notice.
func (s *server) model(t *testing.T, change ...func(*openai.Options)) *openai.Model {
	t.Helper()
	opts := openai.Options{Options: endpoint.Options{
		Model: "m-1", APIKey: key, BaseURL: s.URL + "/v1", HTTPClient: s.Client(),
		RetryDelay: time.Microsecond, MaxRetryDelay: time.Millisecond,
	}}
	for _, f := range change {
		f(&opts)
	}
	m, err := openai.New(opts)
	require.NoError(t, err)
	return m
}

// stream answers with the lines, each an event of its own.
func stream(lines ...string) answer {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for _, line := range lines {
			_, _ = io.WriteString(w, line+"\n\n")
		}
	}
}

func status(code int, body string, headers ...string) answer {
	return func(w http.ResponseWriter, _ *http.Request) {
		for i := 0; i+1 < len(headers); i += 2 {
			w.Header().Set(headers[i], headers[i+1])
		}
		w.WriteHeader(code)
		_, _ = io.WriteString(w, body)
	}
}

// Parts of a stream.
const (
	done = "data: [DONE]"
	stop = `data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}`
)

func text(s string) string {
	quoted, _ := json.Marshal(s)
	return fmt.Sprintf(`data: {"model":"m-1-2026","choices":[{"index":0,"delta":{"content":%s}}]}`, quoted)
}

func toolCalls(pieces string) string {
	return `data: {"choices":[{"index":0,"delta":{"tool_calls":` + pieces + `}}]}`
}

func finish(reason string) string {
	return `data: {"choices":[{"index":0,"delta":{},"finish_reason":"` + reason + `"}]}`
}

func usage(in, out int) string {
	return fmt.Sprintf(`data: {"choices":[],"usage":{"prompt_tokens":%d,"completion_tokens":%d}}`, in, out)
}

func hello() loop.Request {
	return loop.Request{Messages: []loop.Message{{Role: loop.RoleUser, Text: "hello"}}}
}

// pieces collects what a model streams.
type pieces []string

func (p *pieces) add(piece loop.Delta) { *p = append(*p, piece.Text) }

func (p *pieces) String() string { return strings.Join(*p, "|") }

func ignore(loop.Delta) {}
