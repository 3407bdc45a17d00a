package terminal

import (
	"html"
	"strconv"
	"strings"

	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	tables "github.com/yuin/goldmark/extension/ast"
	"github.com/yuin/goldmark/parser"
	"github.com/yuin/goldmark/text"
	"github.com/yuin/goldmark/util"

	"github.com/toolfleet/toolfleet/internal/modeltext/prose"
	"github.com/toolfleet/toolfleet/pkg/loop"
)

// reply is the model's text of the current step, as far as it came.
type reply struct {
	turn, step int
	said       strings.Builder
	thoughts   strings.Builder // what it thought, when that is shown live
	text       *flow           // nil when none is being written
	thought    *flow           // the same of what the model thinks before
}

// pause ends the line of the model's text, which may go on below.
func (r *reply) pause() {
	r.thought.pause()
	r.text.pause()
}

// above is the text of the current step that stands above calls which began while it streamed.
type above struct {
	turn, step int
	text       string
}

func (a *above) note(e *loop.Event, streamed *reply) {
	switch {
	case e.Type == loop.EventModelWaits: // the reply begins again
		*a = above{}
	case e.Type != loop.EventToolCall && e.Type != loop.EventToolQueued && e.Type != loop.EventToolRunning,
		streamed.said.Len() == 0, e.Turn != streamed.turn, e.Step != streamed.step:
	case a.turn == e.Turn && a.step == e.Step:
		a.text += streamed.said.String()
	default:
		*a = above{e.Turn, e.Step, streamed.said.String()}
	}
}

// reasoningDelta shows a piece of what the model thinks, dimmed.
func (v *View) reasoningDelta(e *loop.Event) {
	if v.reply.turn != e.Turn || v.reply.step != e.Step || v.reply.text != nil {
		v.endReply()
	}
	if v.live != nil {
		v.reply.turn, v.reply.step = e.Turn, e.Step
		v.reply.thoughts.WriteString(e.Text)
		return
	}
	if v.reply.thought == nil {
		v.gap = true
		v.reply.turn, v.reply.step = e.Turn, e.Step
		v.reply.thought = v.flow(v.ink.paint(dim, strings.TrimSpace(v.marks.thought))+" ", "  ")
		v.reply.thought.style = dim
	}
	v.reply.thought.add(e.Text)
}

func (v *View) textDelta(e *loop.Event) {
	if v.reply.text != nil && (v.reply.turn != e.Turn || v.reply.step != e.Step) {
		v.endReply()
	}
	if v.live == nil {
		v.beginReply(e)
		v.reply.text.add(e.Text)
	} else if v.reply.turn != e.Turn || v.reply.step != e.Step {
		v.endReply()
		v.reply.turn, v.reply.step = e.Turn, e.Step
	}
	v.reply.said.WriteString(e.Text)
}

// modelReply shows what has not been streamed of a reply.
func (v *View) modelReply(e *loop.Event) {
	if a := v.above; a.text != "" && a.turn == e.Turn && a.step == e.Step {
		below := *e
		below.Text, below.Reasoning = strings.TrimPrefix(e.Text, a.text), nil
		e = &below
	}
	if v.reply.turn != e.Turn || v.reply.step != e.Step {
		v.endReply()
		if e.Reasoning != nil { // none of it was streamed
			v.reasoningDelta(&loop.Event{Turn: e.Turn, Step: e.Step, Text: e.Reasoning.Text})
		}
	}
	if v.live != nil {
		v.reply.said.Reset()
		v.reply.said.WriteString(e.Text)
	} else {
		v.complete(e)
	}
	v.endReply()
	if e.Finish == loop.FinishLength {
		v.line(v.ink.paint(yellow, "  (cut off at the limit of output tokens)"))
	}
	v.turn.steps++
	v.session.steps++
	v.labels.reset(e, v.width)
	v.gap = true
	v.callsAsked(e)
}

// complete writes what of a reply is not there yet.
func (v *View) complete(e *loop.Event) {
	said := v.reply.said.String()
	rest, whole := unstreamed(said, e.Text)
	if whole && strings.TrimSpace(said) != "" {
		v.endReply()
		v.line(v.ink.paint(dim, "(parts of the text above were lost; this is the whole text:)"))
	}
	if rest != "" {
		v.beginReply(e)
		v.reply.text.add(rest)
	}
}

// unstreamed returns what of a text was not streamed. It is the whole text when what
// was streamed is not its beginning.
func unstreamed(said, text string) (rest string, whole bool) {
	said = prose.Valid(said)
	if rest, ok := strings.CutPrefix(text, said); ok {
		return rest, said == ""
	}
	if strings.TrimSpace(said) == strings.TrimSpace(text) {
		return "", false
	}
	return text, true
}

