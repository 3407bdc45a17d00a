package shell

import (
	"slices"
	"strings"
)

// wrapped is what a command runs.
type wrapped struct {
	commands [][]Word
	assigned []string // for them
	wraps    bool     // the command does nothing else
	script   *Word    // for sh, instead of commands
}

// unwrap returns the commands that a command runs, and adds those of scripts in its arguments.
func (r *reader) unwrap(words []Word, at scope) (wrapped, error) {
	name, arguments := programOf(words[0]), words[1:]
	if isIn("genv gtimeout gnice gnohup gstdbuf gtime gxargs gfind", Word{Text: name, Known: true}) {
		name = name[1:] // as Homebrew calls those of GNU
	}
	switch name {
	case "sh", "bash", "dash", "ash", "rbash":
		at.posix = name != "bash" && name != "rbash"
		return r.shellScript(arguments, at)
	case "zsh", "ksh", "mksh", "yash", "posh", "osh", "ysh", "fish", "csh", "tcsh", "pwsh", "nu", "elvish", "xonsh", "bash-static":
		return r.otherShell(arguments, at)
	case ".", "source":
		return wrapped{}, r.source(arguments, at)
	case "eval":
		return wrapped{wraps: len(arguments) > 0}, r.joined(arguments, at)
	case "trap":
		if len(arguments) > 0 && arguments[0].Text == "--" {
			arguments = arguments[1:]
		}
		if len(arguments) > 1 || len(arguments) == 1 && !arguments[0].Known {
			return wrapped{}, r.joined(arguments[:1], at)
		}
		return wrapped{}, nil
	case "at", "batch":
		if at.stdin.given {
			return wrapped{}, r.readInput(at)
		}
		return wrapped{}, nil
	case "find":
		return wrapped{commands: executedByFind(arguments)}, nil
	}
	w, known := wrapperOf(name, arguments)
	if !known {
		return wrapped{}, nil
	}
	found := w.program(arguments)
	switch {
	case found.script != nil:
		return wrapped{wraps: found.wraps}, r.joined([]Word{*found.script}, at)
	case w.joined && len(found.commands) > 0:
		return wrapped{wraps: found.wraps}, r.joined(found.commands[0], at)
	case w.shell && len(found.commands) == 0 && at.stdin.given:
		return wrapped{}, r.readInput(at)
	}
	if name == "xargs" {
		found.commands = withInput(found.commands, arguments)
	}
	return found, nil
}

// program returns the program that a wrapper runs. Behind an option that is not known it is a word
// that is not known.
func (w wrapper) program(words []Word) wrapped {
	found := wrapped{wraps: !w.judged}
	operands := w.operands
	if operands < 0 {
		return wrapped{commands: [][]Word{{{Text: "(what its arguments say)", Many: true}}}}
	}
	for i := 0; i < len(words); i++ {
		word := words[i]
		switch {
		case !word.Known:
			found.commands = [][]Word{{word}}
			return found
		case word.Text == "--", word.Text == "-" && w.assigns: // env - is env -i
		case strings.HasPrefix(word.Text, "-") && word.Text != "-":
			if found.script = w.scriptOf(words[i:]); found.script != nil {
				return found
			}
			skip, known, inert := w.option(word.Text)
			if inert {
				return wrapped{}
			}
			if !known {
				found.commands = [][]Word{{{Text: strings.TrimSpace(word.Text + " ..."), Many: true}}}
				return found
			}
			if w.assigns && (strings.HasPrefix(word.Text, "--chdir") || !strings.HasPrefix(word.Text, "--") && strings.Contains(word.Text, "C")) {
				found.wraps = false // it changes the directory as well
			}
			i += skip
		case w.assigns && strings.Contains(word.Text, "="):
			name, _, _ := strings.Cut(word.Text, "=")
			found.assigned = append(found.assigned, name)
		case operands > 0 && (!w.numbers || word.Text[0] >= '0' && word.Text[0] <= '9'):
			operands--
		default:
			found.commands = [][]Word{words[i:]}
			return found
		}
	}
	return wrapped{}
}

