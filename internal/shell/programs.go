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

// evaluating are builtins that evaluate arguments as code, change what names mean, or set variables
// in ways that are not followed.
const evaluating = "alias bind builtin caller compgen complete compopt declare typeset local enable eval fc getopts hash history " +
	"jobs let mapfile readarray readonly shopt trap unalias unset"

// runningOthers are programs that run other programs, given in their arguments or input, in ways
// that are not followed.
const runningOthers = "busybox toybox coreutils eatmydata torsocks chroot setsid ionice chrt taskset setarch linux32 linux64 uname26 i386 i686 " +
	"x86_64 prlimit choom uclampset numactl flock systemd-inhibit systemd-run run0 unshare nsenter setpriv su runuser sg gosu su-exec " +
	"pkexec runcon fakeroot watch script strace ltrace valgrind firejail perf chronic tini dumb-init caffeinate catchsegv nocache setlock " +
	"ifne unbuffer proxychains proxychains4 faketime dbus-run-session ssh-agent xvfb-run parallel sem hyperfine pee entr rlwrap " +
	"start-stop-daemon daemonize bwrap proot chpst softlimit envdir setuidgid tmux screen at batch " +
	"rbash zsh ksh rksh lksh mksh yash posh osh ysh fish csh tcsh pwsh nu elvish xonsh"

// loaders are dynamic loaders, and shells with a version in their names.
var loaders = regexp.MustCompile(`^(ld(-linux|-musl|64)?[-.].*|(b?a|da|z|m?k|lk|pdk|t?c|ya|fi)sh-?([0-9][0-9.]*|static))$`)

// The options of set that change nothing of what a command means.
var setOptions = regexp.MustCompile(`^[-+][eufvxC]*o?$`)

// setNames are those behind -o.
const setNames = "errexit nounset pipefail xtrace noglob verbose noclobber errtrace functrace"

// builtin returns the variables that a builtin sets. The error says that it is not understood, with
// these arguments. Programs that are no builtins have none.
func builtin(words []Word) (sets []string, err error) {
	name, args := words[0].Text, words[1:]
	understood := true
	switch {
	case isIn(evaluating, words[0]):
		understood = false
	case name == "test", name == "[":
		understood = tests(args)
	case name == "set":
		understood = sane(args)
	case name == "printf": // -v and %n set variables
		understood = len(args) == 0 || args[0].Known && !strings.HasPrefix(args[0].Text, "-") && !setsVariable.MatchString(args[0].Text)
	case name == "wait": // -p sets a variable
		understood = !slices.ContainsFunc(args, func(w Word) bool {
			return !w.Known && strings.Trim(w.Text, `"`) != "$!" || strings.HasPrefix(w.Text, "-")
		})
	case name == "read":
		sets, understood = names(args)
	case name == "export":
		for _, arg := range args {
			variable, _, _ := strings.Cut(arg.Text, "=")
			understood = understood && !arg.Many && isVariable(variable)
			sets = append(sets, variable)
		}
	}
	if !understood {
		return nil, fmt.Errorf("the command %s is not understood: it may evaluate its arguments as code, or run other commands", (&Command{Words: words}).String())
	}
	return sets, nil
}

var (
	setsVariable = regexp.MustCompile(`%[^a-zA-Z%]*[hlLjztq]*n`)
	isName       = regexp.MustCompile(`^[a-zA-Z_][a-zA-Z0-9_]*$`)
)

// isVariable reports whether a text is the name of a variable whose value is not evaluated.
func isVariable(text string) bool { return isName.MatchString(text) && !Evaluated(text) }

// names are the variables of read, with the options -r, -s and -p.
func names(args []Word) (sets []string, understood bool) {
	for i := 0; i < len(args); i++ {
		switch {
		case isIn("-r -s -rs", args[i]):
		case isIn("-p -rp", args[i]) && i+1 < len(args) && !args[i+1].Many:
			i++
		case args[i].Known && isVariable(args[i].Text):
			sets = append(sets, args[i].Text)
		default:
			return nil, false
		}
	}
	return sets, true
}

