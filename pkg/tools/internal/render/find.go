package render

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools/internal/prose"
)

// Glob is one line a path.
func Glob(v protocol.FilesGlobResult) string {
	skipped := ignoredText(v.Ignored)
	if v.Skipped > 0 {
		skipped += fmt.Sprintf("; %d directories could not be read", v.Skipped)
	}
	if len(v.Paths) == 0 {
		return "[no files match" + skipped + "; **/NAME looks at every depth]"
	}
	lines := make([]string, 0, len(v.Paths))
	for _, path := range v.Paths {
		lines = append(lines, prose.Path(path))
	}
	body, shown := fitting(lines)
	if total := max(v.Total, len(lines)); shown < total {
		return body + fmt.Sprintf("[%d of %d files%s; use a narrower pattern or path for the others]", shown, total, skipped)
	}
	return body + fmt.Sprintf("[%s%s]", prose.Plural(shown, "file"), skipped)
}

// Tree is one line an entry, indented by its depth.
func Tree(v protocol.FilesTreeResult) string {
	lines := make([]string, 0, len(v.Entries)+1)
	above := 0
	if v.Path != "" {
		above = strings.Count(v.Path, "/") + 1
	}
	for _, entry := range v.Entries {
		base := entry.Path[strings.LastIndexByte(entry.Path, '/')+1:]
		text := entryText(protocol.DirEntry{Name: base, Type: entry.Type, Size: entry.Size})
		if entry.Hidden > 0 {
			text += fmt.Sprintf(" (%d inside)", entry.Hidden)
		}
		depth := max(strings.Count(entry.Path, "/")-above, 0)
		lines = append(lines, strings.Repeat("  ", depth)+text)
	}
	body, shown := fitting(lines)
	var marks []string
	if total := max(v.Total, len(lines)); shown < total {
		marks = append(marks, fmt.Sprintf("%d of %d entries: show a subdirectory, or less depth, for the others", shown, total))
	} else {
		marks = append(marks, entries(shown))
	}
	if v.Skipped > 0 {
		marks = append(marks, fmt.Sprintf("%d directories could not be read", v.Skipped))
	}
	return prose.Path(v.Path) + "/\n" + body + "[" + strings.Join(marks, "; ") + ignoredText(v.Ignored) + "]"
}

// ignoredText says how much ignore files exclude; "" when that is nothing.
func ignoredText(n int) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf("; %d left out by .gitignore", n)
}

func entries(n int) string {
	if n == 1 {
		return "1 entry"
	}
	return fmt.Sprintf("%d entries", n)
}

// MaxListed is how many entries, paths or lines one result shows.
const MaxListed = 500

// Search is one line a match, and how many files were searched.
func Search(v protocol.FilesSearchResult) string {
	searched := prose.Plural(v.Files, "file") + " searched"
	if v.Skipped > 0 {
		searched += fmt.Sprintf(", %d skipped: too large or unreadable", v.Skipped)
	}
	searched += ignoredText(v.Ignored)
	if len(v.Matches) == 0 {
		return "[no matches; " + searched + "]"
	}
	lines := make([]string, 0, len(v.Matches))
	for _, match := range v.Matches {
		lines = append(lines, fmt.Sprintf("%s:%d:%s", prose.Path(match.Path), match.Line, prose.Plain(match.Text)))
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

// fitting returns the lines that fit, each ended by a line feed, and how many: at most [MaxListed].
func fitting(lines []string) (string, int) {
	var b strings.Builder
	used := 0
	for i, line := range lines[:min(len(lines), MaxListed)] {
		line = prose.Ended(prose.Short(line, prose.BodyLimit-1))
		if used += utf8.RuneCountInString(line); used > prose.BodyLimit {
			return b.String(), i
		}
		b.WriteString(line)
	}
	return b.String(), min(len(lines), MaxListed)
}
