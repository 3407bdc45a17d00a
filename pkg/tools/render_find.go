package tools

import (
	"fmt"
	"strings"

	"github.com/toolfleet/toolfleet/pkg/protocol"
)

func globText(v protocol.FilesGlobResult) string {
	skipped := ignoredText(v.Ignored)
	if v.Skipped > 0 {
		skipped += fmt.Sprintf("; %d directories could not be read", v.Skipped)
	}
	if len(v.Paths) == 0 {
		return "[no files match" + skipped + "; **/NAME looks at every depth]"
	}
	lines := make([]string, 0, len(v.Paths))
	for _, path := range v.Paths {
		lines = append(lines, name(path))
	}
	body, shown := fitting(lines)
	if total := max(v.Total, len(lines)); shown < total {
		return body + fmt.Sprintf("[%d of %d files%s; use a narrower pattern or path for the others]", shown, total, skipped)
	}
	return body + fmt.Sprintf("[%s%s]", plural(shown, "file"), skipped)
}

// treeText is one line an entry, indented by its depth.
func treeText(v protocol.FilesTreeResult) string {
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
	return name(v.Path) + "/\n" + body + "[" + strings.Join(marks, "; ") + ignoredText(v.Ignored) + "]"
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
