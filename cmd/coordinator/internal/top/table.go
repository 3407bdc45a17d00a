package top

import (
	"cmp"
	"slices"
	"strings"

	"github.com/toolfleet/toolfleet/internal/terminal"
)

// style is the parameter of an SGR escape sequence: one of the colours that every terminal has.
type style string

const (
	plain  style = ""
	bold   style = "1"
	dim    style = "2"
	red    style = "31"
	green  style = "32"
	yellow style = "33"
	blue   style = "34"
)

// paint returns a safe text in a style, if there are colours.
func (s style) paint(colors bool, text string) string {
	if !colors || s == plain || text == "" {
		return text
	}
	return "\x1b[" + string(s) + "m" + text + "\x1b[0m"
}

// column is a column of a [table].
type column struct {
	title string
	least int  // columns that it needs; a longer text is cut
	drop  int  // on narrow screens columns with a high number go first; 0 stays
	right bool // a number: to the right, and the largest first
}

// cell is what a row has in a column. Its text is that of others.
type cell struct {
	text  string
	value float64 // of a number
	style style
}

// row is a row of a [table].
type row struct {
	key   string // what it is about: the selection stays there
	cells []cell
	to    target
}

// table is what a tab shows.
type table struct {
	columns []column
	rows    []row
	note    string // below the rows
	empty   string // instead of rows
}

// view is how a person looks at a table.
type view struct {
	filter string
	sorted int // number of a column, from 1; 0 is the order of the table
	turned bool
	cursor string // the key of the selected row
	at     int    // its number, for when it has gone
	offset int    // the first row on the screen
	paper  bool   // nothing is selected
}

// shown returns the rows that the filter lets through, in their order.
func (t *table) shown(v *view) []row {
	rows := t.rows
	if v.filter != "" {
		rows = nil
		wanted := strings.ToLower(v.filter)
		for _, r := range t.rows {
			if slices.ContainsFunc(r.cells, func(c cell) bool { return strings.Contains(strings.ToLower(c.text), wanted) }) {
				rows = append(rows, r)
			}
		}
	}
	if v.sorted > 0 && v.sorted <= len(t.columns) {
		rows = slices.Clone(rows)
		i := v.sorted - 1
		slices.SortStableFunc(rows, func(a, b row) int {
			order := cmp.Compare(a.cells[i].text, b.cells[i].text)
			if t.columns[i].right {
				order = cmp.Compare(b.cells[i].value, a.cells[i].value)
			}
			if v.turned {
				order = -order
			}
			return order
		})
	}
	return rows
}

// find finds the selected row, also after others came or went.
func (v *view) find(rows []row) {
	if i := slices.IndexFunc(rows, func(r row) bool { return r.key == v.cursor }); i >= 0 {
		v.at = i
	}
	v.at = max(min(v.at, len(rows)-1), 0)
	if v.cursor = ""; len(rows) > 0 {
		v.cursor = rows[v.at].key
	}
}

// settle finds the selected row, and scrolls to it.
func (v *view) settle(rows []row, height int) {
	v.find(rows)
	v.offset = max(min(v.offset, v.at, len(rows)-height), v.at-height+1, 0)
}

// move selects another row.
func (v *view) move(rows []row, by int) {
	if len(rows) > 0 {
		v.at = max(min(v.at+by, len(rows)-1), 0)
		v.cursor = rows[v.at].key
	}
}

// gap is what stands between two columns.
const gap = "  "

// widths chooses the columns that fit, and how wide they are.
func (t *table) widths(rows []row, width int) (columns, widths []int) {
	width -= len(marker)
	for i := range t.columns {
		columns = append(columns, i)
	}
	needed := func() (sum int) {
		for _, i := range columns {
			sum += max(t.columns[i].least, 1) + len(gap)
		}
		return sum - len(gap)
	}
	for needed() > width && len(columns) > 1 {
		worst := 0
		for at, i := range columns {
			if t.columns[i].drop >= t.columns[columns[worst]].drop {
				worst = at
			}
		}
		columns = slices.Delete(columns, worst, worst+1)
	}
	sum := -len(gap)
	for _, i := range columns {
		wide := max(len(t.columns[i].title), t.columns[i].least)
		for _, r := range rows {
			wide = max(wide, terminal.Columns(r.cells[i].text))
		}
		widths = append(widths, wide)
		sum += wide + len(gap)
	}
	for ; sum > width; sum-- {
		widest := -1
		for at, i := range columns {
			if widths[at] > max(t.columns[i].least, 1) && (widest < 0 || widths[at]-t.columns[i].least > widths[widest]-t.columns[columns[widest]].least) {
				widest = at
			}
		}
		if widest < 0 {
			break
		}
		widths[widest]--
	}
	return columns, widths
}

