package render

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/toolfleet/toolfleet/internal/modeltext/plain"
	"github.com/toolfleet/toolfleet/internal/modeltext/prose"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// List is one line an entry.
func List(v protocol.FilesListResult, r fullText) string {
	if len(v.Entries) == 0 {
		return "[the directory is empty]"
	}
	body, shown := fittingEntries(v)
	if total := max(v.Total, len(v.Entries)); shown < total {
		return body + fmt.Sprintf("[%d of %d names; %s]", shown, total, r.others(body, total, "use glob with a pattern, or list a subdirectory"))
	}
	return body
}

// Glob is one line a path.
func Glob(v protocol.FilesGlobResult, r fullText) string {
	skipped := ignoredText(v.Ignored) + generatedText(v.Generated, v.GeneratedPaths)
	if v.Skipped > 0 {
		skipped += fmt.Sprintf("; %d directories could not be read", v.Skipped)
	}
	if len(v.Paths) == 0 {
		return "[no files match" + skipped + "; **/NAME looks at every depth]"
	}
	body, shown := fittingEntries(v)
	if total := max(v.Total, len(v.Paths)); shown < total {
		return body + fmt.Sprintf("[%d of %d files%s; %s]", shown, total, skipped, r.others(body, total, "use a narrower pattern or path"))
	}
	return body + fmt.Sprintf("[%s%s]", prose.Plural(shown, "file"), skipped)
}

// Tree is one line an entry, indented by its depth.
func Tree(v protocol.FilesTreeResult, r fullText) string {
	body, shown := fittingEntries(v)
	var marks []string
	total := max(v.Total, len(v.Entries))
	if shown < total {
		marks = append(marks, fmt.Sprintf("%d of %d entries", shown, total))
	} else {
		marks = append(marks, prose.Plural(shown, "entry"))
	}
	if v.Skipped > 0 {
		marks = append(marks, fmt.Sprintf("%d directories could not be read", v.Skipped))
	}
	if out := ignoredText(v.Ignored) + generatedText(v.Generated, v.GeneratedPaths); out != "" {
		marks = append(marks, strings.TrimPrefix(out, "; "))
	}
	if shown < total {
		marks = append(marks, r.others(body, total, "show a subdirectory, or less depth"))
	}
	return prose.Path(v.Path) + "/\n" + body + "[" + strings.Join(marks, "; ") + "]"
}

// ignoredText says how much ignore files exclude; "" when that is nothing.
func ignoredText(n int) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf("; %d left out by .gitignore", n)
}

// generatedText says which directories of packages and caches are left out; "" when there are none.
func generatedText(n int, paths []string) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf("; %s of packages or caches left out%s: name one to look into it", prose.Plural(n, "directory"), somePaths(paths, n))
}

// generatedLine is generatedText as a line of its own.
func generatedLine(n int, paths []string) string {
	if n == 0 {
		return ""
	}
	return "\n[" + strings.TrimPrefix(generatedText(n, paths), "; ") + "]"
}

// Search is one line a match, with those around it where they were asked for, and how many files
// were searched.
func Search(v protocol.FilesSearchResult, r fullText) string {
	searched := prose.Plural(v.Files, "file") + " searched"
	if v.Skipped > 0 {
		searched += fmt.Sprintf(", %d skipped: too large or unreadable%s", v.Skipped, somePaths(v.SkippedPaths, v.Skipped))
	}
	if v.Binary > 0 {
		searched += fmt.Sprintf(", %d not searched: binary%s", v.Binary, somePaths(v.BinaryPaths, v.Binary))
	}
	if v.Stopped {
		searched += ", and no more because that took too long: use a narrower path or glob"
	}
	searched += ignoredText(v.Ignored) + generatedText(v.Generated, v.GeneratedPaths)
	if len(v.Matches) == 0 {
		return "[no matches; " + searched + "]"
	}
	body, shown := fittingEntries(v)
	total := max(v.Total, len(v.Matches))
	mark := prose.Plural(total, "match")
	if shown < total {
		mark = fmt.Sprintf("%d of %s", shown, mark)
	}
	mark += "; " + searched
	switch cut := cutMatches(v.Matches[:shown]); {
	case shown < total:
		mark += "; " + r.others(body, total, "use a narrower pattern, path or glob")
	case cut > 0 && r.isStored():
		mark += fmt.Sprintf("; %s cut: whole with %s", linesAre(cut), r.path("", 0, 0))
	}
	return body + "[" + mark + "]"
}

