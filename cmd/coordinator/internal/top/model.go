package top

import (
	"context"
	"fmt"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"

	"github.com/toolfleet/toolfleet/internal/overview"
	"github.com/toolfleet/toolfleet/internal/terminal"
)

// model is what is on the screen. Only the program's loop uses it.
type model struct {
	ctx     context.Context //nolint:containedctx // of the program
	options *Options
	began   time.Time
	tabs    []tab
	size

	picture *overview.Picture // the last one that was read; nil before the first
	away    error             // why the last reading failed; nil if it did not

	tab   int
	views []view // of each tab
	failures
	details []detail
	line
}

// size is that of the screen.
type size struct{ width, height int }

// line is what the last line of the screen is used for.
type line struct {
	question  *question
	filtering bool
	help      bool
	notice    string
	failed    bool // the notice is of something that failed
}

// Messages of the program's loop.
type (
	// pictureRead is the end of a reading that began at a time.
	pictureRead struct {
		picture *overview.Picture
		err     error
		began   time.Time
	}
	readAgain struct{}
	// acted is the end of an act.
	acted struct {
		text string
		err  error
	}
)

// readTimeout bounds a reading: a server that is away is noticed by then.
const readTimeout = 5 * time.Second

// Init implements [tea.Model].
func (m *model) Init() tea.Cmd { return m.read }

// read reads a picture.
func (m *model) read() tea.Msg {
	ctx, cancel := context.WithTimeout(m.ctx, readTimeout)
	defer cancel()
	began := time.Now()
	picture, err := m.options.Reader.Read(ctx)
	return pictureRead{picture, err, began}
}

// Update implements [tea.Model].
func (m *model) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		m.size = size{msg.Width, msg.Height}
		if d := m.detail(); d != nil {
			return m, d.resized(m)
		}
	case pictureRead:
		if m.away = msg.err; msg.err == nil {
			m.picture = msg.picture
		}
		pause := max(m.options.Interval-time.Since(msg.began), m.options.Interval/10)
		return m, tea.Tick(pause, func(time.Time) tea.Msg { return readAgain{} })
	case readAgain:
		return m, m.read
	case acted:
		m.notice, m.failed = msg.text, msg.err != nil
		if msg.err != nil {
			m.notice = "refused or failed: " + msg.err.Error()
		}
	case tea.KeyPressMsg:
		return m, m.key(msg)
	case tea.PasteMsg:
		if m.filtering {
			m.typed(msg.Content)
		}
	case failedRead, failedAgain:
		return m, m.updateFailed(m, msg)
	default:
		if d := m.detail(); d != nil {
			return m, d.update(m, msg)
		}
	}
	return m, nil
}

// detail is what is looked into; nil if nothing is.
func (m *model) detail() detail {
	if len(m.details) == 0 {
		return nil
	}
	return m.details[len(m.details)-1]
}

// enter looks into something.
func (m *model) enter(d detail) tea.Cmd {
	if above := m.detail(); above != nil {
		above.leave()
	}
	m.details = append(m.details, d)
	return d.enter(m)
}

// back leaves what is looked into.
func (m *model) back() tea.Cmd {
	d := m.detail()
	d.leave()
	if m.details = m.details[:len(m.details)-1]; len(m.details) > 0 {
		return m.detail().enter(m)
	}
	return nil
}

func (m *model) leaveAll() {
	if d := m.detail(); d != nil {
		d.leave()
	}
	m.details = nil
}

// list is the table of the tab, and the rows that are shown.
func (m *model) list() (*table, []row) {
	t := &table{empty: "reading ..."}
	switch {
	case m.tab == failedTab:
		t = m.failedTable()
	case m.picture != nil:
		t = m.tabs[m.tab].of(m.picture)
	}
	return t, t.shown(&m.views[m.tab])
}

// selected is what the selected row is about.
func (m *model) selected() (target, bool) {
	if d := m.detail(); d != nil {
		return d.selected()
	}
	_, rows := m.list()
	v := &m.views[m.tab]
	v.find(rows)
	if len(rows) == 0 {
		return target{}, false
	}
	return rows[v.at].to, true
}

