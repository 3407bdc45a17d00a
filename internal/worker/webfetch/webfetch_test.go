package webfetch_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/internal/worker/webfetch"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// serve answers every request with a body of a content type.
func serve(t *testing.T, contentType, body string) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", contentType)
		_, _ = w.Write([]byte(body))
	}))
	t.Cleanup(s.Close)
	return s.URL
}

func get(t *testing.T, p protocol.HTTPFetch) protocol.HTTPFetchResult {
	t.Helper()
	r, err := webfetch.Get(t.Context(), &http.Transport{}, p, t.TempDir())
	require.NoError(t, err)
	return r
}

func TestGet_HTMLBecomesMarkdown(t *testing.T) {
	t.Parallel()
	url := serve(t, "text/html; charset=utf-8", `<!doctype html><html><head><title> A
		page </title><style>p{color:red}</style></head><body><nav><a href="/away">Away</a></nav>
		<main><h1>Heading</h1><p>Some <b>bold</b> text, <a href="sub?q=1">a link</a>.<script>alert(1)</script></p>
		<img src="data:image/png;base64,AAAA" alt="inline"><table><tr><th>a</th></tr><tr><td>1</td></tr></table></main></body></html>`)
	r := get(t, protocol.HTTPFetch{URL: url + "/dir/page"})
	require.Equal(t, "A page", r.Title)
	text := string(r.Content)
	require.Contains(t, text, "# Heading")
	require.Contains(t, text, "Some **bold** text, [a link]("+url+"/dir/sub?q=1).")
	require.Contains(t, text, "| a |")
	for _, absent := range []string{"Away", "alert", "color", "base64"} {
		require.NotContains(t, text, absent)
	}
	require.Contains(t, string(get(t, protocol.HTTPFetch{URL: url, Raw: true}).Content), "<nav>")
}

func TestGet_Bodies(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		contentType, body string
		content, image    string
	}{
		"json":         {"application/json", `{"a": 9007199254740993}`, `{"a": 9007199254740993}`, ""},
		"latin-1":      {"text/plain; charset=iso-8859-1", "caf\xe9", "café", ""},
		"utf-16":       {"text/plain; charset=utf-16le", "h\x00i\x00", "hi", ""},
		"late charset": {"text/html", "<head><script>" + strings.Repeat(" ", 2000) + "</script><meta charset='windows-1251'></head>\xcf\xf0\xe8", "\u041f\u0440\u0438", ""},
		"late http-equiv": {
			"text/html",
			strings.Repeat(" ", 2000) + `<meta http-equiv="Content-Type" content="text/html; charset=shift_jis">` + "\x93\xfa\x96\x7b",
			"\u65e5\u672c", "",
		},
		"no text": {"text/html", "<body><script>app()</script></body>", "", ""},
		"a bar in a cell": {
			"text/html", `<table><tr><th>a|b<th>c<tr><td><code>x|y</code><td><a href="http://a.test/?q=|">d|</a></table>`,
			"| a\\|b   | c                           |\n|--------|-----------------------------|\n| `x\\|y` | [d\\|](http://a.test/?q=%7C) |", "",
		},
		"an svg, a select": {"text/html", `<p>a<svg><title>b</title><path/></svg>c<select><option>d</select><b class=x>e</b></p>`, "acd**e**", ""},
		"no type":          {"", "plain", "plain", ""},
		"not UTF-8":        {"text/plain; charset=utf-8", "a\xffb", "a\ufffdb", ""},
		"image":            {"image/png", "\x89PNG\r\n\x1a\n....", "\x89PNG\r\n\x1a\n....", "image/png"},
		"image as text":    {"text/plain", "\x89PNG\r\n\x1a\n....", "\x89PNG\r\n\x1a\n....", "image/png"},
		"document":         {"application/pdf", "%PDF-1.7\n....", "%PDF-1.7\n....", "application/pdf"},
		"binary":           {"application/zip", "PK\x03\x04\x00\x00", "", ""},
		"too deep":         {"text/html", strings.Repeat("<div>", 600) + "x", strings.Repeat("<div>", 600) + "x", ""},
		"empty":            {"text/html", "", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := get(t, protocol.HTTPFetch{URL: serve(t, c.contentType, c.body)})
			require.Equal(t, c.content, string(r.Content))
			require.Equal(t, c.image, r.Image)
			require.Equal(t, 200, r.Status)
		})
	}
}