// sane reports whether set changes only options that change nothing of what commands mean.
func sane(args []Word) bool {
	for i := 0; i < len(args); i++ {
		if !args[i].Known || len(args[i].Text) < 2 || !setOptions.MatchString(args[i].Text) {
			return false
		}
		if strings.HasSuffix(args[i].Text, "o") {
			if i++; i < len(args) && !isIn(setNames, args[i]) {
				return false
			}
		}
	}
	return true
}

// tests reports whether test evaluates no operand, as -v does with a subscript.
func tests(args []Word) bool {
	if n := len(args); n > 0 && args[n-1].Text == "]" {
		args = args[:n-1]
	}
	for i, arg := range args {
		if arg.Many || isIn("-v -R", arg) && (i+1 >= len(args) || !args[i+1].Known || !isName.MatchString(args[i+1].Text)) {
			return false
		}
	}
	if !slices.ContainsFunc(args, func(w Word) bool { return !w.Known }) {
		return true
	}
	for len(args) > 1 && isIn("!", args[0]) {
		args = args[1:]
	}
	switch len(args) { // a word that is not known must be no operator
	case 1:
		return true
	case 2:
		return isIn("-a -b -c -d -e -f -g -h -k -p -r -s -t -u -w -x -G -L -N -O -S -z -n", args[0])
	case 3:
		return isIn("= == != < > -eq -ne -lt -le -gt -ge -nt -ot -ef", args[1])
	default:
		return false
	}
}

// wrapped is what a command runs.
type wrapped struct {
	commands [][]Word
	assigned []string // for them
	wraps    bool     // the command does nothing else
	file     []Word   // a script that a shell runs, with its arguments
}

// wrapper is a program that runs another one, given in its arguments behind its own options.
type wrapper struct {
	flags    string // short options without a value
	valued   string // short options with a value
	long     string // long options, with a value behind "=" if any
	longWith string // long options whose value is in the same word or the next one
	operands int    // arguments before the program
	assigns  bool   // NAME=VALUE may come before the program
	judged   bool   // it does more than to run the program
}

// wrapperOf returns the wrapper of a name. Options are those of GNU, and of bash.
func wrapperOf(name string) (wrapper, bool) {
	switch name {
	case "env":
		return wrapper{flags: "i0v", valued: "uC", long: "--ignore-environment --null", longWith: "--unset --chdir", assigns: true}, true
	case "timeout":
		return wrapper{flags: "vpf", valued: "ks", long: "--foreground --preserve-status --verbose", longWith: "--kill-after --signal", operands: 1}, true
	case "nice":
		return wrapper{valued: "n", longWith: "--adjustment"}, true
	case "stdbuf":
		return wrapper{valued: "ioe", longWith: "--input --output --error"}, true
	case "nohup", "exec", "time":
		return wrapper{}, true
	case "command":
		return wrapper{flags: "p"}, true
	case "xargs":
		return wrapper{
			flags: "0rtpx", valued: "InPLdaEs", long: "--null --no-run-if-empty --verbose",
			longWith: "--max-args --max-procs --delimiter --arg-file",
		}, true
	case "sudo", "doas":
		return wrapper{flags: "EHnSbkKP", valued: "ugpCDRTUh", longWith: "--user --group", assigns: true, judged: true}, true
	default:
		return wrapper{}, false
	}
}

// runs returns the commands that a command runs, and reads scripts in its arguments.
func (r *reader) runs(words []Word, depth int) (wrapped, error) {
	name, args := programOf(words[0]), words[1:]
	if isIn("genv gtimeout gnice gnohup gstdbuf gtime gxargs gfind", Word{Text: name, Known: true}) {
		name = name[1:] // as Homebrew calls those of GNU
	}
	switch name {
	case "sh", "bash", "dash", "ash":
		return r.shell(words, depth)
	case ".", "source":
		if len(args) > 0 && !isFile(args[0]) {
			return wrapped{}, notUnderstood(words, args[0])
		}
		return wrapped{file: args}, nil
	case "find":
		return find(words)
	case "command":
		if len(args) > 0 && isIn("-v -V", args[0]) {
			return wrapped{}, nil
		}
	}
	if lower := strings.ToLower(name); lower != name && runsOthers(lower) {
		return wrapped{}, fmt.Errorf("what %s runs is not understood: some file systems find %s by this name", name, lower)
	}
	if isIn(runningOthers, Word{Text: name, Known: true}) || loaders.MatchString(name) {
		return wrapped{}, fmt.Errorf("what %s runs is not understood", name)
	}
	w, known := wrapperOf(name)
	if !known {
		return wrapped{}, nil
	}
	found, err := w.program(words)
	if err == nil && name == "xargs" && len(found.commands) > 0 {
		err = withInput(&found, args)
	}
	return found, err
}

