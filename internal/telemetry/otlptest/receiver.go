// Package otlptest receives spans in tests: a small OTLP/HTTP server on the
// loopback interface, so that a trace can be followed across real processes.
//
//	receiver := otlptest.Start(t)
//	cmd.Env = append(cmd.Env, receiver.Env()...)
//	spans := receiver.WaitFor(t, otlptest.Has("dispatch", "process"))
package otlptest

import (
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/protobuf/proto"
)

// WaitTimeout bounds [Receiver.WaitFor].
const WaitTimeout = 20 * time.Second

// maxBody bounds one export request.
const maxBody = 32 << 20

// Receiver collects every span that is exported to it. It is safe for concurrent use.
type Receiver struct {
	// URL is the value for OTEL_EXPORTER_OTLP_ENDPOINT.
	URL string

	mu       sync.Mutex
	spans    []*Span
	requests int
	changed  chan struct{} // closed and replaced at every change
}

// Start begins to receive on a free loopback port; the test's end stops it.
func Start(tb testing.TB) *Receiver {
	tb.Helper()
	r := &Receiver{changed: make(chan struct{})}
	server := httptest.NewServer(r)
	tb.Cleanup(server.Close)
	r.URL = server.URL
	return r
}

// Env returns the variables that make a process export here, and soon.
func (r *Receiver) Env() []string {
	return []string{
		"OTEL_EXPORTER_OTLP_ENDPOINT=" + r.URL,
		"OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf",
		"OTEL_BSP_SCHEDULE_DELAY=50",
	}
}

// Spans returns what has come so far, in the order of arrival.
func (r *Receiver) Spans() []*Span {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.spans)
}

// Requests counts what was received over HTTP, whatever it was.
func (r *Receiver) Requests() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.requests
}

// WaitFor returns the spans as soon as enough says yes to them. It fails the test,
// and shows what came, after [WaitTimeout].
func (r *Receiver) WaitFor(tb testing.TB, enough func([]*Span) bool) []*Span {
	tb.Helper()
	timeout := time.NewTimer(WaitTimeout)
	defer timeout.Stop()
	for {
		r.mu.Lock()
		spans, changed := slices.Clone(r.spans), r.changed
		r.mu.Unlock()
		if enough(spans) {
			return spans
		}
		select {
		case <-changed:
		case <-timeout.C:
			tb.Fatalf("not the spans that the test waits for; after %s there are:\n%s", WaitTimeout, Tree(spans))
		case <-tb.Context().Done():
			tb.Fatalf("the test ended before its spans came; there are:\n%s", Tree(spans))
		}
	}
}

// ServeHTTP implements [http.Handler].
func (r *Receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	spans, err := readSpans(req)
	r.mu.Lock()
	r.requests++
	r.spans = append(r.spans, spans...)
	close(r.changed)
	r.changed = make(chan struct{})
	r.mu.Unlock()
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "application/x-protobuf")
	w.WriteHeader(http.StatusOK) // an empty ExportTraceServiceResponse has no bytes
}

func readSpans(req *http.Request) ([]*Span, error) {
	if req.Method != http.MethodPost || req.URL.Path != "/v1/traces" {
		return nil, fmt.Errorf("%s %s: want POST /v1/traces", req.Method, req.URL.Path)
	}
	if kind := req.Header.Get("Content-Type"); !strings.HasPrefix(kind, "application/x-protobuf") {
		return nil, fmt.Errorf("content type %q: want application/x-protobuf", kind)
	}
	body := io.Reader(req.Body)
	if req.Header.Get("Content-Encoding") == "gzip" {
		unzipped, err := gzip.NewReader(req.Body)
		if err != nil {
			return nil, fmt.Errorf("unzip spans: %w", err)
		}
		body = unzipped
	}
	raw, err := io.ReadAll(io.LimitReader(body, maxBody))
	if err != nil {
		return nil, fmt.Errorf("read spans: %w", err)
	}
	var export collector.ExportTraceServiceRequest
	if err := proto.Unmarshal(raw, &export); err != nil {
		return nil, fmt.Errorf("decode spans: %w", err)
	}
	return spansOf(&export), nil
}
