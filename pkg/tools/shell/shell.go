// Package shell reads shell scripts without running them: which programs a command
// line would start, and with which words.
//
// It is for policies. A policy that looks for text in a command line is fooled by
// quotes, substitutions and wrappers; here "r\m", $(rm x), env -i rm x, sh -c 'rm x'
// and find -exec rm {} + are all the command rm.
//
// What cannot be known before the script runs is said to be unknown, never left out: a
// word with a variable, a glob or a brace in it, or a program behind an option that
// this package does not know. A policy decides what that means to it. Two things stay
// out of sight: what a program does that is given a program as its text (awk, python -c), and the
// content of files that are run.
package shell

import (
	"fmt"
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

// MaxScript bounds a script, in bytes, and MaxCommands what is found in it.
const (
	MaxScript   = 1 << 20
	MaxCommands = 10_000
	maxNesting  = 16 // of scripts in words of scripts
)

// Word is a word of a command.
type Word struct {
	// Text is the word as the program gets it, or as it is written when it is not Known.
	Text  string
	Known bool
}

// Command is a program that a script starts, or may start.
type Command struct {
	// Words are the program and its arguments; one word at least.
	Words []Word
	// Assigned are the names of variables that are set for this command.
	Assigned []string
	// Wraps says that the program only runs another one, which is a command of its own
	// in the list: env, timeout, xargs, sh -c.
	Wraps bool
	// Line is where it stands in the script, from 1.
	Line int
}

// Script is what a script does, as far as it can be known.
type Script struct {
	Commands []Command
	// Assigned are the names of variables that the script sets for all that follows.
	Assigned []string
	// Files are the targets of redirections.
	Files []Redirect
}

// Redirect is a file that the shell itself opens.
type Redirect struct {
	Path  Word
	Write bool
}

// Parse reads a script for bash. The error says what is wrong and where. It is safe for
// concurrent use.
func Parse(script string) (*Script, error) {
	r := &reader{script: &Script{}}
	if err := r.read(script, 0); err != nil {
		return nil, err
	}
	return r.script, nil
}

// Argv is the script of a program that is started without a shell.
func Argv(argv []string) (*Script, error) {
	words := make([]Word, len(argv))
	for i, arg := range argv {
		words[i] = Word{Text: arg, Known: true}
	}
	r := &reader{script: &Script{}}
	if len(words) == 0 {
		return r.script, nil
	}
	if err := r.command(words, nil, 1, 0); err != nil {
		return nil, err
	}
	return r.script, nil
}

// reader collects what it finds.
type reader struct{ script *Script }

// read adds what a script does; depth counts the scripts around it.
func (r *reader) read(script string, depth int) error {
	if len(script) > MaxScript {
		return fmt.Errorf("the script has %d bytes, at most %d can be read", len(script), MaxScript)
	}
	if depth > maxNesting {
		return fmt.Errorf("scripts in scripts: more than %d levels", maxNesting)
	}
	file, err := syntax.NewParser(syntax.Variant(syntax.LangBash)).Parse(strings.NewReader(script), "")
	if err != nil {
		return fmt.Errorf("the script cannot be read: %w", err)
	}
	var failed error
	syntax.Walk(file, func(node syntax.Node) bool {
		if failed != nil {
			return false
		}
		switch node := node.(type) {
		case *syntax.CallExpr:
			failed = r.call(node, depth)
		case *syntax.DeclClause:
			for _, a := range node.Args {
				r.assign(a)
			}
		case *syntax.Redirect:
			r.redirect(node)
		}
		return true
	})
	return failed
}

func (r *reader) call(node *syntax.CallExpr, depth int) error {
	if len(node.Args) == 0 {
		for _, a := range node.Assigns {
			r.assign(a)
		}
		return nil
	}
	var assigned []string
	for _, a := range node.Assigns {
		if a.Name != nil {
			assigned = append(assigned, a.Name.Value)
		}
	}
	words := make([]Word, len(node.Args))
	for i, arg := range node.Args {
		words[i] = wordOf(arg)
	}
	return r.command(words, assigned, int(node.Pos().Line()), depth)
}

func (r *reader) assign(a *syntax.Assign) {
	if a.Name != nil {
		r.script.Assigned = append(r.script.Assigned, a.Name.Value)
	}
}

func (r *reader) redirect(node *syntax.Redirect) {
	switch node.Op {
	case syntax.RdrIn, syntax.RdrOut, syntax.AppOut, syntax.RdrInOut, syntax.RdrClob, syntax.RdrAll, syntax.AppAll:
		r.script.Files = append(r.script.Files, Redirect{Path: wordOf(node.Word), Write: node.Op != syntax.RdrIn})
	default: // descriptors and here documents
	}
}

// command adds a command and those that it wraps.
func (r *reader) command(words []Word, assigned []string, line, depth int) error {
	if len(r.script.Commands) >= MaxCommands {
		return fmt.Errorf("the script has more than %d commands", MaxCommands)
	}
	at := len(r.script.Commands)
	r.script.Commands = append(r.script.Commands, Command{Words: words, Assigned: assigned, Line: line})
	inner, wraps, err := r.unwrap(words, line, depth)
	if err != nil {
		return err
	}
	r.script.Commands[at].Wraps = wraps
	for _, found := range inner {
		if err := r.command(found, assigned, line, depth+1); err != nil {
			return err
		}
	}
	return nil
}

// Program is the name of the program, without its directory; "" when it is not known.
func (c *Command) Program() string { return programOf(c.Words[0]) }

func programOf(word Word) string {
	if !word.Known {
		return ""
	}
	return word.Text[strings.LastIndexByte(word.Text, '/')+1:]
}

// String is the command as it would be typed, with what is not known as it is written.
func (c *Command) String() string {
	texts := make([]string, len(c.Words))
	for i, word := range c.Words {
		texts[i] = word.Text
		if !word.Known {
			continue
		}
		if quoted, err := syntax.Quote(word.Text, syntax.LangBash); err == nil {
			texts[i] = quoted
		}
	}
	return strings.Join(texts, " ")
}
