// Package shell reads command lines without running them: which programs a line starts, and with
// which words. Policies judge what it finds.
//
// It understands a small part of the shell's language, listed in parser and in runs: simple
// commands in lists, pipes, groups, if, while and for; words, with variables, globs and
// substitutions; here documents; and wrappers such as env, timeout, sh -c and xargs. bash and POSIX
// shells read this part alike. Everything else is an error, which says what was not understood.
// What is understood is listed, and not what is dangerous, since shells evaluate text as code in
// more constructs than can be listed.
//
// A word whose value is known only when the line runs, such as "$x" or *.go, is returned as not
// [Word.Known]. Structure is not checked: the shell itself refuses a "then" without an "if".
//
// Out of sight stay what a program does with its arguments (awk, python -c, make), and the content
// of files that are run.
package shell

import (
	"fmt"
	"strings"
)

// MaxScript bounds a script, in bytes, and MaxCommands what is found in it.
const (
	MaxScript   = 1 << 20
	MaxCommands = 10_000
	maxNesting  = 16 // scripts and substitutions in each other
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

// Parse reads a script for bash or sh. The error says what is not understood, and where; the script
// then has what was read before. It is safe for concurrent use.
func Parse(script string) (*Script, error) { return ParseInput(script, nil) }

// ParseInput is [Parse] for a script that is given a standard input, which may be a script as
// well; nil is none.
func ParseInput(script string, stdin []byte) (*Script, error) {
	r := &reader{script: &Script{}, hasInput: len(stdin) > 0}
	if err := r.read(script, 0); err != nil {
		return r.script, err
	}
	return r.script, r.finish()
}

// Argv is the script of a program that is started without a shell, with a standard input.
func Argv(argv []string, stdin []byte) (*Script, error) {
	words := make([]Word, len(argv))
	for i, arg := range argv {
		words[i] = Word{Text: arg, Known: true}
	}
	r := &reader{script: &Script{}, hasInput: len(stdin) > 0}
	if len(words) == 0 {
		return r.script, nil
	}
	if err := r.command(words, nil, 0); err != nil {
		return r.script, err
	}
	return r.script, r.finish()
}

// reader collects the commands of a script and of the scripts in its words.
type reader struct {
	script     *Script
	hasInput   bool   // something in the script, or its caller, writes to a standard input
	readsInput string // a shell that reads its script from there
}

// finish checks what is known at the end alone: whether a shell that reads a script from its
// standard input has one.
func (r *reader) finish() error {
	if r.readsInput != "" && r.hasInput {
		return fmt.Errorf("%s reads a script from its input; write it as %[1]s -c '...'", r.readsInput)
	}
	return nil
}

// read adds what a script does.
func (r *reader) read(script string, depth int) error {
	if len(script) > MaxScript {
		return fmt.Errorf("the script has %d bytes, at most %d can be read", len(script), MaxScript)
	}
	if depth > maxNesting {
		return fmt.Errorf("scripts in scripts: more than %d levels", maxNesting)
	}
	if err := checkCharacters(script); err != nil {
		return err
	}
	p := &parser{reader: r, text: script, depth: depth}
	return p.list(false)
}

// command adds a command and those that it wraps.
func (r *reader) command(words []Word, assigned []string, depth int) error {
	if len(r.script.Commands) >= MaxCommands {
		return fmt.Errorf("the script has more than %d commands", MaxCommands)
	}
	index := len(r.script.Commands)
	r.script.Commands = append(r.script.Commands, Command{Words: words, Assigned: assigned})
	if !words[0].Known {
		return nil // policies refuse it
	}
	sets, err := builtin(words)
	r.script.Assigned = append(r.script.Assigned, sets...)
	if err != nil {
		return err
	}
	inner, err := r.runs(words, depth)
	if err != nil {
		return err
	}
	r.script.Commands[index].Wraps = inner.wraps && isInstalled(words[0].Text)
	if len(inner.file) > 0 { // a shell may find it as it finds programs
		r.script.Commands = append(r.script.Commands, Command{Words: inner.file, Assigned: assigned, Wraps: true})
	}
	for _, found := range inner.commands {
		if depth >= maxNesting {
			return fmt.Errorf("commands in commands: more than %d levels", maxNesting)
		}
		all := append(append([]string(nil), assigned...), inner.assigned...)
		if err := r.command(found, all, depth+1); err != nil {
			return err
		}
	}
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
		if word.Known && (word.Text == "" || strings.Trim(word.Text, plainCharacters) != "") {
			texts[i] = "'" + strings.ReplaceAll(word.Text, "'", `'\''`) + "'"
		}
	}
	return strings.Join(texts, " ")
}

const plainCharacters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./:=,+@%[]"

// Evaluated reports whether a shell evaluates the value of a variable as code, or finds programs by
// it whatever a command is called.
func Evaluated(name string) bool {
	switch name {
	case "ENV", "SHELLOPTS", "PS0", "PS1", "PS2", "PS4", "PROMPT_COMMAND", "MAILPATH",
		"OPTIND", "RANDOM", "SRANDOM", "HISTCMD", "SECONDS", "LINENO", "EPOCHSECONDS", "EPOCHREALTIME",
		"DIRSTACK", "PIPESTATUS", "GROUPS", "FUNCNAME", "COPROC":
		return true
	default:
		return strings.HasPrefix(name, "BASH") || strings.HasPrefix(name, "COMP_") || strings.HasPrefix(name, "READLINE_")
	}
}
