// Package plain renders a whole result as text: the content of a file, one line for each entry of a
// list, the output of a command. Tools show the beginning of it, within limits that are here;
// workers keep all of it where it may be longer, and so the lines that a reader was shown have the
// same numbers in both.
package plain

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/toolfleet/toolfleet/internal/modeltext/prose"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Limits of what a reader is shown at once.
const (
	// MaxFile is how many characters of a file are shown, their line numbers included.
	MaxFile = 12_000
	// MaxLine is how many characters of one of its lines are shown.
	MaxLine = 2_000
	// MaxListed is how many entries of a list are shown.
	MaxListed = 500
	// MaxMatch is how many bytes of a line that was found are shown.
	MaxMatch = 500
	// MaxShown is how many bytes of anything are shown whole, whatever shows them, if
	// none of the other limits is less.
	MaxShown = 40_000
	// MaxError is how many bytes of what went wrong are shown whole.
	MaxError = 20_000
)

// numberRoom is at least as much as the number of a line takes up.
const numberRoom = 12

// FitsFile reports whether every reader of files shows all of a text.
func FitsFile(content []byte) bool {
	used := 0
	for line := range strings.Lines(string(content[:min(len(content), MaxFile+1)])) {
		if used += len(line) + numberRoom; used > MaxFile || len(line) > MaxLine {
			return false
		}
	}
	return len(content) <= MaxFile
}

// Text is a value as a reader gets it. Values that are no list, file or output are JSON.
func Text(v protocol.Value) ([]byte, error) {
	if lines, isList := Lines(v); isList {
		return joined(lines), nil
	}
	switch v := v.(type) {
	case protocol.CommandRunResult:
		return Written(&v.Execution), nil
	case protocol.CodeRunResult:
		return Written(&v.Execution), nil
	case protocol.FilesReadResult:
		return v.Content, nil
	case protocol.HTTPFetchResult:
		return v.Content, nil
	case protocol.FilesJSONReadResult:
		return v.Value, nil
	case protocol.ToolRunResult:
		if v.Output == nil || string(v.Output) == "null" { // what it said of that
			return Written(&v.Execution), nil
		}
		return []byte(Output(v.Output)), nil
	case protocol.MCPCallResult:
		return []byte(MCP(v)), nil
	case protocol.UnknownValue:
		if output, err := v.Output(); err == nil && output != nil {
			return []byte(Output(output)), nil
		}
	}
	if state, ok := wire.DialogStateOf(v); ok {
		return []byte(Output(state.Output)), nil
	}
	return wire.EncodeValue(v)
}

// Output is a JSON value as a reader gets it: a string as it is, null as nothing.
func Output(value json.RawMessage) string {
	var text string
	if json.Unmarshal(value, &text) == nil {
		return text // null too
	}
	return string(value)
}

// Execution returns the execution of a command's value; nil for other values.
func Execution(v protocol.Value) *protocol.Execution {
	switch v := v.(type) {
	case protocol.CommandRunResult:
		return &v.Execution
	case protocol.CodeRunResult:
		return &v.Execution
	case protocol.ToolRunResult:
		return &v.Execution
	default:
		return nil
	}
}

// Written returns the output of a command, in the order written.
func Written(e *protocol.Execution) []byte {
	if len(e.Combined) > 0 {
		return e.Combined
	}
	return slices.Concat(e.Stdout, e.Stderr) // one of them is empty
}

// Lines are the lines of a list without their ends, one for each entry; ok is false for
// values that are none.
func Lines(v protocol.Value) (lines []string, ok bool) {
	switch v := v.(type) {
	case protocol.FilesListResult:
		return each(v.Entries, entryLine), true
	case protocol.FilesTreeResult:
		above := 0
		if v.Path != "" {
			above = strings.Count(v.Path, "/") + 1
		}
		return each(v.Entries, func(e protocol.TreeEntry) string { return treeLine(e, above) }), true
	case protocol.FilesGlobResult:
		return each(v.Paths, prose.Path), true
	case protocol.FilesSearchResult:
		return Matches(v.Matches, matchLine), true
	default:
		return nil, false
	}
}

func each[E any](entries []E, line func(E) string) []string {
	lines := make([]string, len(entries))
	for i, entry := range entries {
		lines[i] = line(entry)
	}
	return lines
}

// joined ends every line.
func joined(lines []string) []byte {
	size := 0
	for _, line := range lines {
		size += len(line) + 1
	}
	text := make([]byte, 0, size)
	for _, line := range lines {
		text = append(append(text, line...), '\n')
	}
	return text
}

