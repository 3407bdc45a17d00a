// Package telemetrytest receives spans, metrics and records of logs in tests: a small OTLP/HTTP
// server on the loopback interface, so that a trace can be followed across real processes.
//
//	receiver := telemetrytest.Start(t)
//	cmd.Env = append(cmd.Env, receiver.Env()...)
//	spans := receiver.WaitFor(t, telemetrytest.Has("dispatch", "process"))
//	points := receiver.Points() // as they were exported last
package telemetrytest

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	logs "go.opentelemetry.io/proto/otlp/collector/logs/v1"
	metrics "go.opentelemetry.io/proto/otlp/collector/metrics/v1"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	common "go.opentelemetry.io/proto/otlp/common/v1"
	metricpb "go.opentelemetry.io/proto/otlp/metrics/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// WaitTimeout bounds [Receiver.WaitFor].
const WaitTimeout = time.Minute

// maxBody bounds one export request.
const maxBody = 32 << 20

// Receiver collects every span, every record of a log, and the last value of every metric, that are
// exported to it. It is safe for concurrent use.
type Receiver struct {
	// URL is the value for OTEL_EXPORTER_OTLP_ENDPOINT.
	URL string

	mu       sync.Mutex
	spans    []*Span
	records  []*Record
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
		"OTEL_BLRP_SCHEDULE_DELAY=50",
		"OTEL_METRIC_EXPORT_INTERVAL=100",
	}
}

// Spans returns what has come so far, in the order of arrival.
func (r *Receiver) Spans() []*Span {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.spans)
}

// WaitForRecords is [Receiver.WaitFor] for records of logs, in the order of arrival.
func (r *Receiver) WaitForRecords(tb testing.TB, enough func([]*Record) bool) []*Record {
	tb.Helper()
	var records []*Record
	if !r.wait(tb, func() bool { records = slices.Clone(r.records); return enough(records) }) {
		tb.Fatalf("not the records that the test waits for; after %s there are:\n%s", WaitTimeout, listRecords(records))
	}
	return records
}

// Records returns the records of logs that have come so far, in the order of arrival.
func (r *Receiver) Records() []*Record {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.records)
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
	spans, points, records, err := read(req)
	r.mu.Lock()
	r.requests++
	r.spans = append(r.spans, spans...)
	r.records = append(r.records, records...)
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

// read decodes an export of any kind.
func read(req *http.Request) (spans []*Span, points []*Point, records []*Record, err error) {
	const traces, measured, logged = "/v1/traces", "/v1/metrics", "/v1/logs"
	if req.Method != http.MethodPost || !slices.Contains([]string{traces, measured, logged}, req.URL.Path) {
		return nil, nil, nil, fmt.Errorf("%s %s: want POST %s, %s or %s", req.Method, req.URL.Path, traces, measured, logged)
	}
	raw, err := readBody(req)
	if err != nil {
		return nil, nil, nil, err
	}
	switch req.URL.Path {
	case measured:
		var export metrics.ExportMetricsServiceRequest
		err = proto.Unmarshal(raw, &export)
		points = pointsOf(&export)
	case logged:
		var export logs.ExportLogsServiceRequest
		err = proto.Unmarshal(raw, &export)
		records = recordsOf(&export)
	default:
		var export collector.ExportTraceServiceRequest
		err = proto.Unmarshal(raw, &export)
		spans = spansOf(&export)
	}
	if err != nil {
		return nil, nil, nil, fmt.Errorf("decode what came to %s: %w", req.URL.Path, err)
	}
	return spans, points, records, nil
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

// Span is one received span. Ids are in hex, as headers carry them.
type Span struct {
	Name    string
	TraceID string
	SpanID  string
	// ParentID is "" for the root of a trace.
	ParentID string
	// Links are the traces of the spans that it is linked to.
	Links []string
	// Kind is internal, server, client, producer or consumer.
	Kind string
	// Service is the service.name of the process.
	Service string
	// Scope is the name of the instrumentation scope.
	Scope string
	// Resource and Attributes are by key; values are string, bool, int64, float64 or []any.
	Resource   map[string]any
	Attributes map[string]any
	// Failed says that the status is an error, with its Message.
	Failed     bool
	Message    string
	Start, End time.Time
}

// ReadFile reads the spans of a file in the OTLP file format, whose lines must all be whole.
func ReadFile(tb testing.TB, path string) (spans []*Span) {
	tb.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		tb.Fatal(err)
	}
	for line := range bytes.Lines(content) {
		var tree any
		if err := json.Unmarshal(line, &tree); err != nil || !bytes.HasSuffix(line, []byte("\n")) {
			tb.Fatalf("%s: no whole line: %.200q: %v", path, line, err)
		}
		decodeIDs(tree)
		inBase64, err := json.Marshal(tree)
		var export collector.ExportTraceServiceRequest
		if err == nil {
			err = protojson.Unmarshal(inBase64, &export)
		}
		if err != nil {
			tb.Fatalf("%s: %v in %.200q", path, err, line)
		}
		spans = append(spans, spansOf(&export)...)
	}
	return spans
}