// scriptOf is the script that an option has as its value, attached or as the next word; nil when it
// has none.
func (w wrapper) scriptOf(words []Word) *Word {
	text := words[0].Text
	value, attached, is := "", false, false
	if name, long := strings.CutPrefix(text, "--"); long {
		name, value, attached = strings.Cut(name, "=")
		is = slices.Contains(w.scripts, name)
	} else if at := strings.IndexAny(text, w.script); at > 0 && !strings.ContainsAny(text[:at], w.valued) {
		value, attached, is = text[at+1:], at+1 < len(text), true
	}
	switch {
	case !is:
		return nil
	case attached:
		return &Word{Text: value, Known: true}
	case len(words) > 1:
		return &words[1]
	default:
		return nil
	}
}

// option reads an option: how many words its value has beside it, and whether it is known.
func (w wrapper) option(text string) (skip int, known, inert bool) {
	if name, long := strings.CutPrefix(text, "--"); long {
		name, _, attached := strings.Cut(name, "=")
		switch {
		case w.loose, slices.Contains(w.longWith, name) && attached, slices.Contains(w.long, name):
			return 0, true, false
		case slices.Contains(w.longWith, name):
			return 1, true, false
		}
		return 0, false, false
	}
	for i := 1; i < len(text); i++ {
		c := text[i]
		switch {
		case strings.IndexByte(w.inert, c) >= 0:
			return 0, true, true
		case strings.IndexByte(w.flags, c) >= 0:
		case strings.IndexByte(w.valued, c) >= 0:
			if i+1 < len(text) { // the value is attached
				return 0, true, false
			}
			return 1, true, false
		default:
			return 0, false, false
		}
	}
	return 0, true, false
}

