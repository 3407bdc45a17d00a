package shell

import (
	"slices"
	"strings"
)

// builtin returns the variables that a builtin of bash sets, and whether it evaluates none of its
// arguments as code. Programs that are none are harmless here, and so are those that unwrap reads.
func builtin(words []Word) (sets []string, harmless bool) {
	if !words[0].Known {
		return nil, true
	}
	args := words[1:]
	switch words[0].Text {
	case "bind", "compgen", "complete", "compopt", "declare", "typeset", "local", "export", "readonly", "let", "enable", "fc", "history":
		return nil, false // they evaluate arguments, or change what names mean
	case "alias":
		return nil, !slices.ContainsFunc(args, func(w Word) bool { return !w.Known || strings.Contains(w.Text, "=") })
	case "jobs":
		return nil, hasOnly(args, "lnprs")
	case "hash":
		return nil, hasOnly(args, "lrdt")
	case "test", "[":
		return nil, tests(args)
	case "set":
		return nil, setOptions(args)
	case "shopt":
		return nil, shoptOptions(args)
	case "read":
		return names(args, "ers", "adinNptu", "a", anyName)
	case "mapfile", "readarray":
		return names(args, "t", "dnOsu", "", anyName)
	case "printf":
		return names(args, "", "v", "v", nil)
	case "wait":
		return names(args, "fn", "p", "p", nil)
	case "getopts":
		return names(args, "", "", "", func(i int) bool { return i == 1 })
	case "unset":
		return names(args, "fvn", "", "", anyName)
	default:
		return nil, true
	}
}

func anyName(int) bool { return true }

// names reads the options of a builtin that sets variables: flags, options with a value, and those
// of them whose value is a name. isName says which operands are names; nil is none. A name that is
// not known, or has a subscript, may hold code.
func names(args []Word, flags, valued, named string, isVariable func(i int) bool) (sets []string, harmless bool) {
	i := 0
	for ; i < len(args); i++ {
		word := args[i]
		if !word.Known {
			if !word.plain {
				return nil, false
			}
			if word.Many { // it may be none
				continue
			}
			break
		}
		if word.Text == "--" {
			i++
			break
		}
		if len(word.Text) < 2 || word.Text[0] != '-' {
			break
		}
		for j := 1; j < len(word.Text); j++ {
			if strings.IndexByte(flags, word.Text[j]) >= 0 {
				continue
			}
			if strings.IndexByte(valued, word.Text[j]) < 0 {
				return nil, false
			}
			value := Word{Text: word.Text[j+1:], Known: true}
			if value.Text == "" {
				if i++; i >= len(args) {
					return sets, true // an error of its own
				}
				value = args[i]
			}
			if value.Many || strings.IndexByte(named, word.Text[j]) >= 0 && !isVariableName(value) {
				return nil, false
			}
			if strings.IndexByte(named, word.Text[j]) >= 0 {
				sets = append(sets, value.Text)
			}
			break
		}
	}
	for at, word := range args[i:] {
		if isVariable == nil || !isVariable(at) {
			if isVariable != nil && at == 0 && word.Many { // getopts
				return nil, false // the name may be in it
			}
			continue
		}
		if !isVariableName(word) {
			return nil, false
		}
		sets = append(sets, word.Text)
	}
	return sets, true
}

// isVariableName reports whether a word is the name of a variable whose value is not evaluated.
func isVariableName(word Word) bool { return word.Known && isName(word.Text) && !Evaluated(word.Text) }

// hasOnly reports whether words that begin with '-' have only these letters.
func hasOnly(args []Word, letters string) bool {
	return !slices.ContainsFunc(args, func(w Word) bool {
		return !w.Known && !w.plain || w.Known && strings.HasPrefix(w.Text, "-") && strings.Trim(w.Text[1:], letters) != ""
	})
}

// The operators of test that evaluate no operand.
const (
	unaryTests  = "-a -b -c -d -e -f -g -h -k -p -r -s -t -u -w -x -G -L -N -O -S -z -n -o"
	binaryTests = "= == != < > -eq -ne -lt -le -gt -ge -nt -ot -ef"
)

// isIn reports whether a word is known and in a list of words.
func isIn(list string, word Word) bool {
	return word.Known && slices.Contains(strings.Fields(list), word.Text)
}

// tests reports whether test compares values without evaluating one, as -v does with a subscript.
func tests(args []Word) bool {
	if n := len(args); n > 0 && args[n-1].Text == "]" {
		args = args[:n-1]
	}
	if !slices.ContainsFunc(args, func(w Word) bool { return !w.Known }) {
		for i := range args {
			if args[i].Text == "-v" && i+1 < len(args) && !isName(args[i+1].Text) {
				return false
			}
		}
		return true
	}
	if slices.ContainsFunc(args, func(w Word) bool { return w.Many && !w.plain }) {
		return false // it may hold the operator, too
	}
	for len(args) > 1 && args[0].Known && args[0].Text == "!" {
		args = args[1:]
	}
	switch len(args) {
	case 1:
		return true
	case 2:
		return isIn(unaryTests, args[0])
	case 3:
		return isIn(binaryTests, args[1])
	default:
		return false
	}
}

// The options of set and shopt that change nothing of what a command means.
const (
	setLetters = "eufvxhnbmCETBo"
	setNames   = "errexit nounset pipefail xtrace noglob verbose errtrace functrace noclobber notify monitor noexec hashall braceexpand"
	shoptNames = "nullglob globstar dotglob failglob extglob nocaseglob nocasematch inherit_errexit " +
		"globasciiranges globskipdots lastpipe checkwinsize huponexit xpg_echo"
)

// setOptions reports whether set changes nothing of what commands mean.
func setOptions(args []Word) bool {
	for i := 0; i < len(args); i++ {
		word := args[i]
		switch {
		case !word.Known && (!word.plain || !word.Many):
			return word.plain
		case !word.Known: // it may be none
		case word.Text == "--", word.Text == "-", !strings.HasPrefix(word.Text, "-") && !strings.HasPrefix(word.Text, "+"):
			return true
		case strings.Trim(word.Text[1:], setLetters) != "":
			return false
		}
		for range strings.Count(word.Text, "o") {
			if i++; i < len(args) && !isIn(setNames, args[i]) {
				return false
			}
		}
	}
	return true
}

// shoptOptions reports whether shopt changes nothing of what commands mean.
func shoptOptions(args []Word) bool {
	return !slices.ContainsFunc(args, func(w Word) bool {
		return !isIn("-s -u -q -p "+shoptNames, w)
	})
}
