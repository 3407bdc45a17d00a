package shell

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// isIn reports whether a word is known and in a list of words.
func isIn(list string, word Word) bool {
	return word.Known && slices.Contains(strings.Fields(list), word.Text)
}

func notUnderstood(words []Word, word Word) error {
	return fmt.Errorf("%s in the command %s is not understood", word.Text, (&Command{Words: words}).String())
}

// Builtins that evaluate arguments as code, change what names mean, or set variables in ways that
// are not followed.
const evaluating = "alias bind builtin caller compgen complete compopt declare typeset local enable eval fc getopts hash history " +
	"jobs let mapfile readarray readonly shopt trap unalias unset"

var (
	options      = regexp.MustCompile(`^([-+][eufvxC]*o?|errexit|nounset|pipefail|xtrace|noglob)$`) // of set, which change no meaning
	setsVariable = regexp.MustCompile(`^-|%[^a-zA-Z%]*[hlLjztq]*n`)                                 // in printf's first word
	isName       = regexp.MustCompile(`^[a-zA-Z_][a-zA-Z0-9_]*$`)
)

// Operators of test that evaluate nothing.
const (
	unary  = "-a -b -c -d -e -f -g -h -k -p -r -s -t -u -w -x -G -L -N -O -S -z -n"
	binary = "= == != < > -eq -ne -lt -le -gt -ge -nt -ot -ef"
)

// builtin returns the variables that a builtin sets. The error says that it is not understood, with
// these arguments. Programs that are no builtins have none.
func builtin(words []Word) (sets []string, err error) {
	args, understood := words[1:], true
	switch name := words[0].Text; name {
	case "test", "[": // some operators evaluate their operands
		if args = slices.Clone(args); name == "[" && len(args) > 0 {
			args = args[:len(args)-1]
		}
		if len(args) > 1 && isIn("!", args[0]) {
			args = args[1:]
		}
		understood = len(args) < 2 || len(args) == 2 && isIn(unary, args[0]) || len(args) == 3 && isIn(binary, args[1])
		understood = understood && !slices.ContainsFunc(args, func(w Word) bool { return w.Many })
	case "set":
		understood = !slices.ContainsFunc(args, func(w Word) bool { return !w.Known || !options.MatchString(w.Text) })
	case "printf":
		understood = len(args) == 0 || args[0].Known && !setsVariable.MatchString(args[0].Text)
	case "wait":
		understood = len(args) == 0 || len(args) == 1 && args[0].Text == "$!"
	case "read", "export":
		for _, arg := range args {
			variable, _, _ := strings.Cut(arg.Text, "=")
			if name == "read" && isIn("-r", arg) {
				continue
			}
			understood = understood && !arg.Many && isName.MatchString(variable) && !Evaluated(variable)
			sets = append(sets, variable)
		}
	default:
		understood = !isIn(evaluating, words[0])
	}
	if !understood {
		return nil, fmt.Errorf("the command %s is not understood: it may evaluate its arguments as code, or run other commands", (&Command{Words: words}).String())
	}
	return sets, nil
}

// runningOthers are programs that run other programs, given in their arguments or input, in ways
// that are not followed. An allow list names none of them; they are here for lists that deny.
const runningOthers = "busybox toybox coreutils eatmydata torsocks chroot setsid ionice chrt taskset setarch linux32 linux64 uname26 i386 i686 " +
	"x86_64 prlimit choom uclampset numactl flock systemd-inhibit systemd-run run0 unshare nsenter setpriv su runuser sg gosu su-exec doas " +
	"pkexec runcon fakeroot watch script strace ltrace valgrind firejail perf chronic tini dumb-init caffeinate catchsegv nocache setlock " +
	"ifne unbuffer stdbuf proxychains proxychains4 faketime dbus-run-session ssh-agent xvfb-run parallel sem hyperfine pee entr rlwrap " +
	"start-stop-daemon daemonize bwrap proot chpst softlimit envdir setuidgid tmux screen at batch " +
	"rbash zsh ksh rksh lksh mksh yash posh osh ysh fish csh tcsh pwsh nu elvish xonsh"

