// Package webfetch requests one page of the web for a tool call, and returns it as a model can read
// it: HTML as Markdown, other text in UTF-8, images and PDF documents as they are.
//
// It runs in the worker, outside of any sandbox. The transport decides which hosts may be reached;
// since every connection goes through it, each redirect is judged again.
package webfetch

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/JohannesKaufmann/html-to-markdown/v2/converter"
	"github.com/JohannesKaufmann/html-to-markdown/v2/plugin/base"
	"github.com/JohannesKaufmann/html-to-markdown/v2/plugin/commonmark"
	"github.com/JohannesKaufmann/html-to-markdown/v2/plugin/table"
	"golang.org/x/net/html"
	"golang.org/x/net/html/atom"
	"golang.org/x/net/html/charset"
	"golang.org/x/sync/semaphore"

	"github.com/toolfleet/toolfleet/internal/modeltext/prose"
	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/worker/spool"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

const (
	maxRedirects = 10
	userAgent    = "toolfleet (a tool of an AI agent)"
	// defaultBytes is how much of a response's body is read when the payload sets no limit.
	defaultBytes = 5 << 20
	// maxHead is where a page may name its character set, in bytes.
	maxHead = 64 << 10
	// maxBodies is how much all requests at once may hold in memory of bodies that have arrived, in
	// bytes.
	maxBodies = 64 << 20
	// maxWord is the longest title, header value or media type that is returned, in bytes.
	maxWord = 500
)

// Get sends the request and returns its response, whatever its status is. It fails with a
// [protocol.Error] if the payload is invalid or the host cannot be reached, and with the error of
// ctx when that has ended. Until a body has arrived it is in dir, as far as it is large: a slow
// server holds no memory that other requests need. It is safe for concurrent use.
func Get(ctx context.Context, transport http.RoundTripper, p protocol.HTTPFetch, dir string) (result protocol.HTTPFetchResult, _ error) {
	if err := wire.CheckFetch(p); err != nil {
		return result, err
	}
	response, err := send(ctx, transport, p, &result)
	if err != nil {
		return result, failure(ctx, err, result.Redirects...)
	}
	defer response.Body.Close()
	result.URL, result.Status = response.Request.URL.Redacted(), response.StatusCode
	result.Headers = headersOf(response.Header)
	result.MediaType, _, _ = mime.ParseMediaType(response.Header.Get("Content-Type"))
	result.MediaType = prose.Cut(result.MediaType, maxWord)
	if p.Method == http.MethodHead {
		return result, nil
	}
	limit := cmp.Or(p.MaxBytes, defaultBytes)
	arrived := spool.New(dir)
	defer func() { _ = arrived.Close() }() // it is not read any more
	size, err := io.Copy(spooled{arrived}, io.LimitReader(response.Body, limit+1))
	if err := arrived.Err(); err != nil {
		return result, protocol.Errorf(protocol.CodeToolFailed, "the worker cannot store the response: %v", err)
	}
	if err != nil {
		return result, failure(ctx, err)
	}
	result.Truncated, result.Bytes = size > limit, min(size, limit)
	if err := bodies.Acquire(ctx, result.Bytes); err != nil {
		return result, context.Cause(ctx)
	}
	release := func() { bodies.Release(result.Bytes) }
	body := make([]byte, result.Bytes)
	if _, err := io.ReadFull(arrived.Reader(sandbox.Stdout), body); err != nil {
		release()
		return result, fmt.Errorf("read the stored response: %w", err)
	}
	return inTime(ctx, result, func(result *protocol.HTTPFetchResult) error {
		defer release()
		return read(ctx, result, body, response, p.Raw)
	})
}

// spooled writes to a spool.
type spooled struct{ *spool.Spool }

func (s spooled) Write(data []byte) (int, error) {
	s.Spool.Write(sandbox.Stdout, data)
	return len(data), s.Err()
}

// inTime fills in a result by a function that cannot be interrupted, and returns when ctx ends: the
// limits of a page see to it that the function ends soon, too.
func inTime(ctx context.Context, result protocol.HTTPFetchResult, fill func(*protocol.HTTPFetchResult) error) (protocol.HTTPFetchResult, error) {
	type filled struct {
		result protocol.HTTPFetchResult
		err    error
	}
	done := make(chan filled, 1)
	go func() {
		err := fill(&result)
		done <- filled{result, err}
	}()
	select {
	case f := <-done:
		return f.result, f.err
	case <-ctx.Done():
		return protocol.HTTPFetchResult{}, context.Cause(ctx)
	}
}