func (v *View) beginReply(e *loop.Event) {
	if v.reply.text != nil {
		return
	}
	v.reply.thought.end()
	v.reply.thought = nil
	v.gap = true
	v.reply.turn, v.reply.step = e.Turn, e.Step
	v.reply.text = v.flow(v.ink.paint(cyan, strings.TrimSpace(v.marks.model))+" ", "  ")
}

func (v *View) endReply() {
	v.reply.thought.end()
	v.reply.text.end()
	if v.live != nil {
		v.foldedThought(v.reply.thoughts.String())
		v.markdown(v.reply.said.String())
	}
	v.reply = reply{}
}

// foldedThought shows the model's thoughts, folded.
func (p *page) foldedThought(text string) {
	if strings.TrimSpace(text) == "" {
		return
	}
	p.gap = true
	p.say(p.ink.paint(dim, strings.TrimSpace(p.marks.thought))+" ", "  ", dim, strings.Join(excerpt(text, maxFoldedLines), "\n"))
}

// markdown shows a text of the model as its Markdown is meant. Every piece of it goes through
// [flow], so it is as safe, and in the same columns, as text that is shown as it was written.
func (v *View) markdown(said string) {
	said = prose.Valid(said)
	if strings.TrimSpace(said) == "" {
		return
	}
	v.gap = true
	m := &markdown{view: v, source: []byte(said), due: true}
	p := parser.NewParser(
		parser.WithBlockParsers(parser.DefaultBlockParsers()...),
		parser.WithInlineParsers(parser.DefaultInlineParsers()...),
		parser.WithParagraphTransformers(append(parser.DefaultParagraphTransformers(),
			util.Prioritized(extension.NewTableParagraphTransformer(), 200))...),
		parser.WithASTTransformers(util.Prioritized(extension.NewTableASTTransformer(), 0)),
	)
	m.blocks(p.Parse(text.NewReader(m.source)), v.ink.paint(cyan, strings.TrimSpace(v.marks.model))+" ", "  ")
}

// markdown is a text that is being shown.
type markdown struct {
	view   *View
	source []byte
	due    bool // nothing was shown yet: no empty line comes before
}

// blocks shows the blocks of a node: first is before the first line, rest before all others.
func (m *markdown) blocks(parent ast.Node, first, rest string) {
	_, item := parent.(*ast.ListItem)
	for n := parent.FirstChild(); n != nil; n = n.NextSibling() {
		m.space(rest, item && n.Kind() != ast.KindParagraph || n.Kind() == ast.KindTextBlock)
		m.block(n, first, rest)
		first = rest
	}
}

// space puts an empty line between blocks.
func (m *markdown) space(rest string, tight bool) {
	if !m.due && !tight {
		m.view.line(strings.TrimRight(rest, " "))
	}
	m.due = false
}

func (m *markdown) block(n ast.Node, first, rest string) {
	switch n := n.(type) {
	case *ast.Heading:
		mark := ""
		if !m.view.ink {
			mark = strings.Repeat("#", n.Level) + " "
		}
		m.inline(n, first, rest, mark, bold)
	case *ast.List:
		m.list(n, first, rest)
	case *ast.Blockquote:
		m.due = true
		m.blocks(n, first+m.view.ink.paint(dim, ">")+" ", rest+m.view.ink.paint(dim, ">")+" ")
	case *ast.FencedCodeBlock, *ast.CodeBlock, *ast.HTMLBlock:
		m.code(n, first, rest)
	case *ast.ThematicBreak:
		m.view.line(first + m.view.ink.paint(dim, strings.Repeat("─", 3)))
	case *tables.Table:
		m.table(n, first, rest)
	default:
		m.inline(n, first, rest, "", plain)
	}
}

func (m *markdown) list(list *ast.List, first, rest string) {
	number := list.Start
	for n := list.FirstChild(); n != nil; n = n.NextSibling() {
		mark := "- "
		if list.IsOrdered() {
			mark = strconv.Itoa(number) + string(rune(list.Marker)) + " "
			number++
		}
		if n.PreviousSibling() != nil {
			m.space(rest, list.IsTight)
		}
		m.due = true
		m.blocks(n, first+mark, rest+strings.Repeat(" ", len(mark)))
		first = rest
	}
}

