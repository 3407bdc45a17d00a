package prompt

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/signal"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"golang.org/x/term"

	"github.com/toolfleet/toolfleet/internal/cli"
	"github.com/toolfleet/toolfleet/internal/terminal"
)

// Editor reads the messages of a conversation, with a history, and completion by Tab.
type Editor struct {
	keys      *keyboard
	out       io.Writer
	view      *terminal.View
	workspace string
	commands  []string
	history   *history
}

// NewEditor makes an editor on the terminal of a prompt. Tab completes commands and, after an @,
// the paths of the workspace; "" is none.
func NewEditor(q *Prompt, out io.Writer, workspace string, commands ...string) *Editor {
	return &Editor{keys: q.keys, out: out, view: q.screen, workspace: workspace, commands: commands, history: loadHistory()}
}

// ErrStopped is the cause when a person presses Ctrl-C.
var ErrStopped = errors.New("stopped by Ctrl-C")

// Read reads a message of one or more lines. The error is [io.EOF] at the end of the conversation:
// Ctrl-D, Ctrl-C twice, or the terminal is gone.
func (e *Editor) Read(ctx context.Context) (string, error) {
	for stopped := false; ; stopped = true {
		text, err := e.text(ctx)
		if !errors.Is(err, ErrStopped) {
			return text, err
		}
		if stopped && text == "" {
			return "", io.EOF
		}
		e.view.Notice("Ctrl-C again ends")
	}
}

// text reads one message. The terminal is in raw mode only meanwhile, so that Ctrl-C stops a turn.
func (e *Editor) text(ctx context.Context) (text string, err error) {
	descriptor := int(e.keys.file.Fd())
	state, err := term.MakeRaw(descriptor)
	if err != nil {
		return "", err
	}
	resized := make(chan os.Signal, 1)
	if signals := resizeSignals(); len(signals) > 0 { // Notify without signals would mean all
		signal.Notify(resized, signals...)
		defer signal.Stop(resized)
	}
	input := &noted{Reader: e.keys.reader(ctx, resized)}
	screen := e.screen(input)
	screen.SetBracketedPasteMode(true)
	defer func() {
		e.view.Through(e.out)
		screen.SetBracketedPasteMode(false)
		_, _ = io.WriteString(e.out, "\r\n") // below what was typed
		err = errors.Join(err, term.Restore(descriptor, state))
	}()
	return e.lines(screen, input)
}

// typeHere is printed before the line that is typed.
const typeHere = "› "

// screen makes a line editor of the terminal's current width.
func (e *Editor) screen(input *noted) *term.Terminal {
	screen := term.NewTerminal(struct {
		io.Reader
		io.Writer
	}{input, e.out}, typeHere)
	input.columns = 80 // as x/term has it
	if columns, rows := terminal.Size(e.keys.file); columns > 0 {
		input.columns = columns
		_ = screen.SetSize(columns, rows) // fails when the terminal is gone
	}
	screen.History = e.history
	screen.AutoCompleteCallback = func(line string, pos int, key rune) (string, int, bool) {
		switch key {
		case '\t':
			return e.complete(screen, line, pos)
		case lineKey:
			return input.moved(line, pos)
		default:
			return "", 0, false
		}
	}
	e.view.Through(screen)
	return screen
}

// again makes a line editor of the terminal's new width, with the line that was being typed. It
// first erases the old one, whose rows the terminal has wrapped.
func (e *Editor) again(input *noted) *term.Terminal {
	columns, _ := terminal.Size(e.keys.file)
	before, columns := utf8.RuneCountInString(typeHere+input.line[:input.pos]), max(columns, 1)
	up := before/input.columns*((input.columns+columns-1)/columns) + before%input.columns/columns
	_, _ = io.WriteString(e.out, strings.Repeat("\x1b[A", up)+"\r\x1b[J") // fails when the terminal is gone
	return e.screen(input)
}

