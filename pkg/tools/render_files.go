package tools

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Limits of what a model gets of files.
const (
	fileLimit = 12_000 // characters of content
	lineLimit = 2_000  // characters of one line
)

// readText is the lines of a file with their numbers, and where they stand in it.
func readText(v protocol.FilesReadResult) string {
	if v.Binary {
		return binaryText(v)
	}
	content := validText(string(v.Content))
	if content == "" {
		return noLinesText(v)
	}
	first := max(v.FirstLine, 1)
	body, shown, cut := numbered(content, first, fileLimit, lineLimit)
	last := first + shown - 1
	total := max(v.TotalLines, last)
	mark := fmt.Sprintf("[lines %d-%d of %d", first, last, total)
	if last < total {
		mark += fmt.Sprintf("; read on with offset=%d", last+1)
	}
	if cut > 0 {
		mark += fmt.Sprintf("; line %d is cut: for the rest of it use bash, as in `sed -n %dp %s | cut -c %d-%d`",
			cut, cut, shellWord(v.Path), lineLimit+1, 2*lineLimit)
	}
	return body + mark + "]"
}

// noLinesText says why there is nothing to be shown of a text file.
func noLinesText(v protocol.FilesReadResult) string {
	if v.TotalLines == 0 {
		return fmt.Sprintf("[%s is empty]", name(v.Path))
	}
	return fmt.Sprintf("[there are no such lines: %s has %s]", name(v.Path), plural(v.TotalLines, "line"))
}

func binaryText(v protocol.FilesReadResult) string {
	if v.Image != "" && len(v.Content) <= MaxImageBytes && !v.Truncated {
		return fmt.Sprintf("[%s is an image, %s of %s: here it is, if you take images; else look into it with bash]",
			name(v.Path), v.Image, plural(v.Bytes, "byte"))
	}
	if v.Image != "" {
		return fmt.Sprintf("[%s is an image, %s of %s: too large to be shown, at most %d bytes are; make a smaller one with bash]",
			name(v.Path), v.Image, plural(v.Bytes, "byte"), MaxImageBytes)
	}
	return fmt.Sprintf("[%s is a binary file of %s: not shown; look into it with bash, as in `file` or `od -c`]",
		name(v.Path), plural(v.Bytes, "byte"))
}

// numbered returns the lines that fit, with their numbers, how many they are (at least
// one) and the number of the first one that had to be cut, or 0.
func numbered(content string, first, limit, lineLimit int) (_ string, count, cut int) {
	var b strings.Builder
	used := 0
	for line := range strings.Lines(content) {
		line = strings.TrimSuffix(line, "\n")
		shown := headOf(line, lineLimit)
		text := fmt.Sprintf("%6d\t%s\n", first+count, shown)
		length := utf8.RuneCountInString(text)
		if used+length > limit && count > 0 {
			break
		}
		if shown != line && cut == 0 {
			cut = first + count
		}
		b.WriteString(text)
		used += length
		count++
	}
	return b.String(), count, cut
}

// shellWord is a path as a word of a shell command.
func shellWord(path string) string {
	if strings.Trim(path, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._/-") == "" && !strings.HasPrefix(path, "-") {
		return path
	}
	return "'" + strings.ReplaceAll(path, "'", `'\''`) + "'"
}

// plainRead makes the text of a whole file for tools that cannot read on: as it is,
// without numbers, cut at what fits. how says how to get at the rest.
func plainRead(how string) func(protocol.FilesReadResult) string {
	return func(v protocol.FilesReadResult) string {
		if v.Binary {
			return binaryText(v)
		}
		content := validText(string(v.Content))
		if content == "" {
			return noLinesText(v)
		}
		shown := content[:byteOffset(content, bodyLimit)]
		if at := strings.LastIndexByte(shown, '\n'); len(shown) < len(content) && at > 0 {
			shown = shown[:at+1]
		}
		if len(shown) == len(content) && !v.Truncated {
			return content
		}
		lines := strings.Count(shown, "\n")
		return ended(shown) + fmt.Sprintf("[cut here: these are the first %d of %s, %s in all; %s]",
			lines, plural(max(v.TotalLines, lines), "line"), plural(v.Bytes, "byte"), how)
	}
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
		return body + fmt.Sprintf("[%d of %d names; for the others use glob with a pattern, or list a subdirectory]", shown, total)
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
		searched += fmt.Sprintf(", %d skipped: too large or unreadable", v.Skipped)
	}
	searched += ignoredText(v.Ignored)
	if len(v.Matches) == 0 {
		return "[no matches; " + searched + "]"
	}
	lines := make([]string, 0, len(v.Matches))
	for _, match := range v.Matches {
		lines = append(lines, fmt.Sprintf("%s:%d:%s", name(match.Path), match.Line, plainText(match.Text)))
	}
	body, shown := fitting(lines)
	if v.Truncated || shown < len(lines) {
		return body + fmt.Sprintf("[the first %s; there are more: use a narrower pattern, path or glob]", matches(shown))
	}
	return body + fmt.Sprintf("[%s; %s]", matches(shown), searched)
}

func matches(n int) string {
	if n == 1 {
		return "1 match"
	}
	return strconv.Itoa(n) + " matches"
}

// fitting returns the lines that fit, each ended by a line feed, and how many: at most [maxListed].
func fitting(lines []string) (string, int) {
	var b strings.Builder
	used := 0
	for i, line := range lines[:min(len(lines), maxListed)] {
		line = ended(short(line, bodyLimit-1))
		if used += utf8.RuneCountInString(line); used > bodyLimit {
			return b.String(), i
		}
		b.WriteString(line)
	}
	return b.String(), min(len(lines), maxListed)
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
