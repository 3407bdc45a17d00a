package otlptest

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	metrics "go.opentelemetry.io/proto/otlp/collector/metrics/v1"
	metricpb "go.opentelemetry.io/proto/otlp/metrics/v1"
)

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
