package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path"
	"slices"
	"strings"
	"unicode/utf8"

	"golang.org/x/term"

	"github.com/toolfleet/toolfleet/internal/terminal"
)

// editor reads what somebody says, with a history, and completion by Tab.
type editor struct {
	keys      *keyboard
	out       io.Writer
	view      *terminal.View
	workspace string
	history   *history
}

var errStopped = errors.New("stopped by Ctrl-C") // at the prompt

// read reads a text: a line, or several. The error is [io.EOF] when there is no more to say.
func (e *editor) read(ctx context.Context) (string, error) {
	for stopped := false; ; stopped = true {
		text, err := e.text(ctx)
		if !errors.Is(err, errStopped) {
			return text, err
		}
		if stopped && text == "" {
			return "", io.EOF
		}
		e.view.Notice("Ctrl-C again ends")
	}
}

// text reads one text on a terminal of its own making. It is in raw mode only meanwhile, so that
// Ctrl-C stops a turn.
func (e *editor) text(ctx context.Context) (text string, err error) {
	descriptor := int(e.keys.file.Fd())
	state, err := term.MakeRaw(descriptor)
	if err != nil {
		return "", err
	}
	resized, still := resizes()
	defer still()
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

// typeHere is before what is typed.
const typeHere = "› "

// screen is a screen for lines that is as wide as the terminal is now.
func (e *editor) screen(input *noted) *term.Terminal {
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

// again is a screen of the size that the terminal has now, with the line that was being typed. That
// of before is removed: terminals wrap its rows where they do not fit any more.
func (e *editor) again(input *noted) *term.Terminal {
	columns, _ := terminal.Size(e.keys.file)
	before, columns := utf8.RuneCountInString(typeHere+input.line[:input.pos]), max(columns, 1)
	up := before/input.columns*((input.columns+columns-1)/columns) + before%input.columns/columns
	_, _ = io.WriteString(e.out, strings.Repeat("\x1b[A", up)+"\r\x1b[J") // fails when the terminal is gone
	return e.screen(input)
}

// lines reads lines until one ends the text.
func (e *editor) lines(screen *term.Terminal, input *noted) (string, error) {
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
			return text.String(), errStopped
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

// lineKey is what nobody means to type. It has a screen tell the line that is being typed, or takes
// one over.
const lineKey = '\x00'

var errResized = errors.New("the terminal has another size")

// noted notes Ctrl-C, which ends a line as Ctrl-D does, and takes the line from one screen to the
// next.
type noted struct {
	io.Reader

	stopped bool
	columns int // of the screen
	line    string
	pos     int
	move    move
}

// move is how far a line has come on its way to the next screen.
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

// moved keeps the line of a screen, or returns the one that is kept.
func (n *noted) moved(line string, pos int) (string, int, bool) {
	if n.move == comes {
		n.move = stays
		return n.line, n.pos, true
	}
	n.line, n.pos, n.move = line, pos, left
	return "", 0, false
}

// complete completes a command, or a path after @. When there are several, it shows them.
func (e *editor) complete(w io.Writer, line string, pos int) (string, int, bool) {
	begin := strings.LastIndexAny(line[:pos], " \t") + 1
	word := line[begin:pos]
	var all []string
	switch {
	case strings.HasPrefix(word, "@"):
		all = e.paths(word[1:])
	case begin == 0 && strings.HasPrefix(word, "/"):
		all = slices.DeleteFunc(commands(), func(name string) bool { return !strings.HasPrefix(name, word) })
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
func (e *editor) paths(prefix string) []string {
	root, err := os.OpenRoot(e.workspace)
	if err != nil || e.workspace == "" {
		return nil
	}
	defer func() { _ = root.Close() }() // nothing was written
	dir, base := path.Split(prefix)
	opened, err := root.Open(path.Clean("./" + dir))
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