// send returns the first response that is no redirect, and notes the addresses before it.
func send(ctx context.Context, transport http.RoundTripper, p protocol.HTTPFetch, result *protocol.HTTPFetchResult) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, cmp.Or(p.Method, http.MethodGet), p.URL, http.NoBody)
	if err != nil {
		return nil, err
	}
	request.Header.Set("User-Agent", userAgent)
	request.Header.Set("Accept", "text/html, text/*;q=0.9, application/json;q=0.9, image/*;q=0.5, */*;q=0.1")
	for name, value := range p.Headers {
		request.Header.Set(name, value)
	}
	client := &http.Client{Transport: transport, CheckRedirect: func(next *http.Request, before []*http.Request) error {
		result.Redirects = append(result.Redirects, before[len(before)-1].URL.Redacted())
		if len(before) >= maxRedirects {
			return fmt.Errorf("more than %d redirects", maxRedirects)
		}
		if err := wire.CheckFetch(protocol.HTTPFetch{URL: next.URL.Redacted()}); err != nil {
			return fmt.Errorf("redirect: %s", err.Message)
		}
		return nil
	}}
	return client.Do(request)
}

// failure is the error of a request, in the words of a result. An address may contain a password,
// so the error of the client is left out.
func failure(ctx context.Context, err error, redirects ...string) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if request, is := errors.AsType[*url.Error](err); is {
		err = request.Err
	}
	from := ""
	if len(redirects) > 0 {
		from = "redirected from " + prose.Cut(redirects[len(redirects)-1], maxWord) + ": "
	}
	if refused, is := errors.AsType[*protocol.Error](err); is {
		return protocol.Errorf(refused.Code, "%s%s", from, refused.Message)
	}
	return protocol.Errorf(protocol.CodeToolFailed, "%s%v", from, err)
}

// headersOf returns the headers of a response that [protocol.HTTPFetchResult] has.
func headersOf(all http.Header) map[string]string {
	some := map[string]string{}
	for _, name := range []string{"Content-Encoding", "Content-Length", "ETag", "Last-Modified", "Location", "Retry-After"} {
		if value := all.Get(name); value != "" {
			some[name] = prose.Cut(value, maxWord)
		}
	}
	return some
}

