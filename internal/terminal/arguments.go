package terminal

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"strings"
	"unicode"
)

// arguments are those of a tool call.
type arguments map[string]json.RawMessage

// maxAbout bounds a call in a sentence, in columns.
const maxAbout = 60

// About names a tool call in a few words, which are safe to print.
func About(tool, arguments string) string {
	return fit(strings.TrimSpace(tool+" "+firstLine(summary(tool, arguments))), maxAbout)
}

// summary says in one line what a tool call is about. It is not safe yet, and may be long.
// What is not as the tool wants it is shown as the model wrote it.
func summary(tool, written string) string {
	var args arguments
	if json.Unmarshal([]byte(written), &args) != nil || args == nil {
		return strings.TrimSpace(written)
	}
	if text, ok := args.summary(tool); ok {
		return text
	}
	var compact bytes.Buffer
	if len(args) == 0 || json.Compact(&compact, []byte(written)) != nil {
		return ""
	}
	return compact.String()
}

// sameAs are tools of other tool sets, by what they are like.
var sameAs = map[string]string{ //nolint:gochecknoglobals // a constant
	"edit_file": "edit", "read_file": "read", "read_workspace_file": "read", "run_shell_command": "bash",
	"workspace_path_exists": "exists", "write_file": "write", "write_workspace_file": "write",
}

func (a arguments) summary(tool string) (string, bool) {
	switch cmp.Or(sameAs[tool], tool) {
	case "bash":
		command, ok := a.command()
		return firstLine(command) + a.part(" (in %s)", "cwd"), ok
	case "run_code":
		code, ok := a.text("code")
		language, _ := a.text("language")
		return strings.TrimPrefix(language+": ", ": ") + firstLine(code), ok
	case "read":
		path, ok := a.text("path")
		return path + a.span(), ok
	case "write":
		path, ok := a.text("path")
		content, _ := a.text("content")
		return fmt.Sprintf("%s (%s)", path, Plural(len(lines(content)), "line")), ok
	case "multi_edit":
		path, ok := a.text("path")
		edits, all := a.edits()
		return fmt.Sprintf("%s (%s)", path, Plural(len(edits), "edit")), ok && all
	case "json_write":
		path, ok := a.text("path")
		return path + a.part(" at %s", "query"), ok
	case "edit", "exists":
		return a.text("path")
	case "list":
		return a.where(), true
	case "grep":
		pattern, ok := a.text("pattern")
		return `"` + pattern + `" in ` + a.where() + a.part(" (%s)", "glob"), ok
	default:
		return "", false
	}
}

// text returns an argument that is a string.
func (a arguments) text(name string) (string, bool) {
	var s *string
	if json.Unmarshal(a[name], &s) != nil || s == nil {
		return "", false
	}
	return *s, true
}

// command is a command line, or a program with its arguments as a command line.
func (a arguments) command() (string, bool) {
	if command, ok := a.text("command"); ok {
		return command, true
	}
	command, ok := a.text("cmd")
	var args []string
	if _, more := a["args"]; !more {
		return command, ok
	}
	if json.Unmarshal(a["args"], &args) != nil {
		return "", false
	}
	words := []string{quoted(command)}
	for _, arg := range args {
		words = append(words, quoted(arg))
	}
	return strings.Join(words, " "), ok
}

// quoted is a word as a person writes it for a shell.
func quoted(word string) string {
	if word != "" && !strings.ContainsFunc(word, func(r rune) bool {
		return !strings.ContainsRune("%+,-./:=@_", r) && !unicode.IsLetter(r) && !unicode.IsDigit(r)
	}) {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

// edits are those of an argument that has several.
func (a arguments) edits() (edits []arguments, ok bool) {
	return edits, json.Unmarshal(a["edits"], &edits) == nil
}

// part formats an argument that says something; "" when it does not.
func (a arguments) part(format, name string) string {
	if s, _ := a.text(name); s != "" && s != "." {
		return fmt.Sprintf(format, s)
	}
	return ""
}

// where is the path of tools that look into the whole workspace without one.
func (a arguments) where() string {
	if path, _ := a.text("path"); path != "" {
		return path
	}
	return "."
}

// span says which lines are read, if not all.
func (a arguments) span() string {
	var offset, limit int
	_ = json.Unmarshal(a["offset"], &offset) // wrong ones are refused by the tool, which shows in the result
	_ = json.Unmarshal(a["limit"], &limit)
	switch {
	case offset > 0 && limit > 0:
		return fmt.Sprintf(", lines %d-%d", offset, offset+limit-1)
	case offset > 0:
		return fmt.Sprintf(", from line %d", offset)
	case limit > 0:
		return ", " + Plural(limit, "line")
	default:
		return ""
	}
}

// firstLine returns the first line of a text that has something on it, and how many follow.
func firstLine(s string) string {
	s = strings.TrimSpace(s)
	first, rest, more := strings.Cut(s, "\n")
	if !more {
		return first
	}
	return fmt.Sprintf("%s (+%s)", strings.TrimRight(first, "\r"), Plural(strings.Count(rest, "\n")+1, "line"))
}