// decodeIDs makes of ids in hex, as the file format has them, such in base64, as protobuf has them.
func decodeIDs(tree any) {
	switch tree := tree.(type) {
	case []any:
		for _, element := range tree {
			decodeIDs(element)
		}
	case map[string]any:
		for key, value := range tree {
			if text, is := value.(string); is && slices.Contains([]string{"traceId", "spanId", "parentSpanId"}, key) {
				if raw, err := hex.DecodeString(text); err == nil {
					tree[key] = base64.StdEncoding.EncodeToString(raw)
				}
			}
			decodeIDs(value)
		}
	}
}

// Find returns the spans of a name, in the order of arrival.
func Find(spans []*Span, name string) []*Span {
	var found []*Span
	for _, span := range spans {
		if span.Name == name {
			found = append(found, span)
		}
	}
	return found
}

// Has is a condition for [Receiver.WaitFor]: at least one span of every name has come.
func Has(names ...string) func([]*Span) bool {
	return func(spans []*Span) bool {
		return !slices.ContainsFunc(names, func(name string) bool { return len(Find(spans, name)) == 0 })
	}
}

// ChildOf reports whether parent is the direct parent of s.
func (s *Span) ChildOf(parent *Span) bool {
	return s.TraceID == parent.TraceID && s.ParentID == parent.SpanID
}

// Tree draws the spans as they hang together, for people who read a failed test.
func Tree(spans []*Span) string {
	var out strings.Builder
	known := map[string]bool{}
	for _, span := range spans {
		known[span.SpanID] = true
	}
	for _, span := range spans {
		if !known[span.ParentID] {
			draw(&out, spans, span, 0)
		}
	}
	return out.String()
}

func draw(out *strings.Builder, spans []*Span, span *Span, depth int) {
	fmt.Fprintf(out, "%s%s (%s, trace %s, %s)", strings.Repeat("  ", depth), span.Name, span.Service, span.TraceID, span.End.Sub(span.Start))
	if span.Failed {
		fmt.Fprintf(out, " failed: %s", span.Message)
	}
	out.WriteByte('\n')
	for _, child := range spans {
		if child.ChildOf(span) && child != span {
			draw(out, spans, child, depth+1)
		}
	}
}

func spansOf(export *collector.ExportTraceServiceRequest) []*Span {
	var spans []*Span
	for _, from := range export.GetResourceSpans() {
		resource := valuesOf(from.GetResource().GetAttributes())
		service, _ := resource["service.name"].(string)
		for _, scoped := range from.GetScopeSpans() {
			for _, raw := range scoped.GetSpans() {
				span := spanOf(raw)
				span.Service, span.Resource, span.Scope = service, resource, scoped.GetScope().GetName()
				spans = append(spans, span)
			}
		}
	}
	return spans
}

func spanOf(raw *tracepb.Span) *Span {
	var links []string
	for _, link := range raw.GetLinks() {
		links = append(links, hex.EncodeToString(link.GetTraceId()))
	}
	return &Span{
		Links:      links,
		Name:       raw.GetName(),
		TraceID:    hex.EncodeToString(raw.GetTraceId()),
		SpanID:     hex.EncodeToString(raw.GetSpanId()),
		ParentID:   hex.EncodeToString(raw.GetParentSpanId()),
		Kind:       strings.ToLower(strings.TrimPrefix(raw.GetKind().String(), "SPAN_KIND_")),
		Attributes: valuesOf(raw.GetAttributes()),
		Failed:     raw.GetStatus().GetCode() == tracepb.Status_STATUS_CODE_ERROR,
		Message:    raw.GetStatus().GetMessage(),
		Start:      time.Unix(0, int64(raw.GetStartTimeUnixNano())),
		End:        time.Unix(0, int64(raw.GetEndTimeUnixNano())),
	}
}

func valuesOf(pairs []*common.KeyValue) map[string]any {
	values := make(map[string]any, len(pairs))
	for _, pair := range pairs {
		values[pair.GetKey()] = valueOf(pair.GetValue())
	}
	return values
}