// read fills in the content of a body.
func read(ctx context.Context, result *protocol.HTTPFetchResult, body []byte, response *http.Response, raw bool) error {
	sniffed, _, _ := strings.Cut(http.DetectContentType(body), ";")
	result.MediaType = cmp.Or(result.MediaType, sniffed)
	switch {
	case len(body) == 0:
		return nil
	case slices.Contains([]string{"image/png", "image/jpeg", "image/gif", "image/webp", "application/pdf"}, sniffed):
		if len(body) <= isolation.MaxImageSize && !result.Truncated {
			result.Image, result.Content = sniffed, body
		}
		return nil
	case response.Header.Get("Content-Encoding") != "" || !isText(result.MediaType, sniffed):
		return nil
	}
	select {
	case one <- struct{}{}:
		defer func() { <-one }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if result.Truncated {
		body = body[:prose.Border(body)]
	}
	text, err := decode(body, response.Header.Get("Content-Type"))
	if err != nil {
		return protocol.Errorf(protocol.CodeToolFailed, "decode %s: %v", result.MediaType, err)
	}
	result.Content = text
	if isHTML := result.MediaType == "text/html" || result.MediaType == "application/xhtml+xml"; isHTML && !raw {
		return markdown(result, text, response.Request.URL)
	}
	return nil
}

// isText reports whether a body can be shown as text.
func isText(declared, sniffed string) bool {
	for _, ending := range []string{"json", "xml", "javascript", "yaml", "toml", "x-www-form-urlencoded", "x-sh", "sql", "graphql"} {
		if strings.HasPrefix(declared, "application/") && strings.HasSuffix(declared, ending) {
			return true
		}
	}
	return strings.HasPrefix(declared, "text/") || declared == "image/svg+xml" || strings.HasPrefix(sniffed, "text/")
}

// Bounds of all requests together: what they hold of bodies, and that one page at a time is
// converted.
//
//nolint:gochecknoglobals // they bound the process
var (
	bodies = semaphore.NewWeighted(maxBodies)
	one    = make(chan struct{}, 1)
)

// metaCharset finds the character set that a page names.
var metaCharset = regexp.MustCompile(`(?i)<meta\s[^>]{0,200}charset\s*=\s*["']?([a-z0-9_:.-]+)`)

// decode returns a text in UTF-8. The encoding comes from the header, a byte order mark, or a
// meta element; text that names none is UTF-8 if it can be.
func decode(body []byte, contentType string) ([]byte, error) {
	if utf8.Valid(body) && !strings.Contains(strings.ToLower(contentType), "charset=") {
		return bytes.TrimPrefix(body, []byte("\ufeff")), nil
	}
	if _, _, certain := charset.DetermineEncoding(body, contentType); !certain { // the library looks at 1 KiB
		if named := metaCharset.FindSubmatch(body[:min(len(body), maxHead)]); named != nil && !bytes.HasPrefix(bytes.ToLower(named[1]), []byte("utf-16")) {
			contentType = "text/html; charset=" + string(named[1])
		}
	}
	reader, err := charset.NewReader(bytes.NewReader(body), contentType)
	if err != nil {
		return nil, err
	}
	text, err := io.ReadAll(reader)
	return bytes.ToValidUTF8(bytes.TrimPrefix(text, []byte("\ufeff")), []byte("\ufffd")), err
}

// Limits of a page that becomes Markdown: converting cannot be interrupted, and takes time and
// memory that grow faster than the nesting of lists and quotations. A page that is nested
// deeper, or has more nodes, is returned as it is.
const (
	maxHTML    = 1 << 20   // bytes
	maxParsed  = 1_000_000 // nodes that the parser may make
	maxNodes   = 250_000   // nodes that are converted
	maxNesting = 12        // of list items and quotations
	maxDepth   = 100       // of elements
	maxTables  = 2         // in one another
	maxCells   = 20_000    // of a table, with those that fill up its rows
	maxAddress = 500       // bytes of an address that relative links are completed with
)

// markdown replaces an HTML page by its Markdown: of its only <main> element, if it has one.
func markdown(result *protocol.HTTPFetchResult, page []byte, address *url.URL) error {
	if len(page) > maxHTML {
		page, result.Truncated = page[:maxHTML], true
	}
	page, cut := withoutAmplifiers(page)
	result.Truncated = result.Truncated || cut
	doc, err := html.Parse(bytes.NewReader(page))
	if err != nil { // nested deeper than the parser allows
		return nil //nolint:nilerr // the page is then returned as it is
	}
	result.Title = prose.Cut(strings.Join(strings.Fields(textOf(first(doc, atom.Title))), " "), maxWord)
	if nodes := 0; !isSmall(doc, &nodes, 0, 0, 0) {
		return nil
	}
	given := attribute(first(doc, atom.Base), "href")
	if href, err := url.Parse(given); err == nil && len(given) <= maxAddress {
		address = address.ResolveReference(href)
	}
	tidy(doc)
	part := doc
	if mains := all(doc, atom.Main); len(mains) == 1 && strings.TrimSpace(textOf(mains[0])) != "" {
		part = mains[0]
	}
	convert := converter.NewConverter(converter.WithEscapeMode(converter.EscapeModeDisabled),
		converter.WithPlugins(base.NewBasePlugin(), commonmark.NewCommonmarkPlugin()))
	if !hasLargeTable(doc) { // without the plugin the cells of tables are text
		escapePipes(doc)
		convert.Register.Plugin(table.NewTablePlugin())
	}
	absolute := address.ResolveReference(&url.URL{Path: "./"}).String()
	if len(absolute) > maxAddress {
		absolute = (&url.URL{Scheme: address.Scheme, Host: address.Host, Path: "/"}).String()
	}
	text, err := convert.ConvertNode(part, converter.WithDomain(absolute))
	if err != nil {
		return nil //nolint:nilerr // likewise
	}
	result.Content = bytes.TrimSpace(text)
	return nil
}

// withoutAmplifiers leaves out of a page what lets the parser make many nodes of few bytes: it
// opens formatting elements again in each element, three of a name with the same attributes. So
// these lose their attributes, and those that Markdown does not have are left out, as are svg, math
// and select elements, in which tags are read in another way. The rest is cut where the parser
// might make more than maxParsed nodes.
func withoutAmplifiers(page []byte) (rest []byte, cut bool) {
	var out bytes.Buffer
	tokens := html.NewTokenizer(bytes.NewReader(page))
	nodes, reopened, drawing := 0, 1, false // reopened: at most as many for each tag
	seen, drawingsEnd := map[atom.Atom]bool{}, bytes.Contains(page, []byte("</svg"))
	for {
		kind := tokens.Next()
		if kind == html.ErrorToken {
			return out.Bytes(), false
		}
		raw := bytes.Clone(tokens.Raw())
		if kind == html.TextToken && !drawing || kind == html.DoctypeToken {
			out.Write(raw)
		}
		if kind != html.StartTagToken && kind != html.EndTagToken && kind != html.SelfClosingTagToken {
			continue
		}
		name, _ := tokens.TagName()
		of := atom.Lookup(name)
		if nodes += 1 + reopened; nodes > maxParsed {
			return out.Bytes(), true
		}
		switch of {
		case atom.Svg:
			drawing = kind == html.StartTagToken && drawingsEnd
			continue
		case atom.Math, atom.Select, atom.Font, atom.Big, atom.Small, atom.Tt, atom.U, atom.Nobr:
			continue
		case atom.B, atom.Code, atom.Em, atom.I, atom.S, atom.Strike, atom.Strong:
			if kind != html.EndTagToken {
				raw = []byte("<" + of.String() + ">")
			}
			if !seen[of] {
				seen[of], reopened = true, reopened+3
			}
		default: // as it is
		}
		if !drawing {
			out.Write(raw)
		}
	}
}

// escapePipes keeps a | in a cell from ending it.
func escapePipes(doc *html.Node) {
	var visit func(node *html.Node, inCell bool)
	visit = func(node *html.Node, inCell bool) {
		inCell = inCell || node.DataAtom == atom.Td || node.DataAtom == atom.Th
		if inCell && node.Type == html.TextNode {
			node.Data = strings.ReplaceAll(node.Data, "|", `\|`)
		}
		for i := range node.Attr {
			switch a := &node.Attr[i]; {
			case !inCell:
			case a.Key == "href", a.Key == "src":
				a.Val = strings.ReplaceAll(a.Val, "|", "%7C")
			default:
				a.Val = strings.ReplaceAll(a.Val, "|", `\|`)
			}
		}
		for child := range node.ChildNodes() {
			visit(child, inCell)
		}
	}
	visit(doc, false)
}

// isSmall reports whether a page is within the limits of nesting and nodes, which it counts.
func isSmall(node *html.Node, nodes *int, depth, nesting, tables int) bool {
	if node.DataAtom == atom.Li || node.DataAtom == atom.Blockquote {
		nesting++
	}
	if node.DataAtom == atom.Table {
		tables++
	}
	if *nodes++; *nodes > maxNodes || depth > maxDepth || nesting > maxNesting || tables > maxTables {
		return false
	}
	for child := range node.ChildNodes() {
		if !isSmall(child, nodes, depth+1, nesting, tables) {
			return false
		}
	}
	return true
}

// hasLargeTable reports whether a table has too many cells: rows become as long as the longest.
func hasLargeTable(doc *html.Node) bool {
	for _, node := range all(doc, atom.Table) {
		rows, longest := 0, 0
		for _, row := range all(node, atom.Tr) {
			cells := 0
			for cell := range row.ChildNodes() {
				if cell.DataAtom == atom.Td || cell.DataAtom == atom.Th {
					cells++
				}
			}
			rows, longest = rows+1, max(longest, cells)
		}
		if rows*longest > maxCells {
			return true
		}
	}
	return false
}

// tidy removes what no reader sees, images that are part of the page's source, and the spans of
// cells: a large one would fill the memory.
func tidy(doc *html.Node) {
	for _, kind := range []atom.Atom{atom.Script, atom.Style, atom.Noscript, atom.Template, atom.Svg, atom.Iframe, atom.Title} {
		for _, node := range all(doc, kind) {
			node.Parent.RemoveChild(node)
		}
	}
	for _, kind := range []atom.Atom{atom.Td, atom.Th} {
		for _, cell := range all(doc, kind) {
			cell.Attr = nil
		}
	}
	for _, node := range all(doc, atom.Img) {
		if strings.HasPrefix(attribute(node, "src"), "data:") {
			node.Parent.RemoveChild(node)
		}
	}
}

// all returns the elements of a kind.
func all(doc *html.Node, kind atom.Atom) []*html.Node {
	var found []*html.Node
	for node := range doc.Descendants() {
		if node.Type == html.ElementNode && node.DataAtom == kind {
			found = append(found, node)
		}
	}
	return found
}

// first returns the first element of a kind, or an empty node.
func first(doc *html.Node, kind atom.Atom) *html.Node {
	if found := all(doc, kind); len(found) > 0 {
		return found[0]
	}
	return &html.Node{}
}

// textOf returns the text of an element.
func textOf(element *html.Node) string {
	var text strings.Builder
	for node := range element.Descendants() {
		if node.Type == html.TextNode {
			text.WriteString(node.Data)
		}
	}
	return text.String()
}

// attribute returns the value of an attribute, or "".
func attribute(element *html.Node, name string) string {
	for _, a := range element.Attr {
		if a.Key == name {
			return a.Val
		}
	}
	return ""
}
