package top

import (
	"strings"
	"sync"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"
)

// maxTail bounds the end of a text that is kept, in bytes.
const maxTail = 64 << 10

// tail keeps the end of a text that grows. It is safe for concurrent use.
type tail struct {
	mu    sync.Mutex
	text  []byte
	raw   bool     // it is what a program wrote
	split []string // the lines of the text; nil if they are to be made again
}

// Write adds a text that is safe.
func (t *tail) Write(p []byte) (int, error) {
	t.add(p, false)
	return len(p), nil
}

// output adds what a program wrote.
func (t *tail) output(p []byte) { t.add(p, true) }

func (t *tail) add(p []byte, raw bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.raw, t.split = raw, nil
	t.text = append(t.text, p...)
	if over := len(t.text) - maxTail; over > maxTail { // seldom, so that each byte is moved once
		t.text = append([]byte{}, t.text[over:]...)
	}
}

// lines are the lines of the text, safe to be written: what a program wrote is as a terminal would
// show it, and what acts on a terminal is visible.
func (t *tail) lines() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.split == nil && len(t.text) > 0 {
		text := t.text[max(len(t.text)-maxTail, 0):]
		if len(text) < len(t.text) { // from the beginning of a line, if there is one
			text = text[strings.IndexByte(string(text), '\n')+1:]
		}
		if t.raw {
			t.split = visibleLines(string(text))
		} else {
			t.split = strings.Split(strings.TrimRight(string(text), "\n"), "\n")
		}
	}
	return t.split
}

// tick has the text drawn again.
func (t *tail) tick() tea.Cmd {
	return tea.Tick(tailPeriod, func(time.Time) tea.Msg { return tailTick{t} })
}

// cut cuts a safe line, which may have colours, at a width.
func cut(line string, width int) string { return ansi.Truncate(line, max(width, 1), "…") }
