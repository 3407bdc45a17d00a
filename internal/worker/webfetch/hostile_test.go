package webfetch_test

import (
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Pages that are made to be expensive cost seconds and megabytes, not more.
func TestGet_HostilePages(t *testing.T) { //nolint:paralleltest // memory is measured
	fill := func(head, line string, size int) string {
		return head + strings.Repeat(line, (size-len(head))/len(line))
	}
	const size = 256 << 10                     // of 1 MiB, with the race detector
	for name, page := range map[string]string{ //nolint:paralleltest // likewise
		"quotations":        fill(strings.Repeat("<blockquote>", 12), "a<br>", size),
		"deeper quotations": fill(strings.Repeat("<blockquote>", 300), "a<br>", size),
		"lists":             fill(strings.Repeat("<ul><li>", 12), "a<br>", size),
		"deeper lists":      fill(strings.Repeat("<ul><li>", 200), "a<br>", size),
		"a long base":       fill("<base href='http://a.test/"+strings.Repeat("x", 10_000)+"/'>", "<a href=b>c</a> ", size),
		"a base":            fill("<base href='http://a.test/"+strings.Repeat("x", 400)+"/'>", "<a href=b>c</a> ", size),
		"bold":              fill(strings.Repeat("<div>", 90), "<b><i>a</i></b><p>", size),
		"nested bold":       fill(strings.Repeat("<b><div>", 45), "a<br>", size),
		"cells":             fill("<table><tr>", "<td>a", size),
		"rows":              fill("<table>", "<tr><td>a", size),
		"wide cells":        fill("<table>", "<tr><td colspan=60000>a", size),
		"tall cells":        fill("<table>", "<tr><td rowspan=60000>a", size),
		"tables":            fill(strings.Repeat("<table><tr><td>", 2), "a<br>", size),
		"more tables":       fill(strings.Repeat("<table><tr><td>", 20), "a<br>", size),
		"ragged rows":       fill("<table><tr>"+strings.Repeat("<td>", 1000), "<tr><td>a", size),
		"one wide cell":     "<table><tr><td colspan=1000000000 rowspan=1000000000>x</td></tr></table>",
		"a long title":      fill("<title>", "a", size),
		"marks":             fill("", "*_[`#>\\", size),
		"code":              fill("<pre><code>", "`````\n", size),
		"headings":          fill("", "<h1>a", size),
		"links in links":    fill("", "<a href=x><div>", size),
		"words":             fill("", "a", size),
		"spaces":            fill("<p>", " \n", size),
		"rules":             fill("", "<hr>", size),
		"images":            fill("", "<img src=a alt=b>", size),
	} {
		t.Run(name, func(t *testing.T) {
			url := serve(t, "text/html", page)
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			begun := time.Now()
			get(t, protocol.HTTPFetch{URL: url})
			require.Less(t, time.Since(begun), time.Minute)
			runtime.ReadMemStats(&after)
			require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(1<<30))
		})
	}
}
