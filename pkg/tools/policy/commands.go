package policy

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"unicode"

	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools/policy/internal/shell"
)

// scriptOf returns the programs of a payload's command line, or of lines typed at a terminal;
// judged is false for other payloads. Commands of the user's own tools are not judged.
func scriptOf(payload protocol.Payload) (script *shell.Script, judged bool, err error) {
	env := map[string]string(nil)
	switch p := payload.(type) {
	case protocol.CommandRun:
		env = p.Env
		if p.Command == "" {
			script, err = shell.Argv(p.Argv, len(p.Stdin) > 0)
		} else {
			script, err = shell.Parse(p.Command, len(p.Stdin) > 0)
		}
	case protocol.CodeRun:
		if p.Language != "sh" {
			return nil, false, nil
		}
		env = p.Env
		script, err = shell.Parse(p.Code, false)
	case wire.ProcessSend:
		return typedLines(p), true, nil
	default:
		return nil, false, nil
	}
	for _, name := range slices.Sorted(maps.Keys(env)) {
		script.Assigned = append(script.Assigned, name)
		if err == nil && shell.Evaluated(name) {
			err = fmt.Errorf("the shell may evaluate the value of the variable %s as code", name)
		}
	}
	return script, true, err
}

// keys matches keys that a terminal sends as several characters, such as arrows.
var keys = regexp.MustCompile(`\x1b\[[0-9;]*[@-~]`)

// separators are what commands of a line stand between.
var separators = regexp.MustCompile(`[;&|(){}!]+|\b(if|then|elif|else|while|until|do)\b|\]\]`)

// typedLines returns the programs of lines typed at a terminal. A line that is not understood may
// be one of another language: it counts up to there, and so does each part of it by itself if its
// program is known. What runs other commands is one that is not known.
func typedLines(sent wire.ProcessSend) *shell.Script {
	script := &shell.Script{}
	text := strings.ReplaceAll(keys.ReplaceAllString(string(sent.Input), ""), "\\\r", "")
	text = strings.ReplaceAll(text, "\\\n", "")
	for _, line := range strings.FieldsFunc(text, func(r rune) bool { return r != '\t' && unicode.IsControl(r) }) {
		of, err := shell.Parse(line, false)
		script.Commands = append(script.Commands, of.Commands...)
		if err != nil && !errors.Is(err, shell.ErrSyntax) {
			script.Commands = append(script.Commands, shell.Command{Words: []shell.Word{{Text: line, Many: true}}})
		}
		if !errors.Is(err, shell.ErrSyntax) {
			continue
		}
		for _, part := range separators.Split(line, -1) {
			of, _ := shell.Parse(part, false) // what was read before an error counts
			for _, command := range of.Commands {
				if command.Program() != "" {
					script.Commands = append(script.Commands, command)
				}
			}
		}
	}
	return script
}

// mayRun returns the first command of a payload that matches a pattern, or may match one; command
// is "" when it cannot be known what runs.
func mayRun(patterns []string, payload protocol.Payload) (pattern, command string, may bool) {
	if len(patterns) == 0 {
		return "", "", false
	}
	script, judged, err := scriptOf(payload)
	if err != nil || !judged {
		return "", "", err != nil || runsCode(payload)
	}
	for i := range script.Commands {
		if pattern, may := mayMatch(patterns, &script.Commands[i]); may {
			return pattern, script.Commands[i].String(), true
		}
	}
	return "", "", false
}

// runsCode reports whether a payload is a program of the model's.
func runsCode(payload protocol.Payload) bool {
	_, is := payload.(protocol.CodeRun)
	return is
}

// judgeScript is nil when every command of a script may be run; allow is the list that each has to
// be on, if there is any.
func (c *compiled) judgeScript(script *shell.Script, allow []string) *Verdict {
	for i := range script.Commands {
		command := &script.Commands[i]
		if command.Program() == "" {
			return deny("commands", "It cannot be known which program %q is. Write its name plainly.", command.String())
		}
		if pattern, may := mayMatch(c.Commands.Deny, command); may {
			return deny("commands.deny", "The command %q is not allowed in this session (%s).", command.String(), pattern)
		}
		if len(allow) == 0 {
			continue
		}
		if name := changesProgram(command.Assigned); name != "" {
			return deny("commands.allow", "The variable %s must not be set, because it may change what programs run. For values of your own use a name in lower case.", name)
		}
		if !command.Wraps && !doesMatch(allow, command) {
			return deny("commands.allow", "The command %q is not allowed in this session; allowed are: %s.", command.String(), strings.Join(allow, ", "))
		}
	}
	if name := changesProgram(script.Assigned); name != "" && len(allow) > 0 {
		return deny("commands.allow", "The variable %s must not be set, because it may change what programs run. For values of your own use a name in lower case.", name)
	}
	return nil
}

