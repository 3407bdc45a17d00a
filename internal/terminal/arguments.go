package terminal

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
)

// arguments are those of a tool call.
type arguments map[string]json.RawMessage

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

func (a arguments) summary(tool string) (string, bool) {
	switch tool {
	case "bash":
		command, ok := a.text("command")
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