func TestGet_Bounds(t *testing.T) {
	t.Parallel()
	r := get(t, protocol.HTTPFetch{URL: serve(t, "text/plain", strings.Repeat("x", 1000)), MaxBytes: 10})
	require.True(t, r.Truncated)
	require.Len(t, r.Content, 10)
	r = get(t, protocol.HTTPFetch{URL: serve(t, "text/plain", strings.Repeat("x", 2000)+"日本"), MaxBytes: 2004})
	require.Equal(t, strings.Repeat("x", 2000)+"日", string(r.Content))

	var packed bytes.Buffer
	zip := gzip.NewWriter(&packed)
	_, err := zip.Write(make([]byte, 64<<20))
	require.NoError(t, err)
	require.NoError(t, zip.Close())
	bomb := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Encoding", "gzip")
		w.Header().Set("Content-Type", "text/plain")
		_, _ = w.Write(packed.Bytes())
	}))
	t.Cleanup(bomb.Close)
	r = get(t, protocol.HTTPFetch{URL: bomb.URL})
	require.True(t, r.Truncated)
	require.EqualValues(t, 5<<20, r.Bytes)

	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	silent := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
	t.Cleanup(silent.Close)
	_, err = webfetch.Get(ctx, &http.Transport{}, protocol.HTTPFetch{URL: silent.URL}, t.TempDir())
	require.ErrorIs(t, err, context.DeadlineExceeded)
}

func TestGet_Redirects(t *testing.T) {
	t.Parallel()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/loop":
			http.Redirect(w, r, "/loop", http.StatusFound)
		case "/once":
			http.Redirect(w, r, "/end", http.StatusFound)
		case "/file":
			w.Header().Set("Location", "file:///etc/passwd")
			w.WriteHeader(http.StatusFound)
		case "/away":
			http.Redirect(w, r, "http://away.test/", http.StatusFound)
		default:
			w.WriteHeader(http.StatusNotFound)
			_, _ = fmt.Fprint(w, r.Method, " ", r.Header.Get("Accept-Language"))
		}
	}))
	t.Cleanup(s.Close)

	r := get(t, protocol.HTTPFetch{URL: s.URL + "/once", Headers: map[string]string{"accept-language": "de"}})
	require.Equal(t, s.URL+"/end", r.URL)
	require.Equal(t, []string{s.URL + "/once"}, r.Redirects)
	require.Equal(t, 404, r.Status)
	require.Equal(t, "GET de", string(r.Content))
	require.Empty(t, get(t, protocol.HTTPFetch{URL: s.URL + "/end", Method: "HEAD"}).Content)

	transport := &http.Transport{DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
		if strings.HasPrefix(address, "away.test") {
			return nil, protocol.Errorf(codes.NetworkOff, "away.test must not be reached")
		}
		return (&net.Dialer{}).DialContext(ctx, network, address)
	}}
	for path, code := range map[string]protocol.Code{
		"/loop": protocol.CodeToolFailed, "/file": protocol.CodeToolFailed, "/away": codes.NetworkOff,
	} {
		_, err := webfetch.Get(t.Context(), transport, protocol.HTTPFetch{URL: s.URL + path}, t.TempDir())
		var failed *protocol.Error
		require.ErrorAs(t, err, &failed, path)
		require.Equal(t, code, failed.Code, path)
	}
}

