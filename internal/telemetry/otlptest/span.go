package otlptest

import (
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"time"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	common "go.opentelemetry.io/proto/otlp/common/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
)

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
