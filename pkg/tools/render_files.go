package tools

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// readText is the lines of a file with their numbers, and where they stand in it.
func readText(v protocol.FilesReadResult) string {
	if v.Binary {
		return fmt.Sprintf("[%s is a binary file of %s: not shown; look into it with bash, as in `file` or `od -c`]",
			name(v.Path), plural(v.Bytes, "byte"))
	}
	content := validText(string(v.Content))
	if content == "" {
		if v.TotalLines == 0 {
			return fmt.Sprintf("[%s is empty]", name(v.Path))
		}
		return fmt.Sprintf("[there are no such lines: %s has %s]", name(v.Path), plural(v.TotalLines, "line"))
	}
	first := max(v.FirstLine, 1)
	body, shown := numbered(content, first)
	last := first + shown - 1
	total := max(v.TotalLines, last)
	if last >= total {
		return body + fmt.Sprintf("[lines %d-%d of %d]", first, last, total)
	}
	return body + fmt.Sprintf("[lines %d-%d of %d; read on with offset=%d]", first, last, total, last+1)
}

// numbered returns the lines that fit, with their numbers, and how many they are:
// at least one, which is cut when it alone is too long.
func numbered(content string, first int) (string, int) {
	var b strings.Builder
	count, used := 0, 0
	for line := range strings.Lines(content) {
		text := fmt.Sprintf("%6d\t%s\n", first+count, strings.TrimSuffix(line, "\n"))
		length := utf8.RuneCountInString(text)
		if used+length > bodyLimit {
			if count > 0 {
				break
			}
			text = clip(text, bodyLimit)
		}
		b.WriteString(ended(text))
		used += length
		count++
	}
	return b.String(), count
}

func listText(v protocol.FilesListResult) string {
	if len(v.Entries) == 0 {
		return "[the directory is empty]"
	}
	lines := make([]string, 0, len(v.Entries))
	for _, entry := range v.Entries {
		lines = append(lines, entryText(entry))
	}
	body, shown := fitting(lines)
	if total := max(v.Total, len(lines)); shown < total {
		return body + fmt.Sprintf("[%d of %d names; list a subdirectory, or use bash with a pattern, for the others]", shown, total)
	}
	return body
}

func entryText(entry protocol.DirEntry) string {
	switch entry.Type {
	case protocol.TypeDir:
		return name(entry.Name) + "/"
	case protocol.TypeSymlink:
		return name(entry.Name) + " (symlink)"
	case protocol.TypeFile:
		return fmt.Sprintf("%s (%s)", name(entry.Name), plural(entry.Size, "byte"))
	default:
		return name(entry.Name) + " (special file)"
	}
}

func existsText(v protocol.FilesExistsResult) string {
	if !v.Exists {
		return "no: there is nothing at " + name(v.Path)
	}
	switch v.Type {
	case protocol.TypeDir:
		return fmt.Sprintf("yes: %s is a directory", name(v.Path))
	case protocol.TypeSymlink:
		return fmt.Sprintf("yes: %s is a symlink", name(v.Path))
	case protocol.TypeFile:
		return fmt.Sprintf("yes: %s is a file of %s", name(v.Path), plural(v.Size, "byte"))
	default:
		return fmt.Sprintf("yes: %s is a special file", name(v.Path))
	}
}

func grepText(v protocol.FilesSearchResult) string {
	searched := plural(v.Files, "file") + " searched"
	if v.Skipped > 0 {
		searched += fmt.Sprintf(", %d skipped: binary, too large or unreadable", v.Skipped)
	}
	if len(v.Matches) == 0 {
		return "[no matches; " + searched + "]"
	}
	lines := make([]string, 0, len(v.Matches))
	for _, match := range v.Matches {
		lines = append(lines, fmt.Sprintf("%s:%d:%s", name(match.Path), match.Line, plainText(match.Text)))
	}
	body, shown := fitting(lines)
	if v.Truncated || shown < len(lines) {
		return body + fmt.Sprintf("[the first %d matches; there are more: use a narrower pattern, path or glob]", shown)
	}
	return body + fmt.Sprintf("[%s; %s]", matches(shown), searched)
}

func matches(n int) string {
	if n == 1 {
		return "1 match"
	}
	return strconv.Itoa(n) + " matches"
}

func writeText(v protocol.FilesWriteResult) string {
	if v.Created {
		return fmt.Sprintf("Created %s (%s).", name(v.Path), plural(v.Bytes, "byte"))
	}
	return fmt.Sprintf("Replaced the content of %s (%s).", name(v.Path), plural(v.Bytes, "byte"))
}

func editText(v protocol.FilesEditResult) string {
	text := fmt.Sprintf("Edited %s: %s (%s).", name(v.Path), plural(v.Replacements, "replacement"), plural(v.Bytes, "byte"))
	if v.Diff == "" {
		return text
	}
	return text + "\n" + clip(validText(v.Diff), bodyLimit)
}

// fitting returns the lines that fit, each ended by a line feed, and how many.
func fitting(lines []string) (string, int) {
	var b strings.Builder
	used := 0
	for i, line := range lines {
		line = ended(short(line, bodyLimit-1))
		if used += utf8.RuneCountInString(line); used > bodyLimit {
			return b.String(), i
		}
		b.WriteString(line)
	}
	return b.String(), len(lines)
}

// name is a path as a model reads it: quoted when it is empty, or has characters
// that would break a line or could not be seen. The workspace itself is ".".
func name(path string) string {
	if path == "" {
		return "."
	}
	if !utf8.ValidString(path) || strings.ContainsFunc(path, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return strconv.Quote(path)
	}
	return path
}