// runsOthers reports whether a program runs other programs.
func runsOthers(name string) bool {
	_, wraps := wrapperOf(name)
	return wraps || isIn("sh bash dash ash find genv gtimeout gnice gnohup gstdbuf gtime gxargs gfind "+runningOthers, Word{Text: name, Known: true}) || loaders.MatchString(name)
}

func notUnderstood(words []Word, word Word) error {
	return fmt.Errorf("%s in the command %s is not understood", word.Text, (&Command{Words: words}).String())
}

// emptied matches options with which env takes variables away.
var emptied = regexp.MustCompile(`^(-[0v]*[iu]|--ignore-environment|--unset)`)

// program returns the program that a wrapper runs.
func (w wrapper) program(words []Word) (wrapped, error) {
	found := wrapped{wraps: !w.judged}
	operands := w.operands
	for i := 1; i < len(words); i++ {
		word := words[i]
		name, _, assigns := strings.Cut(word.Text, "=")
		switch {
		case w.assigns && assigns && isName.MatchString(name) && !word.Many:
			if Evaluated(name) {
				return found, notUnderstood(words, word)
			}
			found.assigned = append(found.assigned, name)
		case !word.Known:
			return found, notUnderstood(words, word)
		case word.Text == "--":
		case word.Text == "-" && w.assigns: // env - is env -i
			found.assigned = append(found.assigned, "PATH")
		case len(word.Text) > 1 && word.Text[0] == '-':
			skip, known := w.option(word.Text)
			if !known {
				return found, notUnderstood(words, word)
			}
			if value := i + skip; value < len(words) && words[value].Many { // the words behind it may be its own
				return found, notUnderstood(words, words[value])
			}
			if w.assigns && !w.judged && emptied.MatchString(word.Text) { // a shell without PATH has one of its own
				found.assigned = append(found.assigned, "PATH")
			}
			found.wraps = found.wraps && (!w.assigns || !strings.HasPrefix(word.Text, "-C") && name != "--chdir") // it changes the directory as well
			i += skip
		case w.assigns && assigns: // a name that no shell sets
			return found, notUnderstood(words, word)
		case operands > 0:
			operands--
		default:
			found.commands = [][]Word{words[i:]}
			return found, nil
		}
	}
	return wrapped{}, nil
}

// option reads an option: how many further words its value has, and whether it is known.
func (w wrapper) option(text string) (skip int, known bool) {
	if strings.HasPrefix(text, "--") {
		name, _, attached := strings.Cut(text, "=")
		switch {
		case slices.Contains(strings.Fields(w.long), name), slices.Contains(strings.Fields(w.longWith), name) && attached:
			return 0, true
		case slices.Contains(strings.Fields(w.longWith), name):
			return 1, true
		}
		return 0, false
	}
	for i := 1; i < len(text); i++ {
		switch {
		case strings.IndexByte(w.flags, text[i]) >= 0:
		case strings.IndexByte(w.valued, text[i]) < 0:
			return 0, false
		case i+1 < len(text): // the value is attached
			return 0, true
		default:
			return 1, true
		}
	}
	return 0, true
}

var (
	replaces    = regexp.MustCompile(`^-[0rtpx]*I`)
	besideThose = regexp.MustCompile(`^-[0rtpx]*(P[0-9]+)?$`)
)