// key handles a key.
func (m *model) key(msg tea.KeyPressMsg) tea.Cmd {
	name := msg.String()
	if name == "ctrl+c" {
		return tea.Quit
	}
	switch {
	case m.question != nil:
		asked := m.question
		if m.question = nil; name == "y" || name == "Y" {
			m.notice, m.failed = "...", false
			return asked.run(m.ctx)
		}
		m.notice, m.failed = "nothing was done", false
		return nil
	case m.filtering:
		m.filterKey(name, msg.Text)
		return nil
	case m.help:
		m.help = false
		return nil
	}
	m.notice = ""
	switch name {
	case "q":
		return tea.Quit
	case "?":
		m.help = true
		return nil
	case "p", "c", "x":
		m.ask(name)
		return nil
	}
	if d := m.detail(); d != nil {
		if name == "esc" || name == "backspace" || name == "left" || name == "h" {
			return m.back()
		}
		return d.key(m, name)
	}
	return m.listKey(name)
}

// listKey handles a key in a list.
func (m *model) listKey(name string) tea.Cmd {
	t, rows := m.list()
	v := &m.views[m.tab]
	v.find(rows)
	if by, is := moves(name, m.height); is {
		v.move(rows, by)
		return nil
	}
	switch name {
	case "1", "2", "3", "4", "5", "6", "7":
		m.tab = int(name[0] - '1')
		return m.visit()
	case "tab", "right", "l":
		m.tab = (m.tab + 1) % len(m.tabs)
		return m.visit()
	case "shift+tab", "left", "h":
		m.tab = (m.tab + len(m.tabs) - 1) % len(m.tabs)
		return m.visit()
	case "/":
		m.filtering = true
	case "esc":
		v.filter = ""
	case "s":
		if v.sorted++; v.sorted > len(t.columns) {
			v.sorted = 0
		}
	case "S":
		v.turned = !v.turned
	case "enter":
		if to, is := m.selected(); is {
			return m.look(to)
		}
	}
	return nil
}

// moves is by how many rows a key moves the selection.
func moves(name string, height int) (by int, is bool) {
	const all = 1 << 30
	switch name {
	case "down", "j":
		return 1, true
	case "up", "k":
		return -1, true
	case "pgdown", "ctrl+d", "space":
		return max(height/2, 1), true
	case "pgup", "ctrl+u":
		return -max(height/2, 1), true
	case "home", "g":
		return -all, true
	case "end", "G":
		return all, true
	}
	return 0, false
}

// look looks into what a row is about.
func (m *model) look(to target) tea.Cmd {
	switch {
	case to.logged:
		return m.enter(newLoggedDetail(to))
	case to.lane != "":
		return m.enter(newLaneDetail(to))
	case to.session != "":
		return m.enter(newSessionDetail(to))
	case to.lanes != "":
		m.tab = lanesTab
		m.views[lanesTab] = view{filter: to.lanes}
	default:
		m.notice = "there is nothing more to see of it"
	}
	return nil
}

// Numbers of lists.
const (
	lanesTab  = 2
	failedTab = 6 // which no picture has
)

// filterKey handles a key while the filter is typed.
func (m *model) filterKey(name, typed string) {
	v := &m.views[m.tab]
	switch name {
	case "enter":
		m.filtering = false
	case "esc":
		m.filtering, v.filter = false, ""
	case "backspace":
		if runes := []rune(v.filter); len(runes) > 0 {
			v.filter = string(runes[:len(runes)-1])
		}
	case "ctrl+u":
		v.filter = ""
	default:
		m.typed(typed)
	}
}

// maxFilter bounds a filter, in bytes.
const maxFilter = 200

func (m *model) typed(text string) {
	v := &m.views[m.tab]
	if text = strings.Join(strings.FieldsFunc(text, func(r rune) bool { return r < ' ' }), " "); len(v.filter)+len(text) <= maxFilter {
		v.filter += text
	}
}

// View implements [tea.Model].
func (m *model) View() tea.View {
	v := tea.NewView(strings.Join(m.draw(), "\n"))
	v.AltScreen = true
	return v
}

// draw returns the lines of the screen.
func (m *model) draw() []string {
	if m.width <= 0 || m.height <= 0 {
		return nil
	}
	colors := m.options.Colors
	var lines []string
	add := func(st style, text string) { lines = append(lines, st.paint(colors, terminal.Fit(text, m.width))) }
	if m.picture != nil {
		add(bold, heading(m.picture))
	} else {
		add(bold, "reading the fleet ...")
	}
	if m.away != nil {
		add(red, m.awayBar())
	}
	if m.picture != nil && len(m.picture.Missing) > 0 {
		text := missed(&m.picture.Missing[0])
		if more := len(m.picture.Missing) - 1; more > 0 {
			text += fmt.Sprintf(", and %d more parts", more)
		}
		add(yellow, text)
	}
	if d := m.detail(); d != nil {
		add(bold, d.title())
	} else {
		lines = append(lines, m.tabLine())
	}
	height := max(m.height-len(lines)-1, 1)
	switch d := m.detail(); {
	case m.help:
		lines = append(lines, padded(helpLines(m.width, colors), height)...)
	case d != nil:
		lines = append(lines, padded(d.draw(m, m.width, height), height)...)
	default:
		t, _ := m.list()
		lines = append(lines, t.draw(&m.views[m.tab], m.width, height, colors)...)
	}
	lines = lines[:min(len(lines), m.height-1)]
	return append(lines, m.lastLine())
}

