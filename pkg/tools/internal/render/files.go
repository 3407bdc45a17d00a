package render

import (
	"encoding/base64"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools/internal/prose"
)

// Limits of what a model gets of files.
const (
	fileLimit = 12_000 // characters of content
	lineLimit = 2_000  // characters of one line
)

// Read is the lines of a file with their numbers, and where they stand in it.
func Read(v protocol.FilesReadResult) string {
	if v.Binary {
		return binaryText(v)
	}
	content := prose.Valid(string(v.Content))
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
		from, to := secondPart(content, cut-first)
		mark += fmt.Sprintf("; line %d is cut: for the rest of it use bash, as in `sed -n %dp %s | cut -b %d-%d`",
			cut, cut, shellWord(v.Path), from, to)
	}
	return body + mark + "]"
}

// secondPart is where the [lineLimit] characters stand that follow the shown ones of the line
// at an index, in bytes from 1: that is what cut counts, its -c too.
func secondPart(content string, index int) (from, to int) {
	line := strings.SplitN(content, "\n", index+2)[index]
	return prose.Offset(line, lineLimit) + 1, prose.Offset(line, 2*lineLimit)
}

// noLinesText says why there is nothing to be shown of a text file.
func noLinesText(v protocol.FilesReadResult) string {
	if v.TotalLines == 0 {
		return fmt.Sprintf("[%s is empty]", prose.Path(v.Path))
	}
	return fmt.Sprintf("[there are no such lines: %s has %s]", prose.Path(v.Path), prose.Plural(v.TotalLines, "line"))
}

func binaryText(v protocol.FilesReadResult) string {
	if v.Image != "" && len(v.Content) <= MaxImageBytes && !v.Truncated {
		return fmt.Sprintf("[%s is an image, %s of %s: here it is, if you take images; else look into it with bash]",
			prose.Path(v.Path), v.Image, prose.Plural(v.Bytes, "byte"))
	}
	if v.Image != "" {
		return fmt.Sprintf("[%s is an image, %s of %s: too large to be shown, at most %d bytes are; make a smaller one with bash]",
			prose.Path(v.Path), v.Image, prose.Plural(v.Bytes, "byte"), MaxImageBytes)
	}
	return fmt.Sprintf("[%s is a binary file of %s: not shown; look into it with bash, as in `file` or `od -c`]",
		prose.Path(v.Path), prose.Plural(v.Bytes, "byte"))
}

// numbered returns the lines that fit, with their numbers, how many they are (at least
// one) and the number of the first one that had to be cut, or 0.
func numbered(content string, first, limit, lineLimit int) (_ string, count, cut int) {
	var b strings.Builder
	used := 0
	for line := range strings.Lines(content) {
		line = strings.TrimSuffix(line, "\n")
		shown := prose.Head(line, lineLimit)
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

// Plain makes the text of a whole file for tools that cannot read on: as it is,
// without numbers, cut at what fits. how says how to get at the rest.
func Plain(how string) func(protocol.FilesReadResult) string {
	return func(v protocol.FilesReadResult) string {
		if v.Binary {
			return binaryText(v)
		}
		content := prose.Valid(string(v.Content))
		if content == "" {
			return noLinesText(v)
		}
		shown := content[:prose.Offset(content, prose.BodyLimit)]
		if at := strings.LastIndexByte(shown, '\n'); len(shown) < len(content) && at > 0 {
			shown = shown[:at+1]
		}
		if len(shown) == len(content) && !v.Truncated {
			return content
		}
		lines := strings.Count(shown, "\n")
		first := strconv.Itoa(lines)
		if lines == 0 {
			first = prose.Plural(utf8.RuneCountInString(shown), "character")
		}
		return prose.Ended(shown) + fmt.Sprintf("[cut here: these are the first %s of %s, %s in all; %s]",
			first, prose.Plural(max(v.TotalLines, lines), "line"), prose.Plural(v.Bytes, "byte"), how)
	}
}

// List is one line an entry.
func List(v protocol.FilesListResult) string {
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
		return prose.Path(entry.Name) + "/"
	case protocol.TypeSymlink:
		return prose.Path(entry.Name) + " (symlink)"
	case protocol.TypeFile:
		return fmt.Sprintf("%s (%s)", prose.Path(entry.Name), prose.Plural(entry.Size, "byte"))
	default:
		return prose.Path(entry.Name) + " (special file)"
	}
}

// Exists says yes or no, and what there is.
func Exists(v protocol.FilesExistsResult) string {
	if !v.Exists {
		return "no: there is nothing at " + prose.Path(v.Path)
	}
	switch v.Type {
	case protocol.TypeDir:
		return fmt.Sprintf("yes: %s is a directory", prose.Path(v.Path))
	case protocol.TypeSymlink:
		return fmt.Sprintf("yes: %s is a symlink", prose.Path(v.Path))
	case protocol.TypeFile:
		return fmt.Sprintf("yes: %s is a file of %s", prose.Path(v.Path), prose.Plural(v.Size, "byte"))
	default:
		return fmt.Sprintf("yes: %s is a special file", prose.Path(v.Path))
	}
}

// Base64 is the bytes of a file for a model that asked for them.
func Base64(v protocol.FilesReadResult) string {
	if v.Bytes == 0 {
		return noLinesText(v)
	}
	encoded := base64.StdEncoding.EncodeToString(v.Content)
	if len(encoded) <= prose.BodyLimit && int64(len(v.Content)) == v.Bytes {
		return encoded
	}
	shown := min(len(v.Content), prose.BodyLimit/4*3)
	return base64.StdEncoding.EncodeToString(v.Content[:shown]) +
		fmt.Sprintf("\n[cut here: these are the first %d of %s]", shown, prose.Plural(v.Bytes, "byte"))
}
