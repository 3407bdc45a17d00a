package terminal

import (
	"slices"
	"strings"

	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// resultBody shows a result: the whole error, some lines of the model's text, and the changes.
func (v *View) resultBody(e *loop.Event, indent string) {
	content := e.Content
	if e.Diff != "" {
		content = strings.Replace(content, e.Diff, "", 1)
	}
	if e.Error != nil {
		message := v.flow(indent+v.marks.bar, indent+v.marks.bar)
		message.add(e.Error.Message)
		message.end()
		content = withoutError(content, e)
	}
	if changed := changesOf(e.Diff); e.Error == nil && len(changed) == 1 && v.live != nil {
		v.diff(e.Diff, indent, lineFrom, lineTo) // the line above names the file
		return
	}
	for _, line := range excerpt(content, v.live.resultLines()) {
		v.barred(indent, dim, line)
	}
	v.diff(e.Diff, indent)
}

// resultLines is how much is shown of a result. Of one that was seen as it came it is less.
func (r *region) resultLines() int {
	if r != nil {
		return maxFoldedLines
	}
	return maxResultLines
}

// withoutError drops from a content the lines that begin it when a call failed:
// they were shown already.
func withoutError(content string, e *loop.Event) string {
	rest, headed := strings.CutPrefix(content, "["+e.Status+": "+string(e.Error.Code)+"]\n")
	rest, said := strings.CutPrefix(rest, strings.TrimSpace(e.Error.Message))
	if !headed || !said {
		return content
	}
	return rest
}

// diff shows a diff, without the end of a long one, and without lines of some kinds.
func (p *page) diff(diff, indent string, without ...lineKind) {
	shown := 0
	for kind, line := range diffLines(diff) {
		if kind == lineCut && line == "" || slices.Contains(without, kind) {
			continue
		}
		if shown++; shown > maxDiffLines {
			continue
		}
		p.barred(indent, diffStyle(kind), line)
	}
	if shown > maxDiffLines {
		p.barred(indent, dim, "… "+Plural(shown-maxDiffLines, "more line")+" of the diff")
	}
}

func diffStyle(kind lineKind) style {
	switch kind {
	case lineAdded:
		return green
	case lineRemoved:
		return red
	case lineHunk:
		return cyan
	case lineFrom, lineTo:
		return bold
	default:
		return dim
	}
}

// barred adds one line of a result.
func (p *page) barred(indent string, st style, line string) {
	room := max(p.width-len(indent)-columns(p.marks.bar), minWidth/2)
	p.line(indent + p.ink.paint(dim, strings.TrimRight(p.marks.bar, " ")) + prefixed(p.marks.bar[len(strings.TrimRight(p.marks.bar, " ")):], p.ink.paint(st, strings.TrimRight(fit(line, room), " "))))
}

// prefixed returns s behind a prefix, and nothing for nothing.
func prefixed(prefix, s string) string {
	if s == "" {
		return ""
	}
	return prefix + s
}

// exitOf says how a command ended that ran and did not succeed: "exit code 2", "ended by signal
// KILL"; "" for all else. The text that a model reads of a result ends with that, in brackets.
func exitOf(e *loop.Event) string {
	if e.Status != string(protocol.StatusOK) {
		return ""
	}
	rest := strings.TrimRight(e.Content, "\n")
	for {
		at := strings.LastIndexByte(rest, '\n') + 1
		mark, isMark := strings.CutPrefix(rest[at:], "[")
		mark, ends := strings.CutSuffix(mark, "]")
		if !isMark || !ends {
			return ""
		}
		code, isCode := strings.CutPrefix(mark, "exit code ")
		if isCode && strings.Trim(code, "0123456789") == "" && code != "0" || strings.HasPrefix(mark, "ended by signal ") {
			return mark
		}
		if at == 0 {
			return ""
		}
		rest = rest[:at-1]
	}
}
