package shell

import (
	"errors"
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

// This file has what the parser reads in another way than the shell that runs the script. There a
// command could hide in what looks like text.

var (
	errReturn   = errors.New("it has a carriage return, which a shell reads as part of a word; end lines with a line feed alone")
	errContinue = errors.New("a backslash at the end of a line stands in the middle of an operator; write that on one line")
)

// ambiguous says which characters of a script the parser leaves out and a shell does not, or the
// other way around.
func ambiguous(script string) error {
	if strings.ContainsRune(script, '\r') {
		return errReturn
	}
	for i := range script {
		if i > 0 && strings.HasPrefix(script[i:], "\\\n") && strings.IndexByte("$([<>", script[i-1]) >= 0 {
			return errContinue
		}
	}
	return nil
}

// disputed reports whether shells read a node in another way than the parser.
func (w *walker) disputed(node syntax.Node) bool {
	switch node := node.(type) {
	case *syntax.Comment: // the parser joins the next line to the command before it
		return strings.HasSuffix(node.Text, "\\\n")
	case *syntax.Stmt:
		return namesDescriptor(node)
	case *syntax.DblQuoted:
		return requoted(node.Parts)
	case *syntax.ParamExp:
		return startsProcess(node)
	case *syntax.Redirect:
		return node.Hdoc != nil && requoted(node.Hdoc.Parts) || w.posix && (node.Op == syntax.RdrAll || node.Op == syntax.AppAll)
	case *syntax.CmdSubst:
		return w.endsDocument(node)
	case *syntax.ProcSubst:
		return w.endsDocument(node)
	case *syntax.TimeClause: // with options, time may be the program
		if node.Stmt == nil {
			return false
		}
		call, is := node.Stmt.Cmd.(*syntax.CallExpr)
		return is && len(call.Args) > 0 && strings.HasPrefix(w.wordOf(call.Args[0]).Text, "-")
	// A POSIX shell starts programs by these.
	case *syntax.SglQuoted:
		return w.posix && node.Dollar
	case *syntax.TestClause, *syntax.ArithmCmd:
		return w.posix
	case *syntax.ArithmExp:
		return w.posix && node.Bracket
	default:
		return false
	}
}

// namesDescriptor reports whether a statement has a redirection of {name[subscript]}, of which the
// subscript is evaluated. To the parser it may be a word.
func namesDescriptor(stmt *syntax.Stmt) bool {
	call, is := stmt.Cmd.(*syntax.CallExpr)
	if !is {
		return false
	}
	for _, word := range call.Args {
		first, is := word.Parts[0].(*syntax.Lit)
		if !is || !strings.HasPrefix(first.Value, "{") {
			continue
		}
		for _, redirect := range stmt.Redirs {
			if redirect.OpPos == word.End() {
				return true
			}
		}
	}
	return false
}

// startsProcess reports whether a parameter expansion has a process substitution, which is text to
// the parser.
func startsProcess(p *syntax.ParamExp) bool {
	found := false
	syntax.Walk(p, func(node syntax.Node) bool {
		switch node := node.(type) {
		case *syntax.Lit:
			found = found || strings.Contains(node.Value, "<(") || strings.Contains(node.Value, ">(")
		case *syntax.DblQuoted, *syntax.SglQuoted, *syntax.CmdSubst:
			return false
		}
		return !found
	})
	return found
}

// requoted reports whether text in double quotes, or a here document, has quotes inside of a
// parameter expansion. In some they are quotes, and in others text, around which all is expanded.
func requoted(parts []syntax.WordPart) bool {
	found := false
	for _, part := range parts {
		p, is := part.(*syntax.ParamExp)
		if !is {
			continue
		}
		syntax.Walk(p, func(node syntax.Node) bool {
			switch node.(type) {
			case *syntax.SglQuoted:
				found = true
			case *syntax.CmdSubst, *syntax.ProcSubst, *syntax.ArithmExp:
				return false
			}
			return !found
		})
	}
	return found
}

// endsDocument reports whether a here document in a substitution is read behind it, or has a line
// that begins as its last one, and has a parenthesis. Bash ends the document there.
func (w *walker) endsDocument(substitution syntax.Node) bool {
	found := false
	syntax.Walk(substitution, func(node syntax.Node) bool {
		redirect, is := node.(*syntax.Redirect)
		if !is || redirect.Hdoc == nil {
			return !found
		}
		if redirect.Hdoc.End().Offset() > substitution.End().Offset() { // bash may read it as commands
			found = true
		}
		last := strings.NewReplacer(`\`, "", `"`, "", `'`, "").Replace(source(redirect.Word))
		for line := range strings.Lines(w.text[redirect.Hdoc.Pos().Offset():redirect.Hdoc.End().Offset()]) {
			found = found || strings.HasPrefix(strings.TrimLeft(line, "\t"), last) && strings.Contains(line, ")")
		}
		return !found
	})
	return found
}
