package render

import (
	"fmt"
	"strings"

	"github.com/toolfleet/toolfleet/internal/modeltext/plain"
	"github.com/toolfleet/toolfleet/internal/modeltext/prose"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Write says what was written.
func Write(v protocol.FilesWriteResult) string {
	what := "Replaced the content of"
	if v.Created {
		what = "Created"
	}
	return fmt.Sprintf("%s %s (%s, SHA-256 %s).", what, prose.Path(v.Path), prose.Plural(v.Bytes, "byte"), v.SHA256) + linksText(v.Links)
}

// JSONWrite names the written file, and the position in it.
func JSONWrite(v protocol.FilesJSONWriteResult) string {
	what := "Changed"
	if v.Created {
		what = "Created"
	}
	return fmt.Sprintf("%s %s (%s, SHA-256 %s).", what, prose.Path(v.Path), prose.Plural(v.Bytes, "byte"), v.SHA256) + linksText(v.Links)
}

// Edit lists the changes, those that were not made and why, and the diff.
func Edit(v protocol.FilesEditResult, r rest) string {
	made, failed := 0, 0
	var notes []string
	for i, outcome := range v.Outcomes {
		switch {
		case outcome.Error != nil:
			failed++
			notes = append(notes, "not made: "+prose.Plain(outcome.Error.Message))
		case outcome.Offset != 0:
			notes = append(notes, fmt.Sprintf("hunk %d was applied at line %d, %s than its header says",
				i+1, outcome.Line, further(outcome.Offset)))
			made++
		default:
			made++
		}
	}
	text := fmt.Sprintf("Edited %s: %s (%s, SHA-256 %s).", prose.Path(v.Path), prose.Plural(v.Replacements, "replacement"), prose.Plural(v.Bytes, "byte"), v.SHA256)
	if failed > 0 {
		text = fmt.Sprintf("Edited %s: %d of %d edits were made (%s, SHA-256 %s).",
			prose.Path(v.Path), made, made+failed, prose.Plural(v.Bytes, "byte"), v.SHA256)
	}
	text += linksText(v.Links)
	for _, note := range notes {
		text += "\n[" + prose.Head(note, plain.MaxLine) + "]"
	}
	if v.Diff != "" {
		text += "\n" + prose.Clip(prose.Valid(v.Diff), prose.BodyLimit/2)
	}
	if shown := prose.Clip(text, prose.BodyLimit); shown != text {
		return shown + r.mark(wire.PartValue)
	}
	return text
}

// linksText says in a line that a change is not in all names of a file; "" where it is.
func linksText(links int) string {
	if links == 0 {
		return ""
	}
	return fmt.Sprintf("\n[the file had %s (hard links), which keep the old content]", prose.Plural(links, "other name"))
}

// further says an offset in words.
func further(offset int) string {
	if offset < 0 {
		return prose.Plural(-offset, "line") + " further up"
	}
	return prose.Plural(offset, "line") + " further down"
}

// JSONRead is the value as JSON.
func JSONRead(v protocol.FilesJSONReadResult, r rest) string {
	if len(v.Value) == 0 {
		return "[the worker sent no value]"
	}
	return prose.FitJSON([]byte(prose.Valid(string(v.Value))), r.note(""))
}

// maxPaths is how many paths of a merge a model is shown of one kind.
const maxPaths = 50

// Merge is what a model reads of a merge of workspaces.
func Merge(m wire.WorkspaceMergeResult) string { return "[" + MergeText(m) + "]" }

// MergeText is what a person reads of a merge of workspaces.
func MergeText(m wire.WorkspaceMergeResult) string {
	if len(m.Written)+len(m.Removed)+len(m.Conflicts)+len(m.Protected) == 0 && !m.Commits {
		return "The fork has nothing new to merge."
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
	add("their versions of the fork: ", m.Theirs)
	add("protected, and left as they are: ", m.Protected)
	if m.Commits {
		lines = append(lines, "The commits of the fork stay in the fork. Its files are merged, and can be committed here.")
	}
	return "Merged into the workspace:\n" + strings.Join(lines, "\n")
}
