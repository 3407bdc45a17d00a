package policy

import (
	"maps"
	"regexp"
	"slices"
	"strings"
	"unicode"

	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools/shell"
)

// scriptOf is what a payload's command does, or what is typed at one; judged is false for other
// payloads. The commands of the user's own tools are the operator's, and not judged.
func scriptOf(payload protocol.Payload) (script *shell.Script, judged bool, err error) {
	switch p := payload.(type) {
	case protocol.CommandRun:
		if p.Command == "" {
			script, err = shell.Argv(p.Argv)
		} else {
			script, err = shell.Parse(p.Command)
		}
		return assigning(script, p.Env), true, err
	case protocol.CodeRun:
		if p.Language != "sh" {
			return nil, false, nil
		}
		script, err = shell.Parse(p.Code)
		return assigning(script, p.Env), true, err
	case protocol.ProcessSend:
		return typedLines(p), true, nil
	default:
		return nil, false, nil
	}
}

// keys are those that a terminal sends as several characters, such as arrows.
var keys = regexp.MustCompile(`\x1b\[[0-9;]*[@-~]`)

// typedLines is what lines typed at a terminal do, as far as they are shell: what a REPL of another
// language is told is not, as programs in other languages are not.
func typedLines(sent protocol.ProcessSend) *shell.Script {
	script := &shell.Script{}
	text := strings.ReplaceAll(keys.ReplaceAllString(string(sent.Input), ""), "\\\r", "")
	for _, line := range strings.FieldsFunc(text, func(r rune) bool { return r != '\t' && unicode.IsControl(r) }) {
		if of, err := shell.Parse(line); err == nil {
			script.Commands = append(script.Commands, of.Commands...)
		}
	}
	return script
}

// assigning adds to a script the variables that are set beside it.
func assigning(script *shell.Script, env map[string]string) *shell.Script {
	if script != nil {
		script.Assigned = append(script.Assigned, slices.Sorted(maps.Keys(env))...)
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
			return deny("commands.allow", "The variable %s must not be set, because it changes which programs run.", name)
		}
		if !command.Wraps && !doesMatch(allow, command) {
			return deny("commands.allow", "The command %q is not allowed in this session; allowed are: %s.", command.String(), strings.Join(allow, ", "))
		}
	}
	if name := changesProgram(script.Assigned); name != "" && len(allow) > 0 {
		return deny("commands.allow", "The variable %s must not be set, because it changes which programs run.", name)
	}
	return nil
}

// changesProgram returns a variable that changes what a name runs; "" when there is none.
func changesProgram(names []string) string {
	at := slices.IndexFunc(names, func(name string) bool {
		switch name {
		case "PATH", "IFS", "ENV", "BASH_ENV", "SHELLOPTS", "BASHOPTS", "PROMPT_COMMAND":
			return true
		default:
			return strings.HasPrefix(name, "LD_") || strings.HasPrefix(name, "GIT_") || strings.HasPrefix(name, "BASH_FUNC_")
		}
	})
	if at < 0 {
		return ""
	}
	return names[at]
}

// doesMatch reports whether a command surely begins with the words of a pattern. A
// pattern without a slash means the program that PATH has, not any file of that name.
func doesMatch(patterns []string, command *shell.Command) bool {
	return slices.ContainsFunc(patterns, func(pattern string) bool {
		words := strings.Fields(pattern)
		if len(words) > len(command.Words) {
			return false
		}
		for i, word := range words {
			if is := command.Words[i]; word != "*" && (!is.Known || !matches(word, is.Text)) || i == 0 && !is.Known {
				return false
			}
			if i == 0 && strings.Contains(command.Words[0].Text, "/") && !strings.Contains(word, "/") {
				return false
			}
		}
		return true
	})
}

// mayMatch returns a pattern that a command matches, or may match: words that are not
// known match everything, and the program's directory does not count.
func mayMatch(patterns []string, command *shell.Command) (string, bool) {
	for _, pattern := range patterns {
		words, may := strings.Fields(pattern), true
		for i, word := range words {
			if i >= len(command.Words) {
				if may = word == "*"; !may { // at the end it stands for no word, too
					break
				}
				continue
			}
			is := command.Words[i]
			text := is.Text
			if i == 0 && !strings.Contains(word, "/") {
				text = command.Program()
			}
			if is.Known && !matches(word, text) {
				may = false
				break
			}
		}
		if may {
			return pattern, true
		}
	}
	return "", false
}
