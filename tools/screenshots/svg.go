package main

import (
	"fmt"
	"html"
	"math"
	"strings"

	uv "github.com/charmbracelet/ultraviolet"
	"github.com/charmbracelet/x/ansi"
)

// Measures in pixels, and the colours of the window.
const (
	cellWidth  = 8.43
	cellHeight = 19
	fontSize   = 14
	margin     = 20
	bar        = 34 // above the lines
	background = "1e1e2e"
	foreground = "cdd6f4"
	palette    = "45475a f38ba8 a6e3a1 f9e2af 89b4fa f5c2e7 94e2d5 bac2de"
)

// render draws a terminal whose first line is what was typed.
func render(typed string, lines []line) string {
	width := 2*margin + int(math.Ceil(columns*cellWidth))
	height := bar + (len(lines)+2)*cellHeight + margin
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" role="img">`, width, height, width, height)
	fmt.Fprintf(&b, "\n<title>%s</title>\n", html.EscapeString(typed))
	fmt.Fprintf(&b, `<rect width="100%%" height="100%%" rx="9" fill="#%s"/>`, background)
	for i, fill := range []string{"f38ba8", "f9e2af", "a6e3a1"} {
		fmt.Fprintf(&b, `<circle cx="%d" cy="18" r="6" fill="#%s"/>`, margin+6+20*i, fill)
	}
	fmt.Fprintf(&b, "\n"+`<g font-family="ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace" font-size="%d" fill="#%s">`+"\n", fontSize, foreground)
	runs(&b, 0, line{text: []rune(typed), styles: make([]uv.Style, len([]rune(typed)))})
	for i := range lines {
		runs(&b, i+2, lines[i])
	}
	b.WriteString("</g>\n</svg>\n")
	return b.String()
}

// runs draws a line: each word of one style at its own column, whatever the font's width is. No
// text has a space, because browsers do not agree on how to keep them.
func runs(b *strings.Builder, row int, l line) {
	for begin := 0; begin < len(l.text); {
		end := begin + 1
		for end < len(l.text) && l.text[end] != ' ' && l.styles[end].Equal(&l.styles[begin]) {
			end++
		}
		if l.text[begin] == ' ' {
			begin++
			continue
		}
		fmt.Fprintf(b, `<text x="%.1f" y="%d" textLength="%.1f"%s>%s</text>`+"\n", margin+float64(begin)*cellWidth,
			bar+row*cellHeight+fontSize, float64(end-begin)*cellWidth, attributes(l.styles[begin]), html.EscapeString(string(l.text[begin:end])))
		begin = end
	}
}

// attributes are a style in words of SVG.
func attributes(s uv.Style) string {
	var b strings.Builder
	if basic, is := s.Fg.(ansi.BasicColor); is { // the view uses no others
		fmt.Fprintf(&b, ` fill="#%s"`, strings.Fields(palette)[basic%8])
	}
	if s.Attrs&uv.AttrBold != 0 {
		b.WriteString(` font-weight="bold"`)
	}
	if s.Attrs&uv.AttrFaint != 0 {
		b.WriteString(` opacity="0.6"`)
	}
	if s.Attrs&uv.AttrItalic != 0 {
		b.WriteString(` font-style="italic"`)
	}
	return b.String()
}