// marker stands before the selected row.
const marker = "> "

// whole is the least height at which the texts of the selected row that are cut are shown below the
// rows, in some lines.
const (
	whole      = 10
	wholeLines = 3
)

// draw returns the heading and the rows that are on a screen: height lines.
func (t *table) draw(v *view, width, height int, colors bool) []string {
	rows := t.shown(v)
	var below []string
	if t.note != "" && height > 3 {
		height--
		below = append(below, terminal.Fit(t.note, max(width-2, 1)))
	}
	shows := !v.paper && height >= whole
	if shows {
		height -= wholeLines
	}
	fits := max(height-1, 0) // rows, below the heading
	v.settle(rows, max(fits, 1))
	visible := rows[v.offset:min(len(rows), v.offset+fits)]
	columns, widths := t.widths(visible, width)
	var head strings.Builder
	for at, i := range columns {
		title := t.columns[i].title
		if v.sorted == i+1 {
			title += map[bool]string{false: "*", true: "*-"}[v.turned]
		}
		head.WriteString(gap[:min(at, 1)*len(gap)] + aligned(terminal.Fit(title, max(widths[at], 1)), widths[at], t.columns[i].right))
	}
	lines := []string{dim.paint(colors, strings.TrimRight("  "+head.String(), " "))}
	for n, r := range visible {
		lines = append(lines, t.drawRow(&r, columns, widths, v.offset+n == v.at && !v.paper, colors))
	}
	if len(rows) == 0 {
		empty := t.empty
		if v.filter != "" {
			empty = "nothing has " + v.filter + ": esc shows all"
		}
		lines = append(lines, "  "+terminal.Fit(empty, max(width-2, 1)))
	}
	lines = padded(lines, max(height, 0))
	if shows {
		var whole []string
		if len(rows) > 0 {
			whole = t.cutTexts(&rows[v.at], columns, widths, width)
		}
		below = append(padded(whole, wholeLines), below...)
	}
	for _, line := range below {
		lines = append(lines, dim.paint(colors, strings.TrimRight("  "+line, " ")))
	}
	return lines
}

// cutTexts are the texts of a row that the screen does not show whole, as lines that fit.
func (t *table) cutTexts(r *row, columns, widths []int, width int) []string {
	var all []string
	for i, c := range r.cells {
		at := slices.Index(columns, i)
		if c.text != "-" && c.text != "" && (at < 0 || terminal.Columns(c.text) > widths[at]) {
			all = append(all, strings.ToLower(t.columns[i].title)+": "+c.text)
		}
	}
	return terminal.Wrap(strings.Join(all, "; "), max(width-2, 1), wholeLines)
}

func (t *table) drawRow(r *row, columns, widths []int, selected, colors bool) string {
	var line strings.Builder
	if line.WriteString("  "); selected {
		line.Reset()
		line.WriteString(bold.paint(colors, marker))
	}
	for at, i := range columns {
		text := ""
		if widths[at] > 0 {
			text = terminal.Fit(r.cells[i].text, widths[at])
		}
		if text = aligned(text, widths[at], t.columns[i].right); at == len(columns)-1 {
			text = strings.TrimRight(text, " ")
		}
		look := r.cells[i].style
		if selected && look == plain {
			look = bold
		}
		line.WriteString(gap[:min(at, 1)*len(gap)] + look.paint(colors, text))
	}
	return line.String()
}

// aligned is a cell as wide as its column.
func aligned(s string, to int, right bool) string {
	if right {
		return terminal.PadLeft(s, to)
	}
	return terminal.Pad(s, to)
}
