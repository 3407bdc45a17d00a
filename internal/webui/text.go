package webui

import (
	"bytes"
	"fmt"
	"html"
	"html/template"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	"github.com/yuin/goldmark/renderer"
	"github.com/yuin/goldmark/util"
)

// maxLine is how much of a line a page shows, and maxText how much of a text, in bytes.
const (
	maxLine = 4 << 10
	maxText = 256 << 10
)

// harmless is a page of which a browser shows each character: controls, and marks that change the
// direction of what stands around them, are shown by their number.
func harmless(page []byte) []byte {
	if !bytes.ContainsFunc(page, unseen) && utf8.Valid(page) {
		return page
	}
	var out bytes.Buffer
	for _, r := range string(page) {
		if unseen(r) {
			fmt.Fprintf(&out, "‹%04X›", r)
		} else {
			out.WriteRune(r)
		}
	}
	return out.Bytes()
}

// unseen reports whether a character shows nothing, or changes how others are shown.
func unseen(r rune) bool {
	return unicode.IsControl(r) && r != '\n' && r != '\t' || unicode.Is(unicode.Bidi_Control, r) || r >= 0xE0000 && r <= 0xE007F || r == 0x2028 || r == 0x2029
}

// cut bounds a text and its lines.
func cut(text string) string {
	if len(text) > maxText {
		text = strings.ToValidUTF8(text[:maxText], "") + "\n… the page shows the first 256 KiB"
	}
	if !slices.ContainsFunc(strings.SplitAfter(text, "\n"), func(line string) bool { return len(line) > maxLine }) {
		return text
	}
	var out strings.Builder
	for line := range strings.Lines(text) {
		if rest := len(line) - maxLine; rest > 0 {
			line = strings.ToValidUTF8(line[:maxLine], "") + fmt.Sprintf(" … %d bytes more\n", rest)
		}
		out.WriteString(line)
	}
	return out.String()
}

// ansi is what a program wrote: colours of a terminal become classes, other sequences that steer a
// terminal are left out.
func ansi(text string) template.HTML {
	text = cut(strings.ReplaceAll(text, "\r\n", "\n"))
	var out strings.Builder
	look := style{}
	for text != "" {
		at := strings.IndexByte(text, '\x1b')
		if at < 0 {
			at = len(text)
		}
		look.write(&out, text[:at])
		if text = text[at:]; text != "" {
			var codes string
			if codes, text = sequence(text); codes != "" {
				look.apply(codes)
			}
		}
	}
	return template.HTML(out.String()) //nolint:gosec // each piece is escaped
}

// sequence reads a sequence that steers a terminal. codes are those of colours; "" of others. One
// that does not end on its line hides nothing: it is shown as text.
func sequence(text string) (codes, rest string) {
	if len(text) < 2 {
		return "", ""
	}
	switch text[1] {
	case '[': // ends with a letter
		end := 2 + strings.IndexFunc(text[2:], func(r rune) bool { return r < 0x20 || r >= 0x40 })
		switch {
		case end < 2 || text[end] < 0x20 || text[end] > 0x7e:
			return "", text[1:]
		case text[end] == 'm':
			return text[2:end] + ";", text[end+1:]
		}
		return "", text[end+1:]
	case ']', 'P', '_', '^', 'X': // a text, which ends with BEL or ESC \
		end := 2 + strings.IndexAny(text[2:], "\a\x1b\n")
		if end < 2 || text[end] == '\n' {
			return "", text[1:]
		}
		return "", strings.TrimPrefix(strings.TrimPrefix(text[end:], "\a"), "\x1b\\")
	default:
		return "", text[2:]
	}
}

// style is how a terminal would show a text.
type style struct {
	bold, faint, italic, under bool
	colour                     string // "" or the number of one of 16
}

// apply applies the codes of a sequence. Colours beyond the first 16 are not shown.
func (s *style) apply(codes string) {
	fields := strings.Split(strings.TrimSuffix(codes, ";"), ";")
	for i := 0; i < len(fields); i++ {
		switch n, _ := strconv.Atoi(fields[i]); {
		case n == 0:
			*s = style{}
		case n == 1:
			s.bold = true
		case n == 2:
			s.faint = true
		case n == 3:
			s.italic = true
		case n == 4:
			s.under = true
		case n == 22:
			s.bold, s.faint = false, false
		case n == 23:
			s.italic = false
		case n == 24:
			s.under = false
		case n >= 30 && n <= 37:
			s.colour = strconv.Itoa(n - 30)
		case n >= 90 && n <= 97:
			s.colour = strconv.Itoa(n - 90 + 8)
		case n == 39:
			s.colour = ""
		case (n == 38 || n == 48) && i+1 < len(fields): // its numbers are no codes
			if i += 2; fields[i-1] == "2" {
				i += 2
			}
		}
	}
}

// write writes a text in the style.
func (s *style) write(out *strings.Builder, text string) {
	if text == "" {
		return
	}
	text = html.EscapeString(text)
	var classes []string
	for class, is := range map[string]bool{"b": s.bold, "f": s.faint, "i": s.italic, "u": s.under, "c" + s.colour: s.colour != ""} {
		if is {
			classes = append(classes, class)
		}
	}
	if len(classes) == 0 {
		out.WriteString(text)
		return
	}
	slices.Sort(classes)
	fmt.Fprintf(out, `<span class="%s">%s</span>`, strings.Join(classes, " "), text)
}

