package terminal

import "strings"

// separator stands between the parts of a line.
const separator = " · "

// style is the parameter of an SGR escape sequence.
type style string

const (
	plain  style = ""
	bold   style = "1"
	dim    style = "2"
	red    style = "31"
	green  style = "32"
	yellow style = "33"
	cyan   style = "36"
)

// ink is whether there are colours.
type ink bool

// paint returns s in a style. What s contains must be safe already.
func (i ink) paint(st style, s string) string {
	if !i || st == plain || s == "" {
		return s
	}
	return "\x1b[" + string(st) + "m" + s + "\x1b[0m"
}

// line adds a line of the view itself. Its parts must be safe already.
func (v *View) line(s string) {
	v.space()
	v.buf.WriteString(strings.TrimRight(s, " "))
	v.buf.WriteByte('\n')
}

// space adds the empty line that is due.
func (v *View) space() {
	if v.gap && v.begun {
		v.buf.WriteByte('\n')
	}
	v.gap, v.begun = false, true
}

// flow returns a text of any length whose first line begins with first, and all
// others with indent; both must be equally wide.
func (v *View) flow(first, indent string) *flow {
	f := &flow{out: &v.buf, start: v.space, first: first, indent: indent}
	if v.wrap > 0 {
		f.limit = max(v.wrap-columns(indent), minWidth/2)
	}
	return f
}

// flush writes what was added in one piece, so that other writers of the same
// terminal do not cut into it.
func (v *View) flush() {
	defer v.buf.Reset()
	if v.failed || v.buf.Len() == 0 {
		return
	}
	_, err := v.w.Write(v.buf.Bytes())
	v.failed = err != nil
}