// loaders are dynamic loaders, and shells with a version in their names.
var loaders = regexp.MustCompile(`^(ld(-linux|-musl|64)?[-.].*|(b?a|da|z|m?k|lk|pdk|t?c|ya|fi)sh-?([0-9][0-9.]*|static))$`)

// wrapper is a program that runs another one, given in its arguments behind its own options.
type wrapper struct {
	flags    *regexp.Regexp // options that are one word
	valued   *regexp.Regexp // options whose value is the next word
	operands int            // arguments before the program
	assigns  bool           // NAME=VALUE may come before the program
	judged   bool           // it does more than to run the program
}

// wrappers has the options of GNU's programs, and of bash.
var wrappers = map[string]wrapper{ //nolint:gochecknoglobals // a constant table
	"env":     {flags: whole(`-|-i|-u.+|--ignore-environment|--unset=.+`), valued: whole(`-u|--unset`), assigns: true},
	"timeout": {flags: whole(`-v|-[ks].+|--(foreground|preserve-status|verbose)|--(kill-after|signal)=.+`), valued: whole(`-[ks]|--kill-after|--signal`), operands: 1},
	"nice":    {flags: whole(`-n?-?[0-9]+|--adjustment=.+`), valued: whole(`-n`)},
	"nohup":   {}, "exec": {}, "time": {},
	"command": {flags: whole(`-[pvV]`)},
	"xargs":   {flags: whole(`-[0rt]+|-[0rt]*[nPL][0-9]+|-[0rt]*I(\{\}|%)`), valued: whole(`-[0rt]*[nPLI]`)},
	"sudo":    {flags: whole(`-[EHn]+|-[ug].+|--(user|group)=.+`), valued: whole(`-[EHn]*[ug]|--user|--group`), assigns: true, judged: true},
}

func whole(pattern string) *regexp.Regexp { return regexp.MustCompile(`^(` + pattern + `)$`) }

// runs adds what a command runs, and reads scripts in its arguments. Names count in any case: some
// file systems find env as ENV.
func (r *reader) runs(c Command, depth int) (wraps bool, err error) {
	name, words := strings.ToLower(c.Program()), c.Words
	if isIn("genv gtimeout gnice gnohup gtime gxargs gfind", Word{Text: name, Known: true}) {
		name = name[1:] // as Homebrew calls those of GNU
	}
	w, isWrapper := wrappers[name]
	switch {
	case isIn("sh bash dash ash", Word{Text: name, Known: true}):
		return r.shell(c, depth)
	case name == "." || name == "source":
		return false, r.file(c, words[1:])
	case name == "find":
		return false, find(words)
	case isIn(runningOthers, Word{Text: name, Known: true}), loaders.MatchString(name):
		return false, fmt.Errorf("what %s runs is not understood", name)
	case !isWrapper:
		return false, nil
	}
	program, err := w.program(&c, name)
	if err != nil || len(program) == 0 {
		return false, err
	}
	if name == "xargs" {
		program = append(replacing(program), Word{Text: "...", Many: true})
	}
	return !w.judged, r.command(Command{Words: program, Assigned: c.Assigned}, depth)
}