// Found is the text of a search, for formats that word the lines themselves: the lines that fit,
// and how many more there are; none if nothing was found. line words a line with its path and
// number.
func Found(result *protocol.Result, none string, line func(path, separator string, number int, text string) string) string {
	text, left := "", ""
	switch v := result.Value.(type) {
	case protocol.FilesGlobResult:
		lines, _ := plain.Lines(v)
		text, left = foundText(result, lines, v.Total, "file", none), generatedLine(v.Generated, v.GeneratedPaths)
	case protocol.FilesSearchResult:
		lines := plain.Matches(v.Matches, func(match protocol.Match, separator string) string {
			return line(prose.Path(match.Path), separator, match.Line, plain.MatchText(match))
		})
		text, left = foundText(result, lines, v.Total, "line", none)+unsearchedLine(v), generatedLine(v.Generated, v.GeneratedPaths)
	default:
		return JSON(result)
	}
	if left != "" {
		return strings.TrimSuffix(text, "\n") + left
	}
	return text
}

func foundText(result *protocol.Result, lines []string, total int, noun, none string) string {
	if len(lines) == 0 {
		return none
	}
	body, shown := fittingLines(lines)
	if total = max(total, len(lines)); shown < total {
		body += fmt.Sprintf("[%d more of %s; %s]", total-shown, prose.Plural(total, noun), fullTextOf(result).others(body, total, "use a narrower pattern"))
	}
	return body
}

// unsearchedLine returns a line that says that a search took too long, or that it found nothing and
// skipped files.
func unsearchedLine(v protocol.FilesSearchResult) string {
	switch {
	case v.Stopped:
		return "\n[not all files were searched, that took too long: use a narrower pattern or path]"
	case v.Total == 0 && v.Binary+v.Skipped > 0:
		return fmt.Sprintf("\n[not searched: %d binary%s, %d too large or unreadable%s]",
			v.Binary, somePaths(v.BinaryPaths, v.Binary), v.Skipped, somePaths(v.SkippedPaths, v.Skipped))
	default:
		return ""
	}
}

// somePaths is the first of so many paths in parentheses; "" without one.
func somePaths(paths []string, of int) string {
	if len(paths) == 0 {
		return ""
	}
	shown := make([]string, len(paths))
	for i, path := range paths {
		shown[i] = prose.Short(prose.Path(path), maxShownPath)
	}
	if len(paths) < of {
		shown = append(shown, "...")
	}
	return " (" + strings.Join(shown, ", ") + ")"
}

// maxShownPath bounds a path in such a list, in characters.
const maxShownPath = 200

// cutMatches is how many matches have a line that is cut.
func cutMatches(matches []protocol.Match) (n int) {
	for i := range matches {
		if matches[i].Cut > 0 {
			n++
		}
	}
	return n
}

func linesAre(n int) string {
	if n == 1 {
		return "1 line is"
	}
	return fmt.Sprintf("%d lines are", n)
}

// fittingEntries returns the lines of a list that fit, each ended by a line feed, and how many: at
// most [plain.MaxListed].
func fittingEntries(list protocol.Value) (string, int) {
	lines, _ := plain.Lines(list)
	return fittingLines(lines)
}

func fittingLines(lines []string) (string, int) {
	var b strings.Builder
	used := 0
	for i, line := range lines[:min(len(lines), plain.MaxListed)] {
		line = prose.Ended(prose.Short(line, prose.BodyLimit-1))
		if used += utf8.RuneCountInString(line); used > prose.BodyLimit {
			return b.String(), i
		}
		b.WriteString(line)
	}
	return b.String(), min(len(lines), plain.MaxListed)
}
