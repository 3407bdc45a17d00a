package shell

import (
	"slices"
	"strings"
)

// wrapper is a program that runs another one, given in its arguments.
type wrapper struct {
	flags    string   // short options without a value
	valued   string   // short options with a value
	long     []string // long options without a value
	longWith []string // long options with a value: --name value or --name=value
	operands int      // arguments before the program
	assigns  bool     // NAME=VALUE may come before the program
	judged   bool     // it does more than to run the program
	inert    string   // short options with which no program is run
}

// wrapperOf returns the wrapper of a name.
func wrapperOf(name string) (wrapper, bool) {
	switch name {
	case "env":
		return wrapper{flags: "i0v", valued: "uC", long: []string{"ignore-environment", "null"}, longWith: []string{"unset", "chdir"}, assigns: true}, true
	case "nohup", "setsid", "builtin":
		return wrapper{flags: "cfw"}, true
	case "command":
		return wrapper{flags: "p", inert: "vV"}, true
	case "exec":
		return wrapper{flags: "cl", valued: "a"}, true
	case "timeout":
		return wrapper{flags: "v", valued: "ks", long: []string{"foreground", "preserve-status", "verbose"}, longWith: []string{"kill-after", "signal"}, operands: 1}, true
	case "nice":
		return wrapper{valued: "n", longWith: []string{"adjustment"}}, true
	case "ionice":
		return wrapper{flags: "t", valued: "cn"}, true
	case "stdbuf":
		return wrapper{valued: "ioe", longWith: []string{"input", "output", "error"}}, true
	case "time":
		return wrapper{flags: "pvaq", valued: "fo"}, true
	case "xargs":
		return wrapper{
			flags: "0rtpx", valued: "InPLdaEs", long: []string{"null", "no-run-if-empty", "verbose"},
			longWith: []string{"replace", "max-args", "max-procs", "max-lines", "delimiter", "arg-file"},
		}, true
	case "sudo", "doas":
		return wrapper{flags: "EHnSbkKP", valued: "ugpCDRTUh", longWith: []string{"user", "group"}, assigns: true, judged: true}, true
	case "chroot":
		return wrapper{operands: 1, judged: true}, true
	default:
		return wrapper{}, false
	}
}

// unwrap returns the commands that a command runs; wraps says that it does nothing else.
func (r *reader) unwrap(words []Word, line, depth int) (inner [][]Word, wraps bool, err error) {
	name, arguments := programOf(words[0]), words[1:]
	switch name {
	case "sh", "bash", "dash", "ash", "ksh", "zsh":
		return r.shellScript(arguments, line, depth)
	case "eval":
		return nil, len(arguments) > 0, r.joined(arguments, line, depth)
	case "trap":
		if len(arguments) > 1 {
			return nil, false, r.joined(arguments[:1], line, depth)
		}
		return nil, false, nil
	case "alias":
		return nil, false, r.aliases(arguments, line, depth)
	case "find":
		return executedByFind(arguments), false, nil
	}
	w, known := wrapperOf(name)
	if !known {
		return nil, false, nil
	}
	rest, found := w.program(arguments)
	if !found {
		return nil, false, nil
	}
	return [][]Word{rest}, !w.judged, nil
}

// program returns the words of the program that a wrapper runs. Behind an option that
// is not known it is a word that is not known.
func (w wrapper) program(words []Word) (rest []Word, found bool) {
	operands := w.operands
	for i := 0; i < len(words); i++ {
		word := words[i]
		switch {
		case !word.Known:
			return []Word{word}, true
		case word.Text == "--":
		case strings.HasPrefix(word.Text, "-") && word.Text != "-":
			skip, known, inert := w.option(word.Text)
			if inert {
				return nil, false
			}
			if !known {
				return []Word{{Text: strings.TrimSpace(word.Text + " ...")}}, true
			}
			i += skip
		case w.assigns && strings.Contains(word.Text, "="):
		case operands > 0:
			operands--
		default:
			return words[i:], true
		}
	}
	return nil, false
}

// option reads an option: how many words its value has beside it, and whether it is known.
func (w wrapper) option(text string) (skip int, known, inert bool) {
	if name, long := strings.CutPrefix(text, "--"); long {
		name, _, attached := strings.Cut(name, "=")
		switch {
		case slices.Contains(w.longWith, name) && attached, slices.Contains(w.long, name):
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

// shellScript reads the script of sh -c. A shell that runs a file, or its standard
// input, stays a command like any other.
func (r *reader) shellScript(words []Word, line, depth int) (inner [][]Word, wraps bool, err error) {
	for i := 0; i < len(words); i++ {
		word := words[i]
		switch text := word.Text; {
		case !word.Known:
			return [][]Word{{word}}, false, nil
		case !strings.HasPrefix(text, "-") && !strings.HasPrefix(text, "+"):
			return nil, false, nil
		case text == "--rcfile", text == "--init-file":
			i++
		case strings.HasPrefix(text, "--"):
		case strings.Contains(text, "c") && i+1 < len(words):
			if strings.ContainsAny(text, "oO") && i+2 < len(words) { // -oc pipefail script
				i++
			}
			return nil, true, r.joined(words[i+1:i+2], line, depth)
		case strings.HasSuffix(text, "o"), strings.HasSuffix(text, "O"):
			i++
		}
	}
	return nil, false, nil
}

// joined reads words that are a script, joined with blanks. When one is not known, what
// they run is not.
func (r *reader) joined(words []Word, line, depth int) error {
	texts := make([]string, len(words))
	for i, word := range words {
		if !word.Known {
			return r.command([]Word{{Text: word.Text}}, nil, line, depth)
		}
		texts[i] = word.Text
	}
	return r.read(strings.Join(texts, " "), depth+1)
}

// aliases reads what aliases stand for.
func (r *reader) aliases(words []Word, line, depth int) error {
	for _, word := range words {
		_, value, _ := strings.Cut(word.Text, "=")
		if err := r.joined([]Word{{Text: value, Known: word.Known}}, line, depth); err != nil {
			return err
		}
	}
	return nil
}

// executedByFind returns the commands behind -exec and its like.
func executedByFind(words []Word) [][]Word {
	var found [][]Word
	for i := 0; i < len(words); i++ {
		switch words[i].Text {
		case "-exec", "-execdir", "-ok", "-okdir":
		default:
			continue
		}
		end := i + 1
		for end < len(words) && words[end].Text != ";" && words[end].Text != "+" {
			end++
		}
		if end > i+1 {
			found = append(found, words[i+1:end])
		}
		i = end
	}
	return found
}