// program returns the program that a wrapper runs, with its arguments. It adds the variables that
// the wrapper sets to those of the command.
func (w wrapper) program(c *Command, name string) ([]Word, error) {
	operands, words := w.operands, c.Words
	c.Assigned = slices.Clone(c.Assigned)
	for i := 1; i < len(words); i++ {
		word := words[i]
		variable, _, assigns := strings.Cut(word.Text, "=")
		valued := w.valued != nil && w.valued.MatchString(word.Text)
		switch {
		case w.assigns && assigns && !word.Many && isName.MatchString(variable) && !Evaluated(variable):
			c.Assigned = append(c.Assigned, variable)
		case !word.Known:
			return nil, notUnderstood(words, word)
		case valued, w.flags != nil && w.flags.MatchString(word.Text):
			if i++; !valued {
				i--
			} else if i < len(words) && (words[i].Many || strings.HasSuffix(word.Text, "I") && !isIn("{} %", words[i])) {
				return nil, notUnderstood(words, words[i])
			}
			if name == "env" { // a shell without PATH has one of its own
				c.Assigned = append(c.Assigned, "PATH")
			}
		case strings.HasPrefix(word.Text, "-"), w.assigns && assigns:
			return nil, notUnderstood(words, word)
		case operands > 0:
			operands--
		default:
			return words[i:], nil
		}
	}
	return nil, nil
}

// replacing is a command in which xargs or find may put other words for {} or %.
func replacing(command []Word) []Word {
	command = slices.Clone(command)
	for i, word := range command {
		if strings.Contains(word.Text, "{}") || strings.Contains(word.Text, "%") {
			command[i] = Word{Text: word.Text, Many: true}
		}
	}
	return command
}

var (
	shellOptions   = regexp.MustCompile(`^(-[euxv]*c?|--norc|--noprofile)$`)
	descriptorName = regexp.MustCompile(`(^|/)(?i:[0-9]*|std(in|out|err)|tty.*)$`)
	beginsAsPath   = regexp.MustCompile("^[a-zA-Z0-9_./][^$`\"']*$")
)

// shell reads the script of a shell from its arguments.
func (r *reader) shell(c Command, depth int) (wraps bool, err error) {
	script, i := false, 1
	for ; i < len(c.Words) && strings.HasPrefix(c.Words[i].Text, "-"); i++ {
		option := c.Words[i]
		if len(option.Text) < 2 {
			return false, notUnderstood(c.Words, option)
		}
		if strings.HasSuffix(option.Text, "o") && i+1 < len(c.Words) && isIn("errexit nounset pipefail xtrace", c.Words[i+1]) {
			i++
			option.Text = strings.TrimSuffix(option.Text, "o")
		}
		if !option.Known || !shellOptions.MatchString(option.Text) {
			return false, notUnderstood(c.Words, option)
		}
		script = script || strings.HasSuffix(option.Text, "c") && option.Text[1] != '-'
	}
	switch rest := c.Words[i:]; {
	case len(rest) == 0 && !script:
		r.readsInput = c.Program()
		return false, nil
	case len(rest) == 0:
		return false, nil // the shell refuses it
	case !script:
		return false, r.file(c, rest)
	case !rest[0].Known:
		return false, notUnderstood(c.Words, rest[0])
	case depth > maxNesting:
		return false, fmt.Errorf("scripts in scripts: more than %d levels", maxNesting)
	default:
		return true, r.read(rest[0].Text, depth)
	}
}

// file adds the file that a shell runs, which it may find as it finds programs. A name that may be
// an open descriptor, such as /dev/stdin, wherever it is relative to, is not understood.
func (r *reader) file(c Command, words []Word) error {
	if len(words) == 0 {
		return nil
	}
	if name := words[0]; !name.Known || strings.IndexAny(name.Text, "-+") == 0 || descriptorName.MatchString(name.Text) {
		return notUnderstood(c.Words, name)
	}
	r.script.Commands = append(r.script.Commands, Command{Words: words, Assigned: c.Assigned, Wraps: true})
	return nil
}

// find refuses -exec and its like, and words that may become such an option.
func find(words []Word) error {
	for i, word := range words {
		last := i+1 == len(words) || words[i+1].Known && strings.HasPrefix(words[i+1].Text, "-") // no command follows
		if isIn("-exec -execdir -ok -okdir", word) || !word.Known && !beginsAsPath.MatchString(word.Text) && (word.Many || !last) {
			return fmt.Errorf("%w; pipe the names to xargs", notUnderstood(words, word))
		}
	}
	return nil
}