func entryLine(entry protocol.DirEntry) string {
	switch entry.Type {
	case protocol.TypeDir:
		return prose.Path(entry.Name) + "/"
	case protocol.TypeSymlink:
		return prose.Path(entry.Name) + " (symlink)"
	case protocol.TypeFile:
		return fmt.Sprintf("%s (%s)", prose.Path(entry.Name), prose.Plural(entry.Size, "byte"))
	default:
		return prose.Path(entry.Name) + " (special file)"
	}
}

// treeLine is an entry, indented by its depth below a directory that is so many levels deep.
func treeLine(entry protocol.TreeEntry, above int) string {
	base := entry.Path[strings.LastIndexByte(entry.Path, '/')+1:]
	text := entryLine(protocol.DirEntry{Name: base, Type: entry.Type, Size: entry.Size})
	if entry.Hidden > 0 {
		text += fmt.Sprintf(" (%d inside)", entry.Hidden)
	}
	return strings.Repeat("  ", max(strings.Count(entry.Path, "/")-above, 0)) + text
}

// Matches returns the text of each match: its line, as line makes it with the separator ":",
// between the lines around it, which have "-". As in grep, "--" stands between lines that do not
// follow each other.
func Matches(matches []protocol.Match, line func(match protocol.Match, separator string) string) []string {
	texts := make([]string, len(matches))
	path, last, around := "", 0, slices.ContainsFunc(matches, func(m protocol.Match) bool { return len(m.Before)+len(m.After) > 0 })
	for i, match := range matches {
		var parts []string
		first := match.Line - len(match.Before)
		if around && i > 0 && (path != match.Path || first != last+1) {
			parts = append(parts, "--")
		}
		for j, text := range match.Before {
			parts = append(parts, line(protocol.Match{Path: match.Path, Line: first + j, Text: text}, "-"))
		}
		parts = append(parts, line(match, ":"))
		for j, text := range match.After {
			parts = append(parts, line(protocol.Match{Path: match.Path, Line: match.Line + 1 + j, Text: text}, "-"))
		}
		texts[i] = strings.Join(parts, "\n")
		path, last = match.Path, match.Line+len(match.After)
	}
	return texts
}

func matchLine(match protocol.Match, separator string) string {
	return prose.Path(match.Path) + separator + strconv.Itoa(match.Line) + separator + MatchText(match)
}

// MatchText is the line of a match, and how much of it is missing.
func MatchText(match protocol.Match) string {
	text := prose.Plain(match.Text)
	if match.Cut > 0 {
		text += fmt.Sprintf(" [... and %d more bytes]", match.Cut)
	}
	return text
}

// CutMatch returns a match with at most [MaxMatch] bytes of its line.
func CutMatch(match protocol.Match) protocol.Match {
	if len(match.Text) <= MaxMatch {
		return match
	}
	shown := prose.Border(match.Text[:MaxMatch])
	match.Cut = len(match.Text) - shown
	match.Text = match.Text[:shown]
	return match
}

// MCP is what a tool of an MCP server returned, as text: its structured result where it said
// nothing else.
func MCP(v protocol.MCPCallResult) string {
	var parts []string
	for _, part := range v.Content {
		if text := mcpPart(part); text != "" {
			parts = append(parts, text)
		}
	}
	if len(parts) == 0 && string(v.Structured) != "null" {
		return string(v.Structured)
	}
	return strings.Join(parts, "\n")
}

func mcpPart(part protocol.MCPContent) string {
	switch part.Type {
	case "text":
		return part.Text
	case "resource_link":
		text := fmt.Sprintf("[resource %s %s]", part.URI, part.Name)
		if part.Text != "" {
			text += " " + part.Text
		}
		return text
	case "resource":
		if len(part.Data) == 0 {
			return fmt.Sprintf("[resource %s]\n%s", part.URI, part.Text)
		}
		fallthrough
	default:
		if strings.HasPrefix(part.MediaType, "image/svg") && utf8.Valid(part.Data) { // no image for models, but text
			return fmt.Sprintf("[%s %s]\n%s", part.Type, part.MediaType, part.Data)
		}
		return strings.TrimSpace(fmt.Sprintf("[%s %s, %d bytes %s", part.Type, cmp.Or(part.MediaType, "of no known type"), len(part.Data), part.URI)) + "]"
	}
}