// withInput adds to the commands of xargs what it reads from its input: words behind them, or in
// the place of a text.
func withInput(commands [][]Word, arguments []Word) [][]Word {
	if len(commands) == 0 {
		return nil
	}
	command := commands[0]
	text, several := "", false
	for i, word := range arguments[:len(arguments)-min(len(command), len(arguments))] {
		several = several || strings.HasPrefix(word.Text, "--max-") || !strings.HasPrefix(word.Text, "--") && strings.ContainsAny(word.Text, "Ln")
		letters, long := strings.CutPrefix(word.Text, "--replace")
		at := strings.IndexByte(word.Text, 'I')
		switch {
		case long && letters == "":
			text = "{}"
		case long:
			text = strings.TrimPrefix(letters, "=")
		case !strings.HasPrefix(word.Text, "-") || strings.HasPrefix(word.Text, "--") || at < 0:
		case at+1 < len(word.Text):
			text = word.Text[at+1:]
		case i+1 < len(arguments):
			text = arguments[i+1].Text
		}
	}
	if text == "" {
		return [][]Word{append(slices.Clone(command), Word{Text: "...", Many: true})}
	}
	if command = replacing(command, text); several { // these may take back that words are replaced
		command = append(command, Word{Text: "...", Many: true})
	}
	return [][]Word{command}
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

// The long options of bash with a value, and those without that change nothing of what a script
// means.
const (
	shellValued = "rcfile init-file"
	shellFlags  = "norc noprofile posix verbose login noediting restricted help version"
)

// shellScript reads the script of a shell, from its arguments or its standard input. A shell that
// runs a file stays a command like any other.
func (r *reader) shellScript(words []Word, at scope) (wrapped, error) {
	inArguments, fromInput, plain := false, false, true
	i := 0
options:
	for ; i < len(words); i++ {
		word := words[i]
		long := Word{Text: strings.TrimLeft(word.Text, "-"), Known: true}
		switch text := word.Text; {
		case !word.Known:
			return wrapped{commands: [][]Word{{{Text: text, Many: true}}}}, nil
		case text == "--", text == "-":
			i++
			break options
		case len(text) < 2 || text[0] != '-' && text[0] != '+':
			break options
		case isIn(shellValued, long):
			plain = false // it runs the file as well
			i++
		case isIn(shellFlags, long):
			plain = plain && long.Text != "login"
		case strings.HasPrefix(text, "--"):
			return wrapped{commands: [][]Word{{{Text: text + " ...", Many: true}}}}, nil
		default:
			inArguments = inArguments || text[0] == '-' && strings.Contains(text, "c")
			fromInput = fromInput || strings.Contains(text, "s")
			plain = plain && strings.Trim(text[1:], setLetters+"csO") == ""
			for range strings.Count(text, "o") + strings.Count(text, "O") {
				if i++; i < len(words) {
					plain = plain && isIn(setNames+" "+shoptNames, words[i])
				}
			}
		}
	}
	words = words[min(i, len(words)):]
	switch {
	case inArguments && len(words) > 0:
		return wrapped{wraps: plain}, r.joined(words[:1], at)
	case inArguments, len(words) > 0 && !fromInput && !isDescriptor(words[0].Text):
		return wrapped{}, nil // a file
	case !at.stdin.given && len(words) == 0:
		return wrapped{}, nil // nothing, or what is typed
	default:
		return wrapped{wraps: plain && at.stdin.text != nil}, r.readInput(at)
	}
}

// otherShell is for shells with a language of their own: only a file that they run is known.
func (r *reader) otherShell(words []Word, at scope) (wrapped, error) {
	if len(words) == 0 && !at.stdin.given || len(words) > 0 && words[0].Known && !strings.HasPrefix(words[0].Text, "-") && !isDescriptor(words[0].Text) {
		return wrapped{}, nil
	}
	return wrapped{commands: [][]Word{{{Text: "(a script in another language)", Many: true}}}}, nil
}

// source reads the script that source has from its input; a file stays a command like any other.
func (r *reader) source(words []Word, at scope) error {
	if len(words) > 0 && words[0].Text == "--" {
		words = words[1:]
	}
	switch {
	case len(words) == 0:
		return nil
	case !words[0].Known:
		return r.command([]Word{{Text: words[0].Text, Many: true}}, nil, at)
	case isDescriptor(words[0].Text):
		return r.readInput(at)
	default:
		return nil
	}
}

// joined reads words that are a script, joined with blanks. When one is not known, what
// they run is not.
func (r *reader) joined(words []Word, at scope) error {
	texts := make([]string, len(words))
	for i, word := range words {
		if !word.Known {
			return r.command([]Word{{Text: word.Text, Many: true}}, nil, at)
		}
		texts[i] = word.Text
	}
	at.depth++
	at.stdin.text = nil // several commands may read it
	return r.read(strings.Join(texts, " "), at)
}

// executedByFind returns the commands behind -exec and its like. A word that may become such an
// option hides one: when it is a single word, and what follows may be a program up to its end.
func executedByFind(words []Word) [][]Word {
	var found [][]Word
	for i := 0; i < len(words); i++ {
		if !words[i].Known && !words[i].plain {
			rest := words[i+1:]
			ends := func(w Word) bool { return !w.Known || w.Text == ";" || w.Text == "+" }
			if words[i].Many || len(rest) > 1 && (!rest[0].Known || !strings.HasPrefix(rest[0].Text, "-")) && slices.ContainsFunc(rest[1:], ends) {
				found = append(found, []Word{{Text: words[i].Text, Many: true}})
			}
		}
		switch words[i].Text {
		case "-exec", "-execdir", "-ok", "-okdir":
		default:
			continue
		}
		end := i + 1
		for end < len(words) && words[end].Text != ";" && (words[end].Text != "+" || words[end-1].Text != "{}") {
			end++
		}
		if end > i+1 {
			found = append(found, replacing(words[i+1:end], "{}"))
		}
		i = end
	}
	return found
}
