package webfetch

import (
	"bytes"
	"net/url"
	"strings"

	"github.com/JohannesKaufmann/html-to-markdown/v2/converter"
	"github.com/JohannesKaufmann/html-to-markdown/v2/plugin/base"
	"github.com/JohannesKaufmann/html-to-markdown/v2/plugin/commonmark"
	"github.com/JohannesKaufmann/html-to-markdown/v2/plugin/table"
	"golang.org/x/net/html"
	"golang.org/x/net/html/atom"

	"github.com/toolfleet/toolfleet/internal/modeltext/prose"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

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

// markdown replaces an HTML page by its Markdown: that of its only <main> element, if it has one.
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
	if !isShallow(doc, 0, 0, 0) || count(doc) > maxNodes {
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

// count is how many nodes a page has.
func count(doc *html.Node) int {
	n := 0
	for range doc.Descendants() {
		n++
	}
	return n
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

// isShallow reports whether a page is within the limits of nesting.
func isShallow(node *html.Node, depth, nesting, tables int) bool {
	if node.DataAtom == atom.Li || node.DataAtom == atom.Blockquote {
		nesting++
	}
	if node.DataAtom == atom.Table {
		tables++
	}
	if depth > maxDepth || nesting > maxNesting || tables > maxTables {
		return false
	}
	for child := range node.ChildNodes() {
		if !isShallow(child, depth+1, nesting, tables) {
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
