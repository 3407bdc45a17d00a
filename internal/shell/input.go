package shell

import (
	"strconv"
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

// stdin is what a command reads from its standard input. The zero value is nothing that the script
// gives: a shell that reads it is like one that runs a file.
type stdin struct {
	given bool
	text  *string // nil when it is not known
}

func given(text []byte) stdin {
	if len(text) == 0 {
		return stdin{}
	}
	s := string(text)
	return stdin{given: true, text: &s}
}

// inputOf is the standard input of a statement, around which it is outer.
func (w *walker) inputOf(stmt *syntax.Stmt, outer stdin) stdin {
	input := outer
	if w.piped[stmt] {
		input = stdin{given: true}
	}
	for _, redirect := range stmt.Redirs {
		if !isInput(redirect) {
			continue
		}
		input = w.redirected(redirect)
		if call, is := stmt.Cmd.(*syntax.CallExpr); is && len(call.Args) > 0 && w.wordOf(call.Args[0]).Text == "exec" {
			for i := range w.inputs { // for all that follows
				w.inputs[i] = stdin{given: true}
			}
		}
	}
	if _, one := stmt.Cmd.(*syntax.CallExpr); !one && input.text != nil {
		input.text = nil // several commands read it
	}
	return input
}

// isInput reports whether a redirection is of the standard input.
func isInput(redirect *syntax.Redirect) bool {
	if redirect.N != nil {
		n, err := strconv.Atoi(redirect.N.Value)
		return err == nil && n == 0
	}
	switch redirect.Op {
	case syntax.RdrIn, syntax.RdrInOut, syntax.DplIn, syntax.Hdoc, syntax.DashHdoc, syntax.WordHdoc:
		return true
	default:
		return false
	}
}

func (w *walker) redirected(redirect *syntax.Redirect) stdin {
	switch redirect.Op {
	case syntax.RdrIn, syntax.RdrInOut:
		if file := w.wordOf(redirect.Word); file.Known && !isDescriptor(file.Text) {
			return stdin{}
		}
	case syntax.WordHdoc:
		if word := w.wordOf(redirect.Word); word.Known {
			return stdin{given: true, text: &word.Text}
		}
	case syntax.Hdoc, syntax.DashHdoc:
		if text, known := document(redirect); known {
			return stdin{given: true, text: &text}
		}
	default: // another descriptor
	}
	return stdin{given: true}
}

// document is the text of a here document.
func document(redirect *syntax.Redirect) (text string, known bool) {
	if redirect.Hdoc == nil {
		return "", true
	}
	var b strings.Builder
	quoted := redirect.Word.Lit() == "" || strings.Contains(redirect.Word.Lit(), `\`)
	for _, part := range redirect.Hdoc.Parts {
		lit, is := part.(*syntax.Lit)
		switch {
		case !is:
			return "", false
		case quoted:
			b.WriteString(lit.Value)
		default:
			b.WriteString(quotedLiteral(lit.Value, false))
		}
	}
	return b.String(), true
}

// isDescriptor reports whether a path may be an open file of the shell, such as its input.
func isDescriptor(path string) bool {
	return strings.Contains(path, "/dev") || strings.Contains(path, "/proc") || strings.Contains(path, "/fd/")
}

// readInput reads the script that a shell has as its standard input.
func (r *reader) readInput(at scope) error {
	if at.stdin.text == nil {
		return r.command([]Word{{Text: "(a script from the standard input)", Many: true}}, nil, at)
	}
	text := *at.stdin.text
	at.stdin, at.depth = stdin{given: true}, at.depth+1
	return r.read(text, at)
}
