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
	"github.com/toolfleet/toolfleet/internal/modeltext/prose"
	"github.com/toolfleet/toolfleet/internal/system/regular"
	"github.com/toolfleet/toolfleet/internal/terminal"
)

// Editor reads the messages of a conversation, with a history, and completion by Tab.
type Editor struct {
	prompt    *Prompt
	keys      *keyboard
	out       io.Writer
	view      *terminal.View
	workspace string
	commands  []string
	history   *history
	begun     begun
}

// begun is what was typed of a message when the editor had to leave the terminal.
type begun struct {
	before string // the lines before the last one
	line   string
	pos    int
}

// NewEditor makes an editor on the terminal of a prompt. Tab completes commands and, after an @,
// the paths of the workspace; "" is none.
func NewEditor(q *Prompt, out io.Writer, workspace string, commands ...string) *Editor {
	return &Editor{prompt: q, keys: q.keys, out: out, view: q.screen, workspace: workspace, commands: commands, history: loadHistory()}
}

// ErrStopped is the cause when a person presses Ctrl-C.
var ErrStopped = errors.New("stopped by Ctrl-C")

// Begin has the next message begin with a text. Of several lines the last one can be edited.
func (e *Editor) Begin(text string) {
	at := strings.LastIndexByte(text, '\n') + 1
	e.begun = begun{text[:at], text[at:], len(text) - at}
}

// Read reads a message of one or more lines. The error is [io.EOF] at the end of the conversation:
// Ctrl-D, Ctrl-C twice, or the terminal is gone.
func (e *Editor) Read(ctx context.Context) (string, error) {
	for stopped := false; ; stopped = true {
		text, _, err := e.text(ctx, false)
		if !errors.Is(err, ErrStopped) {
			return text, err
		}
		if stopped && text == "" {
			return "", io.EOF
		}
		e.view.Notice("Ctrl-C again ends")
	}
}

// Meanwhile reads a message while a turn runs, until ctx ends; what is typed of it then is the
// beginning of the next one. The view has to be live. later reports that the message was ended by
// Ctrl-T: it is for the next turn. The error is [ErrStopped] for Ctrl-C and [io.EOF] for Ctrl-D.
func (e *Editor) Meanwhile(ctx context.Context) (text string, later bool, err error) {
	return e.text(ctx, true)
}

// text reads one message, and leaves the terminal to questions meanwhile.
func (e *Editor) text(ctx context.Context, live bool) (text string, later bool, err error) {
	for {
		end, err := e.prompt.begin(ctx)
		if err != nil {
			return "", false, err
		}
		text, later, err = e.edit(ctx, live)
		end()
		switch {
		case !errors.Is(err, errLeaves):
			return text, later, err
		case ctx.Err() != nil:
			return "", false, context.Cause(ctx)
		}
	}
}

// edit reads one message, or its beginning: then the error is [errLeaves]. The terminal is in raw
// mode only meanwhile, so that Ctrl-C stops a turn.
func (e *Editor) edit(ctx context.Context, live bool) (text string, later bool, err error) {
	descriptor := int(e.keys.file.Fd())
	state, err := term.MakeRaw(descriptor)
	if err != nil {
		return "", false, err
	}
	resized := make(chan os.Signal, 1)
	if signals := resizeSignals(); len(signals) > 0 && !live { // Notify without signals would mean all
		signal.Notify(resized, signals...)
		defer signal.Stop(resized)
	}
	input := &lineCarrier{Reader: e.keys.reader(ctx, resized, e.prompt.wanted), begun: e.begun}
	if e.begun = (begun{}); input.line != "" {
		input.move = lineComes
	}
	if live {
		input.show = e.view.Typing
		e.view.SetWriter(rawWriter{e.out})
	}
	screen := e.screen(input)
	_, _ = io.WriteString(e.out, pasteOn) // fails when the terminal is gone
	defer func() {
		below := "\r\n" // what was typed
		if live {
			below = ""
			e.view.TypingEnds()
		}
		e.view.SetWriter(e.out)
		_, _ = io.WriteString(e.out, pasteOff+below)
		err = errors.Join(err, term.Restore(descriptor, state))
	}()
	text, err = e.lines(screen, input)
	return text, input.later, err
}

// Escape sequences that have a terminal mark what is pasted.
const (
	pasteOn  = "\x1b[?2004h"
	pasteOff = "\x1b[?2004l"
)

// rawWriter writes to a terminal in raw mode.
type rawWriter struct{ io.Writer }

// Write implements [io.Writer].
func (w rawWriter) Write(p []byte) (int, error) {
	_, err := w.Writer.Write(bytes.ReplaceAll(p, []byte("\n"), []byte("\r\n")))
	return len(p), err
}

// typeHere is printed before the line that is typed.
const typeHere = "› "

// screen makes a line editor of the terminal's current width.
func (e *Editor) screen(input *lineCarrier) *term.Terminal {
	out := e.out
	if input.show != nil {
		out = io.Discard // the view shows the line
	}
	screen := term.NewTerminal(struct {
		io.Reader
		io.Writer
	}{input, out}, typeHere)
	input.columns = 80 // as x/term has it
	if columns, rows := terminal.Size(e.keys.file); columns > 0 {
		input.columns = columns
		_ = screen.SetSize(columns, rows) // fails when the terminal is gone
	}
	screen.History = e.history
	screen.AutoCompleteCallback = func(line string, pos int, key rune) (string, int, bool) {
		switch key {
		case '\t':
			if input.show != nil {
				return e.complete(e.view, line, pos)
			}
			return e.complete(screen, line, pos)
		case lineKey:
			return input.moved(line, pos)
		default:
			return "", 0, false
		}
	}
	if input.show == nil {
		e.view.SetWriter(screen)
	}
	return screen
}