func valueOf(value *common.AnyValue) any {
	switch v := value.GetValue().(type) {
	case *common.AnyValue_StringValue:
		return v.StringValue
	case *common.AnyValue_BoolValue:
		return v.BoolValue
	case *common.AnyValue_IntValue:
		return v.IntValue
	case *common.AnyValue_DoubleValue:
		return v.DoubleValue
	case *common.AnyValue_ArrayValue:
		list := make([]any, 0, len(v.ArrayValue.GetValues()))
		for _, element := range v.ArrayValue.GetValues() {
			list = append(list, valueOf(element))
		}
		return list
	default:
		return nil
	}
}

// Record is one received record of a log. Ids are in hex, "" outside of a span.
type Record struct {
	Service    string
	Scope      string
	Severity   string
	Body       string
	TraceID    string
	SpanID     string
	Attributes map[string]any
}

func listRecords(records []*Record) string {
	var out strings.Builder
	for _, r := range records {
		fmt.Fprintf(&out, "%s %s %q %v (trace %q, span %q)\n", r.Service, r.Severity, r.Body, r.Attributes, r.TraceID, r.SpanID)
	}
	return out.String()
}

func recordsOf(export *logs.ExportLogsServiceRequest) (records []*Record) {
	for _, from := range export.GetResourceLogs() {
		service, _ := valuesOf(from.GetResource().GetAttributes())["service.name"].(string)
		for _, scoped := range from.GetScopeLogs() {
			for _, raw := range scoped.GetLogRecords() {
				records = append(records, &Record{
					Service: service, Scope: scoped.GetScope().GetName(), Severity: raw.GetSeverityText(), Body: raw.GetBody().GetStringValue(),
					TraceID: hex.EncodeToString(raw.GetTraceId()), SpanID: hex.EncodeToString(raw.GetSpanId()), Attributes: valuesOf(raw.GetAttributes()),
				})
			}
		}
	}
	return records
}

// Point is the value of a metric for one combination of attributes, as a process exported it last.
type Point struct {
	Name string
	Unit string
	// Kind is sum, gauge or histogram.
	Kind string
	// Service and Instance are the service.name and service.instance.id of the process.
	Service  string
	Instance string
	// Scope is the name of the instrumentation scope.
	Scope      string
	Attributes map[string]any
	// Value is the number, or the sum of what a histogram has counted, and Count how often.
	Value float64
	Count uint64
	// Bounds are those of a histogram.
	Bounds []float64
}

// List shows points one a line, for people who read a failed test.
func List(points []*Point) string {
	var out strings.Builder
	for _, p := range points {
		fmt.Fprintf(&out, "%s %s %v = %v", p.Service, p.Name, p.Attributes, p.Value)
		if p.Kind == "histogram" {
			fmt.Fprintf(&out, " (%d times)", p.Count)
		}
		out.WriteByte('\n')
	}
	return out.String()
}

// key tells points apart.
func (p *Point) key() string { return fmt.Sprint(p.Name, p.Attributes, p.Service, p.Instance) }

func sorted(points map[string]*Point) []*Point {
	out := make([]*Point, 0, len(points))
	for _, key := range slices.Sorted(maps.Keys(points)) {
		out = append(out, points[key])
	}
	return out
}

func pointsOf(export *metrics.ExportMetricsServiceRequest) []*Point {
	var points []*Point
	for _, from := range export.GetResourceMetrics() {
		resource := valuesOf(from.GetResource().GetAttributes())
		service, _ := resource["service.name"].(string)
		instance, _ := resource["service.instance.id"].(string)
		for _, scoped := range from.GetScopeMetrics() {
			for _, metric := range scoped.GetMetrics() {
				for _, point := range pointsOfMetric(metric) {
					point.Name, point.Unit, point.Scope = metric.GetName(), metric.GetUnit(), scoped.GetScope().GetName()
					point.Service, point.Instance = service, instance
					points = append(points, point)
				}
			}
		}
	}
	return points
}

func pointsOfMetric(metric *metricpb.Metric) []*Point {
	var points []*Point
	number := func(kind string, data []*metricpb.NumberDataPoint) {
		for _, p := range data {
			points = append(points, &Point{Kind: kind, Attributes: valuesOf(p.GetAttributes()), Value: p.GetAsDouble() + float64(p.GetAsInt())})
		}
	}
	number("sum", metric.GetSum().GetDataPoints())
	number("gauge", metric.GetGauge().GetDataPoints())
	for _, p := range metric.GetHistogram().GetDataPoints() {
		points = append(points, &Point{
			Kind: "histogram", Attributes: valuesOf(p.GetAttributes()), Value: p.GetSum(), Count: p.GetCount(), Bounds: p.GetExplicitBounds(),
		})
	}
	return points
}
