// Package shell reads shell scripts without running them: which programs a command
// line would start, and with which words.
//
// It is for policies. A policy that looks for text in a command line is fooled by
// quotes, substitutions and wrappers; here "r\m", $(rm x), env -i rm x, sh -c 'rm x'
// and find -exec rm {} + are all the command rm.
//
// What cannot be known before the script runs is said to be unknown, never left out: a
// word with a variable, a glob or a brace in it, or a program behind an option that
// this package does not know. Bash also evaluates values as code, as in $((x)), ${!x} and
// read "$name": syntax and builtins that are known to evaluate nothing are listed here, and all
// others are commands that are not known. A policy decides what that means to it. Two things stay
// out of sight: what a program does that is given a program as its text (awk, python -c), and the
// content of files that are run.
package shell

import (
	"fmt"
	"slices"
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
	// Many says that a word that is not Known may become any number of words, none as well.
	Many bool

	plain bool // not Known, but it does not begin as an option does
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
	// Evaluates says that this is syntax or a builtin that may evaluate a value as code. Its one
	// word is how it is written, and is not Known.
	Evaluates bool
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

	numbers map[string]int
}

// MayEvaluate reports whether the script may evaluate a value as code that a variable has from
// outside.
func (s *Script) MayEvaluate(name, value string) bool {
	_, used := s.numbers[name]
	return Evaluated(name) || used && !integer.MatchString(value)
}

// Redirect is a file that the shell itself opens.
type Redirect struct {
	Path  Word
	Write bool
}

// Parse reads a script for bash. The error says what is wrong and where. It is safe for
// concurrent use.
func Parse(script string) (*Script, error) { return ParseInput(script, nil) }

// ParseInput is [Parse] for a script that is given a standard input, which may be a script as
// well; nil is none.
func ParseInput(script string, stdin []byte) (*Script, error) {
	r := &reader{script: &Script{}, variables: newVariables()}
	if err := r.read(script, scope{stdin: given(stdin)}); err != nil {
		return nil, err
	}
	return r.finish()
}

// Argv is the script of a program that is started without a shell, with a standard input.
func Argv(argv []string, stdin []byte) (*Script, error) {
	words := make([]Word, len(argv))
	for i, arg := range argv {
		words[i] = Word{Text: arg, Known: true}
	}
	r := &reader{script: &Script{}, variables: newVariables()}
	if len(words) == 0 {
		return r.script, nil
	}
	if err := r.command(words, nil, scope{line: 1, stdin: given(stdin)}); err != nil {
		return nil, err
	}
	return r.finish()
}

// reader collects what it finds.
type reader struct {
	*variables

	script *Script
}

// finish adds what is known at the end alone: which variables are no numbers after all.
func (r *reader) finish() (*Script, error) {
	for _, name := range r.notNumbers() {
		if err := r.evaluates("$"+name, scope{line: r.used[name]}); err != nil {
			return nil, err
		}
	}
	r.script.numbers = r.used
	return r.script, nil
}

// scope is where a command stands.
type scope struct {
	line  int
	depth int // scripts around it
	stdin stdin
	posix bool // a shell that may not be bash reads it
}

// read adds what a script does.
func (r *reader) read(script string, at scope) error {
	if len(script) > MaxScript {
		return fmt.Errorf("the script has %d bytes, at most %d can be read", len(script), MaxScript)
	}
	if at.depth > maxNesting {
		return fmt.Errorf("scripts in scripts: more than %d levels", maxNesting)
	}
	if err := ambiguous(script); err != nil {
		return fmt.Errorf("the script cannot be read: %w", err)
	}
	file, err := syntax.NewParser(syntax.Variant(syntax.LangBash), syntax.KeepComments(true)).Parse(strings.NewReader(script), "")
	if err != nil {
		return fmt.Errorf("the script cannot be read: %w", err)
	}
	w := &walker{reader: r, values: valuesOf(file, r.variables), text: script, depth: at.depth, posix: at.posix, inputs: []stdin{at.stdin}, piped: map[*syntax.Stmt]bool{}}
	syntax.Walk(file, w.visit)
	return w.failed
}

// command adds a command and those that it wraps.
func (r *reader) command(words []Word, assigned []string, at scope) error {
	if len(r.script.Commands) >= MaxCommands {
		return fmt.Errorf("the script has more than %d commands", MaxCommands)
	}
	index := len(r.script.Commands)
	r.script.Commands = append(r.script.Commands, Command{Words: words, Assigned: assigned, Line: at.line})
	sets, harmless := builtin(words)
	r.script.Assigned = append(r.script.Assigned, sets...)
	if !harmless {
		return r.evaluates(r.script.Commands[index].String(), at)
	}
	inner, err := r.unwrap(words, at)
	if err != nil {
		return err
	}
	r.script.Commands[index].Wraps = inner.wraps && isInstalled(words[0].Text)
	for _, name := range inner.assigned {
		r.others[name] = true
	}
	if slices.ContainsFunc(inner.assigned, Evaluated) {
		return r.evaluates(r.script.Commands[index].String(), at)
	}
	at.depth++
	for _, found := range inner.commands {
		if err := r.command(found, slices.Concat(assigned, inner.assigned), at); err != nil {
			return err
		}
	}
	return nil
}

// evaluates adds what may evaluate a value as code; text is how it is written.
func (r *reader) evaluates(text string, at scope) error {
	if len(r.script.Commands) >= MaxCommands {
		return fmt.Errorf("the script has more than %d commands", MaxCommands)
	}
	r.script.Commands = append(r.script.Commands, Command{Words: []Word{{Text: text, Many: true}}, Evaluates: true, Line: at.line})
	return nil
}

// isInstalled reports whether a program is one that PATH has, or stands where the system has its
// own: one of the same name elsewhere may be anything.
func isInstalled(program string) bool {
	name := strings.TrimPrefix(strings.TrimPrefix(program, "/usr"), "/bin/")
	return !strings.Contains(name, "/")
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
