// Package shell reads command lines without running them: which programs a line starts, and with
// which words. Policies judge what it finds.
//
// It understands a small part of the shell's language: simple commands in lists, pipes, groups, if,
// while and for; words, with quotes, variables and globs; redirections and here documents; and some
// programs that run others, such as env, timeout, sh -c and xargs. bash and POSIX shells read this
// part alike. Everything else is an error, which says what was not understood. What is understood
// is listed, and not what is dangerous, since shells evaluate text as code in more constructs than
// can be listed.
//
// A word whose value is known only when the line runs, such as "$x" or *.go, is returned as not
// [Word.Known]. Structure is not checked: the shell itself refuses a "then" without an "if".
//
// Out of sight stay what a program does with its arguments (awk, python -c, make), and the content
// of files that are run.
package shell

import (
	"fmt"
	"regexp"
	"strings"
)

// MaxScript bounds a script, in bytes, and MaxCommands what is found in it.
const (
	MaxScript   = 1 << 20
	MaxCommands = 10_000
	maxNesting  = 16 // scripts and commands in each other
)

// Word is a word of a command.
type Word struct {
	// Text is the word as the program gets it, or as it is written when it is not Known.
	Text  string
	Known bool
	// Many says that a word that is not Known may become any number of words, none as well.
	Many bool
}

// Command is a program that a script starts, or may start.
type Command struct {
	// Words are the program and its arguments; one word at least.
	Words []Word
	// Assigned are the names of variables that are set for this command.
	Assigned []string
	// Wraps says that who allows the rest of the list allows this: the program only runs another
	// one, which is a command of its own in the list (env, timeout, xargs, sh -c), or it is the
	// file that the shell before it runs.
	Wraps bool
}

// Script is what a script does.
type Script struct {
	Commands []Command
	// Assigned are the names of variables that the script sets for all that follows.
	Assigned []string
}

// Parse reads a script for bash or sh; hasInput says that it is given a standard input. The error
// says what is not understood, and where; the script then has what was read before. It is safe for
// concurrent use.
func Parse(script string, hasInput bool) (*Script, error) {
	r := &reader{script: &Script{}, hasInput: hasInput}
	return r.script, r.finish(r.read(script, 0))
}

// Argv is the script of a program that is started without a shell.
func Argv(argv []string, hasInput bool) (*Script, error) {
	r := &reader{script: &Script{}, hasInput: hasInput}
	if len(argv) == 0 {
		return r.script, nil
	}
	words := make([]Word, len(argv))
	for i, arg := range argv {
		words[i] = Word{Text: arg, Known: true}
	}
	return r.script, r.finish(r.command(Command{Words: words}, 0))
}

// reader collects the commands of a script and of the scripts in its words.
type reader struct {
	script     *Script
	hasInput   bool   // the caller, a pipe or a redirection writes to a standard input
	readsInput string // a shell that reads its script from there
}

// finish checks what is known only at the end: whether a shell that reads its script from the
// standard input has one.
func (r *reader) finish(err error) error {
	if err == nil && r.hasInput && r.readsInput != "" {
		return fmt.Errorf("%s reads a script from its input; write it as %[1]s -c '...'", r.readsInput)
	}
	return err
}

// read adds what a script does.
func (r *reader) read(script string, depth int) error {
	if len(script) > MaxScript {
		return fmt.Errorf("the script has %d bytes, at most %d can be read", len(script), MaxScript)
	}
	if err := checkCharacters(script); err != nil {
		return err
	}
	p := &parser{reader: r, text: script, depth: depth}
	return p.list()
}

// command adds a command and those that it runs.
func (r *reader) command(c Command, depth int) error {
	if len(r.script.Commands) >= MaxCommands {
		return fmt.Errorf("the script has more than %d commands", MaxCommands)
	}
	if depth > maxNesting {
		return fmt.Errorf("commands in commands: more than %d levels", maxNesting)
	}
	index := len(r.script.Commands)
	r.script.Commands = append(r.script.Commands, c)
	if !c.Words[0].Known {
		return nil // policies refuse it
	}
	sets, err := builtin(c.Words)
	r.script.Assigned = append(r.script.Assigned, sets...)
	if err != nil {
		return err
	}
	wraps, err := r.runs(c, depth+1)
	r.script.Commands[index].Wraps = wraps && installed.MatchString(c.Words[0].Text)
	return err
}

// installed matches a program that PATH has, or that stands where the system has its own: one of
// the same name elsewhere may be anything.
var installed = regexp.MustCompile(`^((/usr)?/bin/)?[a-z]+$`)

// Program is the name of the program, without its directory; "" when it is not known.
func (c *Command) Program() string {
	if !c.Words[0].Known {
		return ""
	}
	return c.Words[0].Text[strings.LastIndexByte(c.Words[0].Text, '/')+1:]
}

var plain = regexp.MustCompile(`^[a-zA-Z0-9_./:=,+@%\[\]-]+$`)

// String is the command as it would be typed, with what is not known as it is written.
func (c *Command) String() string {
	texts := make([]string, len(c.Words))
	for i, word := range c.Words {
		texts[i] = word.Text
		if word.Known && !plain.MatchString(word.Text) {
			texts[i] = "'" + strings.ReplaceAll(word.Text, "'", `'\''`) + "'"
		}
	}
	return strings.Join(texts, " ")
}

// Evaluated reports whether a shell evaluates the value of a variable as code, or finds programs by
// it whatever a command is called.
func Evaluated(variable string) bool { return evaluated.MatchString(variable) }

var evaluated = regexp.MustCompile(`^(ENV|SHELLOPTS|PS[0-4]|PROMPT_COMMAND|MAILPATH|OPTIND|S?RANDOM|HISTCMD|SECONDS|LINENO|` +
	`EPOCH(SECONDS|REALTIME)|DIRSTACK|PIPESTATUS|GROUPS|FUNCNAME|COPROC|(BASH|COMP_|READLINE_).*)$`)