// lines reads lines until one ends the text.
func (e *Editor) lines(screen *term.Terminal, input *noted) (string, error) {
	var text strings.Builder
	for {
		line, err := screen.ReadLine()
		line = strings.ReplaceAll(line, string(lineKey), "") // it came within what was pasted
		switch {
		case errors.Is(err, errResized):
			screen = e.again(input)
			continue
		case errors.Is(err, term.ErrPasteIndicator):
			text.WriteString(line + "\n")
			continue
		case err != nil && input.stopped:
			return text.String(), ErrStopped
		case err != nil:
			return "", io.EOF
		}
		if before, more := strings.CutSuffix(line, `\`); more {
			text.WriteString(before + "\n")
			continue
		}
		return text.String() + line, nil
	}
}

// lineKey is a key that nobody types. It makes a line editor hand over the line that is being
// typed, or accept one.
const lineKey = '\x00'

var errResized = errors.New("the terminal has another size")

// noted notes Ctrl-C, which ends a line as Ctrl-D does, and carries the line from one editor to the
// next when the terminal is resized.
type noted struct {
	io.Reader

	stopped bool
	columns int // of the screen
	line    string
	pos     int
	move    move
}

// move is how far a line is on its way to the next editor.
type move int

const (
	stays move = iota
	left       // the screen
	comes      // to the next one
)

// Read implements [io.Reader].
func (n *noted) Read(p []byte) (int, error) {
	if n.move == left {
		n.move = comes
		return 0, errResized
	}
	count, err := 0, errResized
	if n.move == stays {
		count, err = n.Reader.Read(p)
	}
	if errors.Is(err, errResized) {
		return copy(p, string(lineKey)), nil
	}
	n.stopped = bytes.IndexByte(p[:count], 3) >= 0
	return count, err
}

// moved stores the line of the old editor, or returns it to the new one.
func (n *noted) moved(line string, pos int) (string, int, bool) {
	if n.move == comes {
		n.move = stays
		return n.line, n.pos, true
	}
	n.line, n.pos, n.move = line, pos, left
	return "", 0, false
}

// complete completes a command, or a path after @. If several match, it lists them.
func (e *Editor) complete(w io.Writer, line string, pos int) (string, int, bool) {
	begin := strings.LastIndexAny(line[:pos], " \t") + 1
	word := line[begin:pos]
	var all []string
	switch {
	case strings.HasPrefix(word, "@"):
		all = e.paths(word[1:])
	case begin == 0 && strings.HasPrefix(word, "/"):
		all = slices.DeleteFunc(slices.Clone(e.commands), func(name string) bool { return !strings.HasPrefix(name, word) })
	}
	if len(all) == 0 {
		return line, pos, true
	}
	common := all[0]
	for _, name := range all {
		for !strings.HasPrefix(name, common) {
			common = common[:len(common)-1]
		}
	}
	if len(all) == 1 && !strings.HasSuffix(common, "/") {
		common += " "
	}
	if len(all) > 1 && common == word {
		_, _ = io.WriteString(w, strings.Join(all[:min(len(all), maxCompletions)], "  ")+"\n")
	}
	return line[:begin] + common + line[pos:], begin + len(common), true
}

// maxCompletions is how many are shown.
const maxCompletions = 50

// paths returns the files and directories of the workspace whose paths begin like this, with an @.
func (e *Editor) paths(prefix string) []string {
	root, err := os.OpenRoot(e.workspace)
	if err != nil || e.workspace == "" {
		return nil
	}
	defer func() { _ = root.Close() }() // nothing was written
	dir, base := path.Split(prefix)
	below, err := root.OpenRoot(path.Clean("./" + dir)) // which waits for nothing
	if err != nil {
		return nil
	}
	defer func() { _ = below.Close() }() // nothing was written
	opened, err := below.Open(".")
	if err != nil {
		return nil
	}
	entries, _ := opened.ReadDir(10_000) // as many as there are
	_ = opened.Close()                   // nothing was written
	var all []string
	for _, entry := range entries {
		name := dir + entry.Name()
		if !strings.HasPrefix(entry.Name(), base) || terminal.Visible(name) != name || strings.ContainsAny(name, " \n\t") ||
			base == "" && strings.HasPrefix(entry.Name(), ".") {
			continue
		}
		if entry.IsDir() {
			name += "/"
		}
		all = append(all, "@"+name)
	}
	slices.Sort(all)
	return all
}

// history is the lines that were typed on this machine, the latest first.
type history struct {
	lines []string // the latest last
	file  string   // "" stores none
}

// maxHistory is how many lines are loaded.
const maxHistory = 500

func loadHistory() *history {
	h := &history{}
	file, err := cli.StateDir("chat_history")
	if err != nil {
		return h
	}
	h.file = file
	if content, err := os.ReadFile(file); err == nil {
		h.lines = strings.FieldsFunc(string(content), func(r rune) bool { return r == '\n' })
		h.lines = h.lines[max(0, len(h.lines)-maxHistory):]
	}
	return h
}

// Add implements [term.History].
func (h *history) Add(line string) {
	if strings.TrimSpace(line) == "" || len(h.lines) > 0 && h.lines[len(h.lines)-1] == line {
		return
	}
	h.lines = append(h.lines, line)
	if h.file == "" || os.MkdirAll(filepath.Dir(h.file), 0o700) != nil {
		return
	}
	file, err := os.OpenFile(h.file, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return
	}
	_, _ = file.WriteString(line + "\n") // a history that cannot be stored is no reason to stop
	_ = file.Close()
}

// Len implements [term.History].
func (h *history) Len() int { return len(h.lines) }

// At implements [term.History].
func (h *history) At(i int) string { return h.lines[len(h.lines)-1-i] }
