// Package otlptest receives spans and metrics in tests: a small OTLP/HTTP server on the
// loopback interface, so that a trace can be followed across real processes.
//
//	receiver := otlptest.Start(t)
//	cmd.Env = append(cmd.Env, receiver.Env()...)
//	spans := receiver.WaitFor(t, otlptest.Has("dispatch", "process"))
//	points := receiver.Points() // as they were exported last
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

	metrics "go.opentelemetry.io/proto/otlp/collector/metrics/v1"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/protobuf/proto"
)

// WaitTimeout bounds [Receiver.WaitFor].
const WaitTimeout = time.Minute

// maxBody bounds one export request.
const maxBody = 32 << 20

// Receiver collects every span, and the last value of every metric, that is exported to it. It is
// safe for concurrent use.
type Receiver struct {
	// URL is the value for OTEL_EXPORTER_OTLP_ENDPOINT.
	URL string

	mu       sync.Mutex
	spans    []*Span
	points   map[string]*Point // by process, name and attributes
	requests int
	changed  chan struct{} // closed and replaced at every change
}

// Start begins to receive on a free loopback port; the test's end stops it.
func Start(tb testing.TB) *Receiver {
	tb.Helper()
	r := &Receiver{changed: make(chan struct{}), points: map[string]*Point{}}
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
		"OTEL_METRIC_EXPORT_INTERVAL=100",
	}
}

// Spans returns what has come so far, in the order of arrival.
func (r *Receiver) Spans() []*Span {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.spans)
}

// Points returns the metrics of every process as it exported them last, sorted by name.
func (r *Receiver) Points() []*Point {
	r.mu.Lock()
	defer r.mu.Unlock()
	return sorted(r.points)
}

// WaitForPoints is [Receiver.WaitFor] for metrics.
func (r *Receiver) WaitForPoints(tb testing.TB, enough func([]*Point) bool) []*Point {
	tb.Helper()
	var points []*Point
	if !r.wait(tb, func() bool { points = sorted(r.points); return enough(points) }) {
		tb.Fatalf("not the metrics that the test waits for; after %s there are:\n%s", WaitTimeout, List(points))
	}
	return points
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
	var spans []*Span
	if !r.wait(tb, func() bool { spans = slices.Clone(r.spans); return enough(spans) }) {
		tb.Fatalf("not the spans that the test waits for; after %s there are:\n%s", WaitTimeout, Tree(spans))
	}
	return spans
}

// wait asks enough, which may read what was received, at every change; it reports false when it has
// never said yes.
func (r *Receiver) wait(tb testing.TB, enough func() bool) bool {
	tb.Helper()
	timeout := time.NewTimer(WaitTimeout)
	defer timeout.Stop()
	for {
		r.mu.Lock()
		yes, changed := enough(), r.changed
		r.mu.Unlock()
		if yes {
			return true
		}
		select {
		case <-changed:
		case <-timeout.C:
			return false
		case <-tb.Context().Done():
			return false
		}
	}
}

// ServeHTTP implements [http.Handler].
func (r *Receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	spans, points, err := read(req)
	r.mu.Lock()
	r.requests++
	r.spans = append(r.spans, spans...)
	for _, point := range points {
		r.points[point.key()] = point
	}
	close(r.changed)
	r.changed = make(chan struct{})
	r.mu.Unlock()
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "application/x-protobuf")
	w.WriteHeader(http.StatusOK) // an empty response has no bytes
}

// read decodes an export of either kind.
func read(req *http.Request) ([]*Span, []*Point, error) {
	const traces, measured = "/v1/traces", "/v1/metrics"
	if req.Method != http.MethodPost || req.URL.Path != traces && req.URL.Path != measured {
		return nil, nil, fmt.Errorf("%s %s: want POST %s or %s", req.Method, req.URL.Path, traces, measured)
	}
	raw, err := readBody(req)
	if err != nil {
		return nil, nil, err
	}
	if req.URL.Path == measured {
		var export metrics.ExportMetricsServiceRequest
		if err := proto.Unmarshal(raw, &export); err != nil {
			return nil, nil, fmt.Errorf("decode metrics: %w", err)
		}
		return nil, pointsOf(&export), nil
	}
	var export collector.ExportTraceServiceRequest
	if err := proto.Unmarshal(raw, &export); err != nil {
		return nil, nil, fmt.Errorf("decode spans: %w", err)
	}
	return spansOf(&export), nil, nil
}

func readBody(req *http.Request) ([]byte, error) {
	if kind := req.Header.Get("Content-Type"); !strings.HasPrefix(kind, "application/x-protobuf") {
		return nil, fmt.Errorf("content type %q: want application/x-protobuf", kind)
	}
	body := io.Reader(req.Body)
	if req.Header.Get("Content-Encoding") == "gzip" {
		unzipped, err := gzip.NewReader(req.Body)
		if err != nil {
			return nil, fmt.Errorf("unzip export: %w", err)
		}
		body = unzipped
	}
	raw, err := io.ReadAll(io.LimitReader(body, maxBody))
	if err != nil {
		return nil, fmt.Errorf("read export: %w", err)
	}
	return raw, nil
}
