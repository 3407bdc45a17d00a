package render

import (
	"fmt"
	"strings"

	"github.com/toolfleet/toolfleet/internal/wire"
)

// maxPaths is how many paths of a merge a model is shown of one kind.
const maxPaths = 50

// Merge is what a model reads of a merge of workspaces.
func Merge(m wire.WorkspaceMergeResult) string { return "[" + MergeText(m) + "]" }

// MergeText is what a person reads of a merge of workspaces.
func MergeText(m wire.WorkspaceMergeResult) string {
	if len(m.Written)+len(m.Removed)+len(m.Conflicts)+len(m.Protected) == 0 && !m.Commits {
		return "Nothing that changed in the fork was missing in the workspace."
	}
	var lines []string
	add := func(what string, paths []string) {
		if len(paths) == 0 {
			return
		}
		shown := paths[:min(len(paths), maxPaths)]
		line := what + strings.Join(shown, ", ")
		if more := len(paths) - len(shown); more > 0 {
			line += fmt.Sprintf(" and %d more", more)
		}
		lines = append(lines, line)
	}
	add("changed: ", m.Written)
	add("changed on both sides, and merged: ", m.Merged)
	add("removed: ", m.Removed)
	add("CONFLICTS, changed on both sides, and left as they are in the workspace: ", m.Conflicts)
	add("what the fork has of them: ", m.Theirs)
	add("protected, and left as they are: ", m.Protected)
	if m.Commits {
		lines = append(lines, "The commits of the fork stay there: its files are merged, and can be committed here.")
	}
	return "Merged into the workspace:\n" + strings.Join(lines, "\n")
}