// diffLine is a line of a diff, with the class of its kind.
type diffLine struct{ Class, Text string }

// diffOf splits a diff into lines.
func diffOf(diff string) (lines []diffLine) {
	for line := range strings.Lines(cut(diff)) {
		class := ""
		switch {
		case strings.HasPrefix(line, "+++"), strings.HasPrefix(line, "---"), strings.HasPrefix(line, "@@"):
			class = "soft"
		case strings.HasPrefix(line, "+"):
			class = "add"
		case strings.HasPrefix(line, "-"):
			class = "del"
		}
		lines = append(lines, diffLine{class, line})
	}
	return lines
}

// markdown renders what a model says. HTML in it is shown as text, and images as their addresses.
var markdown = goldmark.New( //nolint:gochecknoglobals // a constant
	goldmark.WithExtensions(extension.Table, extension.Strikethrough, extension.TaskList),
	goldmark.WithRendererOptions(renderer.WithNodeRenderers(util.Prioritized(asText{}, 1))),
)

// Bounds of what is rendered as Markdown: a text in bytes, and what it may take, see [costOf].
const (
	maxProse = 32 << 10
	maxCost  = 2_000_000
)

// prose is what a model says, as HTML. What is behind a bound, or takes long, is shown as it is
// written.
func prose(text string) template.HTML {
	text = cut(text)
	head, rest := text, ""
	if len(text) > maxProse {
		at := strings.LastIndexByte(text[:maxProse], '\n') + 1 // a line is shorter
		head, rest = text[:at], text[at:]
	}
	if costOf(head) > maxCost {
		head, rest = "", text
	}
	var out bytes.Buffer
	if err := markdown.Convert([]byte(head), &out); err != nil {
		out.Reset()
		rest = text
	}
	if rest != "" {
		out.WriteString(`<div class="plain">` + html.EscapeString(rest) + "</div>\n")
	}
	return template.HTML(out.String()) //nolint:gosec // goldmark escapes texts, and asText shows the rest
}

// costOf is about how many steps the renderer takes for the blocks of a text: the square of their
// marks of emphasis, and each cell of a table, whose rows have the columns of its head.
func costOf(text string) (cost int) {
	const cell = 100 // steps
	marks, columns, rows := 0, 0, 0
	for line := range strings.Lines(text + "\n\n") {
		if strings.Trim(line, " \t\r\n") == "" {
			cost += marks*marks + cell*columns*rows
			marks, columns, rows = 0, 0, 0
			continue
		}
		rows++
		columns = max(columns, strings.Count(line, "|"))
		for i := range len(line) {
			switch line[i] {
			case '*', '~', '[':
				marks++
			case '_':
				if i == 0 || !isWord(line[i-1]) || !isWord(line[i+1]) { // else it is in a name, and no mark; the line has an end
					marks++
				}
			}
		}
	}
	return cost
}

// isWord reports whether a byte is a letter or a digit of ASCII.
func isWord(b byte) bool { return b >= '0' && b <= '9' || b|0x20 >= 'a' && b|0x20 <= 'z' }

// asText renders nodes that would be HTML of the text itself, or load something.
type asText struct{}

// RegisterFuncs implements [renderer.NodeRenderer].
func (asText) RegisterFuncs(r renderer.NodeRendererFuncRegisterer) {
	r.Register(ast.KindRawHTML, func(w util.BufWriter, source []byte, node ast.Node, entering bool) (ast.WalkStatus, error) {
		if n, is := node.(*ast.RawHTML); is && entering {
			for i := range n.Segments.Len() {
				segment := n.Segments.At(i)
				_, _ = w.WriteString(html.EscapeString(string(segment.Value(source))))
			}
		}
		return ast.WalkSkipChildren, nil
	})
	r.Register(ast.KindHTMLBlock, func(w util.BufWriter, source []byte, node ast.Node, entering bool) (ast.WalkStatus, error) {
		n, is := node.(*ast.HTMLBlock)
		if !is || !entering {
			return ast.WalkContinue, nil
		}
		_, _ = w.WriteString("<pre>")
		for i := range n.Lines().Len() {
			line := n.Lines().At(i)
			_, _ = w.WriteString(html.EscapeString(string(line.Value(source))))
		}
		if n.HasClosure() {
			_, _ = w.WriteString(html.EscapeString(string(n.ClosureLine.Value(source))))
		}
		_, _ = w.WriteString("</pre>\n")
		return ast.WalkContinue, nil
	})
	r.Register(ast.KindImage, func(w util.BufWriter, _ []byte, node ast.Node, entering bool) (ast.WalkStatus, error) {
		n, is := node.(*ast.Image)
		switch {
		case is && entering:
			_, _ = w.WriteString("[image: ")
		case is:
			_, _ = w.WriteString(" " + html.EscapeString(string(n.Destination)) + "]")
		}
		return ast.WalkContinue, nil
	})
}