// code shows the lines of a block as they are; a line that is too long continues in the next line.
func (m *markdown) code(n ast.Node, first, rest string) {
	all := n.Lines()
	for i := range all.Len() {
		segment := all.At(i)
		line := m.flow(first, rest)
		line.restyle(cyan)
		line.add("  " + strings.TrimRight(string(segment.Value(m.source)), "\r\n"))
		if line.end(); !line.begun { // it is empty
			m.view.line(strings.TrimRight(first, " "))
		}
		first = rest
	}
}

// table shows rows in columns where they fit, and else one cell after the other.
func (m *markdown) table(table *tables.Table, first, rest string) {
	var rows [][]string
	var wide []int
	for row := table.FirstChild(); row != nil; row = row.NextSibling() {
		var cells []string
		for cell := row.FirstChild(); cell != nil; cell = cell.NextSibling() {
			text := Fit(m.plain(cell), 4*m.view.width)
			if len(cells) == len(wide) {
				wide = append(wide, 0)
			}
			wide[len(cells)] = max(wide[len(cells)], Columns(text))
			cells = append(cells, text)
		}
		rows = append(rows, cells)
	}
	sum := paintedColumns(rest)
	for _, w := range wide {
		sum += w + 2
	}
	for i, cells := range rows {
		for c := range cells {
			if sum <= m.view.width {
				cells[c] = Pad(cells[c], wide[c])
			}
		}
		separator := "  "
		if sum > m.view.width {
			separator = m.view.marks.separator
		}
		line := m.flow(first, rest)
		if i == 0 {
			line.restyle(bold)
		}
		line.add(strings.Join(cells, separator))
		line.end()
		first = rest
	}
}

// plain is the text of a node without its styles.
func (m *markdown) plain(parent ast.Node) string {
	var b strings.Builder
	for n := parent.FirstChild(); n != nil; n = n.NextSibling() {
		switch n := n.(type) {
		case *ast.Text:
			b.WriteString(m.unescaped(n.Segment.Value(m.source)))
		case *ast.AutoLink:
			b.Write(n.URL(m.source))
		default:
			b.WriteString(m.plain(n))
		}
	}
	return b.String()
}

func (m *markdown) inline(n ast.Node, first, rest, mark string, st style) {
	f := m.flow(first, rest)
	f.restyle(st)
	f.add(mark)
	m.spans(f, n, st)
	f.end()
}

// spans adds the parts of a paragraph.
func (m *markdown) spans(f *flow, parent ast.Node, st style) {
	for n := parent.FirstChild(); n != nil; n = n.NextSibling() {
		f.restyle(st)
		switch n := n.(type) {
		case *ast.Text:
			f.add(m.unescaped(n.Segment.Value(m.source)))
			if n.HardLineBreak() {
				f.add("\n")
			} else if n.SoftLineBreak() {
				f.add(" ")
			}
		case *ast.CodeSpan:
			m.codeSpan(f, n)
		case *ast.Emphasis:
			m.spans(f, n, with(st, emphasis(n.Level)))
		case *ast.Link:
			m.spans(f, n, st)
			if target := string(n.Destination); target != m.plain(n) {
				f.restyle(dim)
				f.add(" (" + target + ")")
			}
		case *ast.Image:
			f.add(m.plain(n) + " (" + string(n.Destination) + ")")
		case *ast.AutoLink:
			f.add(string(n.URL(m.source)))
		case *ast.RawHTML:
			for i := range n.Segments.Len() {
				segment := n.Segments.At(i)
				f.add(string(segment.Value(m.source)))
			}
		case *ast.String:
			f.add(string(n.Value))
		default:
			m.spans(f, n, st)
		}
	}
}

func (m *markdown) codeSpan(f *flow, n *ast.CodeSpan) {
	mark := "`"
	if m.view.ink {
		mark = ""
	}
	f.restyle(cyan)
	f.add(mark)
	for c := n.FirstChild(); c != nil; c = c.NextSibling() {
		if t, is := c.(*ast.Text); is {
			f.add(strings.ReplaceAll(string(t.Segment.Value(m.source)), "\n", " "))
		}
	}
	f.add(mark)
}

// unescaped is a text without backslashes before punctuation, and with the characters that its
// entities name.
func (m *markdown) unescaped(segment []byte) string {
	return html.UnescapeString(string(util.UnescapePunctuations(segment)))
}

func (m *markdown) flow(first, rest string) *flow {
	v := m.view
	f := &flow{out: &v.buf, start: v.space, ink: v.ink, margin: margin{first: first, indent: rest}}
	f.limit = max(v.width-paintedColumns(rest), minWidth/2)
	return f
}

func emphasis(level int) style {
	if level == 1 {
		return italic
	}
	return bold
}

// with is both styles.
func with(a, b style) style {
	if a == plain || a == b {
		return b
	}
	return a + ";" + b
}