// withInput adds to the command of xargs what it reads from its input: words behind it, or in the
// position of a text. Other options may take back that words are replaced.
func withInput(found *wrapped, args []Word) error {
	command := found.commands[0]
	options := args[:len(args)-len(command)]
	at := slices.IndexFunc(options, func(w Word) bool { return replaces.MatchString(w.Text) })
	if at < 0 {
		found.commands[0] = append(slices.Clone(command), Word{Text: "...", Many: true})
		return nil
	}
	text, rest := replaces.ReplaceAllString(options[at].Text, ""), at+1
	if text == "" && rest < len(options) {
		if !options[rest].Known {
			return notUnderstood(args, options[rest])
		}
		text, rest = options[rest].Text, rest+1
	}
	for _, option := range slices.Concat(options[:at], options[rest:]) {
		if text == "" || !besideThose.MatchString(option.Text) {
			return notUnderstood(args, option)
		}
	}
	found.commands[0] = replacing(command, text)
	return nil
}

// replacing is a command in which a text stands for something that is not known.
func replacing(command []Word, text string) []Word {
	command = slices.Clone(command)
	for i := range command {
		if strings.Contains(command[i].Text, text) {
			command[i].Known = false
		}
	}
	return command
}

var shellOptions = regexp.MustCompile(`^-[eufvxClc]*o?$`)

// shell reads the script of a shell from its arguments. A shell that runs a file stays a command
// like any other.
func (r *reader) shell(words []Word, depth int) (wrapped, error) {
	script, plain := false, true
	i := 1
	for ; i < len(words) && words[i].Known && (strings.HasPrefix(words[i].Text, "-") || strings.HasPrefix(words[i].Text, "+")); i++ {
		text := words[i].Text
		if text == "--norc" || text == "--noprofile" {
			continue
		}
		if !shellOptions.MatchString(text) || text == "-" {
			return wrapped{}, notUnderstood(words, words[i])
		}
		script = script || strings.Contains(text, "c")
		plain = plain && !strings.Contains(text, "l") // it reads a profile
		if strings.HasSuffix(text, "o") {
			if i++; i >= len(words) || !isIn(setNames, words[i]) {
				return wrapped{}, notUnderstood(words, Word{Text: text})
			}
		}
	}
	switch rest := words[i:]; {
	case len(rest) == 0 && script:
		return wrapped{}, nil // the shell refuses it
	case len(rest) == 0:
		r.readsInput = programOf(words[0])
		return wrapped{}, nil
	case script && rest[0].Known:
		return wrapped{wraps: plain}, r.read(rest[0].Text, depth+1)
	case !script && isFile(rest[0]):
		return wrapped{file: rest}, nil
	default:
		return wrapped{}, notUnderstood(words, rest[0])
	}
}

var descriptorName = regexp.MustCompile(`^(?i:[0-9]*|std(in|out|err)|tty.*)$`)

// isFile reports whether a word is a path that surely is no open descriptor, such as /dev/stdin,
// wherever it is relative to.
func isFile(word Word) bool {
	return word.Known && !strings.HasPrefix(word.Text, "-") && !descriptorName.MatchString(programOf(word))
}

// find returns the commands behind -exec and its like. A word that is not known must not be able to
// be such an option, or the end of its command.
func find(words []Word) (wrapped, error) {
	found := wrapped{}
	for i := 1; i < len(words); i++ {
		word := words[i]
		if !word.Known && !beginsAsPath.MatchString(word.Text) &&
			(word.Many || i+1 < len(words) && (!words[i+1].Known || !strings.HasPrefix(words[i+1].Text, "-"))) {
			return found, notUnderstood(words, word)
		}
		if !isIn("-exec -execdir -ok -okdir", word) {
			continue
		}
		end := i + 1
		for end < len(words) && words[end].Text != ";" && (words[end].Text != "+" || words[end-1].Text != "{}") {
			if !words[end].Known {
				return found, notUnderstood(words, words[end])
			}
			end++
		}
		if end > i+1 {
			found.commands = append(found.commands, replacing(words[i+1:end], "{}"))
		}
		i = end
	}
	return found, nil
}

// beginsAsPath matches what is not known, but begins with a name that is: src/*.
var beginsAsPath = regexp.MustCompile("^[a-zA-Z0-9_./][^$`\"']*$")