// resized makes a line editor of the terminal's new width, with the line that was being typed. It
// first erases the old one, whose rows the terminal has wrapped.
func (e *Editor) resized(input *lineCarrier) *term.Terminal {
	columns, _ := terminal.Size(e.keys.file)
	before, columns := utf8.RuneCountInString(typeHere+input.line[:input.pos]), max(columns, 1)
	up := before/input.columns*((input.columns+columns-1)/columns) + before%input.columns/columns
	_, _ = io.WriteString(e.out, strings.Repeat("\x1b[A", up)+"\r\x1b[J") // fails when the terminal is gone
	return e.screen(input)
}

// lines reads lines until one ends the text.
func (e *Editor) lines(screen *term.Terminal, input *lineCarrier) (string, error) {
	var text strings.Builder
	text.WriteString(input.before)
	for {
		line, err := screen.ReadLine()
		line = strings.ReplaceAll(line, string(lineKey), "") // it came within what was pasted
		if input.show != nil && (line != "" || text.Len() > 0) && (err == nil || errors.Is(err, term.ErrPasteIndicator)) {
			e.view.Entered(line)
		}
		switch {
		case errors.Is(err, errResized):
			screen = e.resized(input)
			continue
		case errors.Is(err, errLeaves):
			e.begun = begun{text.String(), input.line, input.pos}
			return "", err
		case errors.Is(err, term.ErrPasteIndicator):
			text.WriteString(line + "\n")
			continue
		case err != nil && input.stopped:
			return text.String(), ErrStopped
		case err != nil:
			return "", err
		}
		if before, more := strings.CutSuffix(line, `\`); more {
			text.WriteString(before + "\n")
			continue
		}
		return text.String() + line, nil
	}
}

// lineKey is a key that no keyboard has. It makes a line editor hand over the line that is being
// typed, or accept one.
const lineKey = '\x00'

// laterKey is Ctrl-T, which ends a message that is for the next turn.
const laterKey = 'T' & 0x1f

var (
	errResized = errors.New("the terminal has another size")
	errLeaves  = errors.New("the terminal is for another reader")
)

// lineCarrier notes Ctrl-C, which ends a line as Ctrl-D does, and carries the line from one editor
// to the next when the terminal is resized, or was left for a while.
type lineCarrier struct {
	io.Reader
	begun

	show        func(line string, pos int) // gets the line before each key; nil: the editor shows it
	stopped     bool
	later       bool
	columns     int // of the screen
	move        move
	leaveReason error // why the line leaves
}

// move is how far a line is on its way to the next editor.
type move int

const (
	lineStays  move = iota
	lineShows       // it is passed to show
	lineLeaves      // the screen is asked for it
	lineLeft        // the screen has passed it on
	lineComes       // to the next one
)

// Read implements [io.Reader].
func (n *lineCarrier) Read(p []byte) (int, error) {
	switch {
	case n.move == lineLeft:
		n.move = lineComes
		return 0, n.leaveReason
	case n.move == lineLeaves && errors.Is(n.leaveReason, errLeaves): // it is within what is pasted
		return 0, n.leaveReason
	case n.move == lineComes:
		return copy(p, string(lineKey)), nil
	case n.move == lineStays && n.show != nil:
		n.move = lineShows
		return copy(p, string(lineKey)), nil
	}
	n.move = lineStays
	count, err := n.Reader.Read(p)
	if errors.Is(err, errResized) || errors.Is(err, errLeaves) {
		n.leaveReason, n.move = err, lineLeaves
		return copy(p, string(lineKey)), nil
	}
	n.stopped = bytes.IndexByte(p[:count], 3) >= 0
	if n.show != nil && bytes.HasSuffix(p[:count], []byte{laterKey}) {
		n.later = true
		copy(p[count-1:], "\r")
	}
	return count, err
}

// moved shows the line, stores the line of the old editor, or returns it to the new one.
func (n *lineCarrier) moved(line string, pos int) (string, int, bool) {
	switch n.move {
	case lineComes:
		n.move = lineStays
		return n.line, n.pos, true
	case lineLeaves:
		n.line, n.pos, n.move = line, pos, lineLeft
	case lineShows:
		n.show(line, pos)
	case lineStays, lineLeft:
	}
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
		if !strings.HasPrefix(entry.Name(), base) || prose.Visible(name) != name || strings.ContainsAny(name, " \n\t") ||
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

// How much is loaded, from the end of the file: lines, and bytes.
const (
	maxHistory      = 500
	maxHistoryBytes = 4 << 20
)

func loadHistory() *history {
	h := &history{}
	file, err := cli.StateDir("chat_history")
	if err != nil {
		return h
	}
	h.file = file
	opened, err := regular.Open(file)
	if err != nil {
		return h
	}
	defer func() { _ = opened.Close() }() // it was only read
	size, _ := opened.Seek(0, io.SeekEnd)
	content, _ := io.ReadAll(io.NewSectionReader(opened, max(0, size-maxHistoryBytes), maxHistoryBytes)) // what was read counts
	h.lines = strings.FieldsFunc(string(content), func(r rune) bool { return r == '\n' })
	h.lines = h.lines[max(0, len(h.lines)-maxHistory):]
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
	_ = regular.Append(h.file, []byte(line+"\n")) // a history that cannot be stored is no reason to stop
}

// Len implements [term.History].
func (h *history) Len() int { return len(h.lines) }

// At implements [term.History].
func (h *history) At(i int) string { return h.lines[len(h.lines)-1-i] }