func TestGet_InvalidPayloads(t *testing.T) {
	t.Parallel()
	for text, p := range map[string]protocol.HTTPFetch{
		`url ""`:                                {},
		`url "ftp://x"`:                         {URL: "ftp://x"},
		`url "http://"`:                         {URL: "http://"},
		"must not contain a user name":          {URL: "http://user:secret@host.test"},
		`method "POST": must be GET or HEAD`:    {URL: "http://host.test", Method: "POST"},
		"max_bytes -1":                          {URL: "http://host.test", MaxBytes: -1},
		`"Authorization" cannot be sent`:        {URL: "http://host.test", Headers: map[string]string{"Authorization": "x"}},
		`"Accept" contains a control character`: {URL: "http://host.test", Headers: map[string]string{"Accept": "a\r\nHost: b"}},
	} {
		_, err := webfetch.Get(t.Context(), &http.Transport{}, p, t.TempDir())
		var failed *protocol.Error
		require.ErrorAs(t, err, &failed, text)
		require.Equal(t, protocol.CodeInvalidArguments, failed.Code)
		require.Contains(t, failed.Message, text)
	}
}

// TestGet_MemoryOfManyPages: few bytes that unpack to many nodes, several at once.
func TestGet_MemoryOfManyPages(t *testing.T) { //nolint:paralleltest // memory is measured
	var fonts strings.Builder
	for i := range 400 {
		fmt.Fprintf(&fonts, "<font a=%d>", i)
	}
	var bold strings.Builder
	for i := range 400 {
		fmt.Fprintf(&bold, "<b a=%d>", i)
	}
	var pages []string
	for _, head := range []string{fonts.String(), bold.String(), "<select><style></select>" + bold.String(), "<svg><title>" + bold.String(), "<b>"} {
		var packed bytes.Buffer
		zip := gzip.NewWriter(&packed)
		_, err := zip.Write([]byte(head + strings.Repeat("<p>x", 5<<18)))
		require.NoError(t, err)
		require.NoError(t, zip.Close())
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			w.Header().Set("Content-Type", "text/html")
			_, _ = w.Write(packed.Bytes())
		}))
		t.Cleanup(s.Close)
		pages = append(pages, s.URL, s.URL)
	}
	defer debug.SetGCPercent(debug.SetGCPercent(100))
	runtime.GC()
	var before, now runtime.MemStats
	runtime.ReadMemStats(&before)
	var group errgroup.Group
	for _, url := range pages {
		group.Go(func() error {
			_, err := webfetch.Get(t.Context(), &http.Transport{}, protocol.HTTPFetch{URL: url}, t.TempDir())
			return err
		})
	}
	done := make(chan error, 1)
	go func() { done <- group.Wait() }()
	most := uint64(0)
	for {
		select {
		case err := <-done:
			require.NoError(t, err)
			t.Logf("%d pages need %d MB", len(pages), most>>20)
			require.Less(t, most, uint64(600<<20))
			return
		case <-time.After(5 * time.Millisecond):
			runtime.ReadMemStats(&now)
			most = max(most, now.HeapInuse-min(before.HeapInuse, now.HeapInuse))
		}
	}
}

// TestGet_SlowServersHoldNothing that other requests need: as many as are slow, a page of another
// server comes.
func TestGet_SlowServersHoldNothing(t *testing.T) {
	t.Parallel()
	const slow = 40
	sent := make(chan struct{}, slow)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = w.Write(bytes.Repeat([]byte("x"), 64<<10))
		_ = http.NewResponseController(w).Flush()
		sent <- struct{}{}
		<-r.Context().Done()
	}))
	t.Cleanup(s.Close)
	ctx, stop := context.WithCancel(t.Context())
	var group errgroup.Group
	for range slow {
		group.Go(func() error {
			_, err := webfetch.Get(ctx, &http.Transport{}, protocol.HTTPFetch{URL: s.URL}, t.TempDir())
			return err
		})
	}
	for range slow {
		<-sent
	}
	url := serve(t, "text/plain", strings.Repeat("y", 5<<20))
	waiting, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	r, err := webfetch.Get(waiting, &http.Transport{}, protocol.HTTPFetch{URL: url}, t.TempDir())
	require.NoError(t, err)
	require.EqualValues(t, 5<<20, r.Bytes)
	require.False(t, r.Truncated)
	require.Equal(t, strings.Repeat("y", 5<<20), string(r.Content))
	stop()
	require.ErrorIs(t, group.Wait(), context.Canceled)
	_, err = webfetch.Get(t.Context(), &http.Transport{}, protocol.HTTPFetch{URL: url}, "/nowhere")
	require.ErrorContains(t, err, "the worker cannot store the response")
}

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