// changesProgram returns a variable that may change what a program runs; "" when there is none.
// Programs have too many of those to list, so only these are harmless: names in lower case, which
// few programs read, and some that are known.
func changesProgram(names []string) string {
	at := slices.IndexFunc(names, func(name string) bool { return !harmless(name) })
	if at < 0 {
		return ""
	}
	return names[at]
}

var inLowerCase = regexp.MustCompile(`^[a-z_][a-z0-9_]*$`)

func harmless(variable string) bool {
	switch variable {
	case "LANG", "LANGUAGE", "TZ", "TERM", "COLUMNS", "LINES", "CI", "NO_COLOR", "FORCE_COLOR", "CLICOLOR", "CLICOLOR_FORCE",
		"DEBIAN_FRONTEND", "PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE", "PYTHONHASHSEED", "RUST_BACKTRACE", "NODE_ENV",
		"CGO_ENABLED", "GOOS", "GOARCH", "GOMAXPROCS", "IFS", "REPLY", "MAPFILE", "OPTARG", "OPTIND", "SECONDS":
		return true
	case "http_proxy", "https_proxy", "ftp_proxy", "all_proxy", "no_proxy", "histchars", "auto_resume":
		return false
	default:
		return strings.HasPrefix(variable, "LC_") ||
			inLowerCase.MatchString(variable) && !strings.HasPrefix(variable, "npm_") && !strings.HasPrefix(variable, "pnpm_") && !strings.HasPrefix(variable, "yarn_")
	}
}

// doesMatch reports whether a command surely begins with the words of a pattern. A pattern without
// a slash means the program that PATH has, not any file of that name.
func doesMatch(patterns []string, command *shell.Command) bool {
	return slices.ContainsFunc(patterns, func(pattern string) bool {
		words, is := strings.Fields(pattern), command.Words
		if len(words) > len(is) || strings.Contains(is[0].Text, "/") && !strings.Contains(words[0], "/") {
			return false
		}
		for i, word := range words {
			if (word != "*" || i == 0) && (!is[i].Known || !matches(word, is[i].Text)) {
				return false
			}
		}
		return true
	})
}

// renames matches a setting that may give git's subcommands other names.
var renames = regexp.MustCompile(`(?i)^((-c|--config-env)=?)?(alias|include|includeif)\.`)

// mayMatch returns a pattern that a command matches, or may match: words that are not known match
// everything, and the program's directory does not count, nor the case of its name and of words
// that are no options: some file systems find git as GIT, and its subcommands likewise.
func mayMatch(patterns []string, command *shell.Command) (string, bool) {
	for _, pattern := range patterns {
		words, is := strings.Fields(strings.ToLower(pattern)), command.Words
		name := strings.ToLower(command.Program())
		if subcommand, of := strings.CutPrefix(name, "git-"); of { // git's own folder has its subcommands
			name, is = "git", append([]shell.Word{is[0], {Text: subcommand, Known: true}}, is[1:]...)
		}
		renamed := name == "git" && slices.ContainsFunc(is[1:], func(w shell.Word) bool { return renames.MatchString(w.Text) })
		if strings.Contains(words[0], "/") {
			name = strings.ToLower(command.Words[0].Text)
		}
		if command.Program() == "" || matches(words[0], name) && (renamed || argumentsMayBegin(strings.Fields(pattern)[1:], is[1:])) {
			return pattern, true
		}
	}
	return "", false
}

// isOption reports whether a word of a pattern or a command is an option.
func isOption(text string) bool { return len(text) > 1 && (text[0] == '-' || text[0] == '+') }

// argumentsMayBegin reports whether a program's arguments may begin with the words of a pattern. An
// option of the pattern may stand anywhere. Behind an option of the command, whose value may be the
// next word, and behind a word that is not known, any later word may be the subcommand.
func argumentsMayBegin(pattern []string, words []shell.Word) bool {
	all, anywhere := words, false
	for i, want := range pattern {
		may := func(w shell.Word) bool {
			return !w.Known || matches(want, w.Text) || !isOption(want) && matches(strings.ToLower(want), strings.ToLower(w.Text))
		}
		if isOption(want) {
			if !slices.ContainsFunc(all, may) {
				return false
			}
			continue
		}
		at := 0
		if anywhere = anywhere || want != "*" && len(words) > 0 && (!words[0].Known || isOption(words[0].Text)); anywhere {
			at = slices.IndexFunc(words, may)
		}
		switch {
		case at < 0, at == len(words): // at the end a star stands for no word, too
			return !slices.ContainsFunc(pattern[i:], func(word string) bool { return word != "*" })
		case words[at].Many:
			return true
		case !may(words[at]):
			return false
		}
		words = words[at+1:]
	}
	return true
}