// awayBar says since when there is no answer. What is below it is from then.
func (m *model) awayBar() string {
	since := m.began
	if m.picture != nil {
		since = m.picture.Time
	}
	return fmt.Sprintf("! no answer since %s: trying again (%v)", since.Local().Format(time.TimeOnly), m.away)
}

func padded(lines []string, height int) []string {
	for len(lines) < height {
		lines = append(lines, "")
	}
	return lines[:height]
}

// tabLine names the tabs, as short as the screen needs it.
func (m *model) tabLine() string {
	counts := make([]string, len(m.tabs)) // "" is not known
	if p := m.picture; p != nil {
		for i, n := range []int{
			len(p.Looks), len(p.Workers) + len(p.Coordinators), len(p.Lanes) + p.LanesLeftOut, len(p.Sessions) + p.SessionsLeftOut, len(p.Waits), len(p.Limits),
		} {
			counts[i] = fmt.Sprint(" ", n)
		}
	}
	if m.log != nil {
		counts[failedTab] = fmt.Sprint(" ", len(m.log.Calls))
	}
	for _, form := range []func(i int) string{
		func(i int) string { return fmt.Sprintf("%d %s%s", i+1, m.tabs[i].name, counts[i]) },
		func(i int) string { return fmt.Sprintf("%d %s%s", i+1, m.tabs[i].short, counts[i]) },
		func(i int) string { return fmt.Sprintf("%d %s", i+1, m.tabs[i].short) },
		func(i int) string { return fmt.Sprint(i + 1) },
	} {
		wide := 0
		var line strings.Builder
		for i := range m.tabs {
			text, look := " "+form(i)+" ", dim
			if i == m.tab {
				text, look = "["+form(i)+"]", bold
			}
			wide += terminal.Columns(text)
			line.WriteString(look.paint(m.options.Colors, text))
		}
		if wide <= m.width {
			return line.String()
		}
	}
	return ""
}

// lastLine is the question, the filter, what an act did, or the keys.
func (m *model) lastLine() string {
	colors := m.options.Colors
	fit := func(st style, text string) string { return st.paint(colors, terminal.Fit(text, m.width)) }
	switch {
	case m.question != nil:
		return fit(yellow, m.question.text+" y/n")
	case m.filtering:
		return fit(bold, "/"+m.views[m.tab].filter+"_")
	case m.notice != "" && m.failed:
		return fit(red, "! "+m.notice)
	case m.notice != "":
		return fit(green, m.notice)
	case m.help:
		return fit(dim, "any key: back")
	case m.detail() != nil:
		return fit(dim, m.detail().keys())
	}
	keys := "? keys  / filter  s sort  enter look  p pause  c cancel  x kill  q quit"
	if filter := m.views[m.tab].filter; filter != "" {
		keys = "filter: " + filter + "  (esc shows all)"
	}
	return fit(dim, keys)
}

// helpLines are all keys.
func helpLines(width int, colors bool) []string {
	lines := []string{bold.paint(colors, "Keys")}
	for _, key := range [][2]string{
		{"1 .. 7, tab", "the lists: stalled things, workers, lanes, sessions, waits, limits, failed calls"},
		{"j k, arrows", "next and previous row; space and page keys, g and G for the ends"},
		{"enter", "look into it: a lane, a session, a call and what it writes"},
		{"esc", "back; in a list: show all"},
		{"/", "filter the list by a text"},
		{"s S", "sort by the next column; turn the order round"},
		{"p", "pause or resume the selected lane (asks)"},
		{"c", "cancel the selected call, or the turn of a session (asks)"},
		{"x", "kill the running calls of the selected lane (asks)"},
		{"q", "quit"},
	} {
		lines = append(lines, terminal.Fit(fmt.Sprintf("  %-12s %s", key[0], key[1]), max(width, 1)))
	}
	return lines
}
