package terminal

import (
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/toolfleet/toolfleet/internal/modeltext/prose"
	"github.com/toolfleet/toolfleet/pkg/loop"
)

// resultBody shows a result: the whole error, some lines of the model's text, and the changes.
func (v *View) resultBody(e *loop.Event, indent string) {
	content := e.Content
	if e.Diff != "" {
		content = strings.Replace(content, e.Diff, "", 1)
	}
	if e.Error != nil {
		v.say(indent+v.marks.bar, indent+v.marks.bar, plain, e.Error.Message)
		content = strings.TrimPrefix(content, prose.FailureHead(e.Status, e.Error.Code, e.Error.Message)) // it was shown already
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

// resultLines is how much is shown of a result: less if its output was shown live.
func (r *region) resultLines() int {
	if r != nil {
		return maxFoldedLines
	}
	return maxResultLines
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
	room := max(p.width-len(indent)-Columns(p.marks.bar), minWidth/2)
	bar := strings.TrimRight(p.marks.bar, " ")
	p.line(indent + p.ink.paint(dim, bar) + p.marks.bar[len(bar):] + p.ink.paint(st, strings.TrimRight(Fit(line, room), " ")))
}

// lineKind is what a line of a unified diff is.
type lineKind int

const (
	lineOther lineKind = iota
	lineFrom
	lineTo
	lineHunk
	lineSame
	lineAdded
	lineRemoved
	lineCut // a hunk ends before it is complete
)

// hunk is how many lines of either side are still to come in a hunk.
type hunk struct{ before, after int }

func (h hunk) open() bool { return h.before > 0 || h.after > 0 }

// diffLines returns the lines of a unified diff. Inside a hunk it counts: a
// removed line "-- a" is not the name of a file.
func diffLines(diff string) iter.Seq2[lineKind, string] {
	return func(yield func(lineKind, string) bool) {
		var h hunk
		for _, line := range lines(diff) {
			if !yield(h.next(line), line) {
				return
			}
		}
		if h.open() {
			yield(lineCut, "")
		}
	}
}

func (h *hunk) next(line string) lineKind {
	if h.open() {
		return h.inside(line)
	}
	switch {
	case strings.HasPrefix(line, "--- "):
		return lineFrom
	case strings.HasPrefix(line, "+++ "):
		return lineTo
	case strings.HasPrefix(line, "@@ "):
		*h = hunkOf(line)
		return lineHunk
	case strings.HasPrefix(line, "[... "):
		return lineCut
	default:
		return lineOther
	}
}

func (h *hunk) inside(line string) lineKind {
	switch {
	case line == "" || line[0] == ' ':
		h.before--
		h.after--
		return lineSame
	case line[0] == '+':
		h.after--
		return lineAdded
	case line[0] == '-':
		h.before--
		return lineRemoved
	case line[0] == '\\': // no newline at the end of the file
		return lineOther
	default:
		*h = hunk{}
		return lineCut
	}
}

// hunkOf reads "@@ -1,3 +1,4 @@"; a side without count has one line.
func hunkOf(header string) hunk {
	fields := strings.Fields(header)
	if len(fields) < 3 {
		return hunk{}
	}
	return hunk{before: sideOf(fields[1]), after: sideOf(fields[2])}
}

func sideOf(field string) int {
	_, number, ok := strings.Cut(field, ",")
	if !ok {
		return 1
	}
	n := 0
	if _, err := fmt.Sscanf(number, "%d", &n); err != nil {
		return 0
	}
	return n
}

// change is what was done to one file.
type change struct {
	path           string
	added, removed int
	created, gone  bool
	partial        bool      // there was more than the diff showed
	uncounted      bool      // the number of lines is unknown
	at             time.Time // of the last report of a tool
}

// ChangedIn lists the files of a diff.
func ChangedIn(diff string) []Changed {
	changes := changesOf(diff)
	files := make([]Changed, len(changes))
	for i := range changes {
		files[i] = Changed{Path: changes[i].path, Created: changes[i].created, Gone: changes[i].gone}
	}
	return files
}

// Hunk is a part of a file that a diff changes.
type Hunk struct {
	Path     string
	Line     int // where it begins now, from 1
	Old, New string
	Created  bool // the file did not exist
}

// HunksIn lists the hunks of a diff of any number of files.
func HunksIn(diff string) (all []Hunk) {
	var path string
	created := false
	for kind, line := range diffLines(diff) {
		switch kind {
		case lineFrom:
			path = pathOf(line, "a/")
			created = path == noFile
		case lineTo:
			if to := pathOf(line, "b/"); to != noFile {
				path = to
			}
		case lineHunk:
			h := Hunk{Path: path, Created: created, Line: 1}
			if fields := strings.Fields(line); len(fields) > 2 {
				_, _ = fmt.Sscanf(fields[2], "+%d", &h.Line) // else it is at the beginning
			}
			h.Line = max(h.Line, 1)
			all = append(all, h)
		case lineSame, lineAdded, lineRemoved:
			h, text := &all[len(all)-1], line[min(1, len(line)):]+"\n" // a hunk has begun
			if kind != lineAdded {
				h.Old += text
			}
			if kind != lineRemoved {
				h.New += text
			}
		default:
		}
	}
	return all
}

// changesOf reads a diff of any number of files.
func changesOf(diff string) []change {
	var all []change
	from := ""
	for kind, line := range diffLines(diff) {
		switch kind {
		case lineFrom:
			from = pathOf(line, "a/")
		case lineTo:
			c := change{path: pathOf(line, "b/"), created: from == noFile}
			if c.path == noFile {
				c.path, c.gone = from, true
			}
			all = append(all, c)
		default:
			if len(all) > 0 {
				all[len(all)-1].count(kind, line)
			}
		}
	}
	return all
}

func (c *change) count(kind lineKind, line string) {
	if c.created { // its one hunk says how many lines there are, also when they are cut off
		if kind == lineHunk {
			c.added += hunkOf(line).after
		}
		return
	}
	switch kind {
	case lineAdded:
		c.added++
	case lineRemoved:
		c.removed++
	case lineCut:
		c.partial = true
	default:
	}
}

// noFile stands in a diff for a file that is not there.
const noFile = "/dev/null"

func pathOf(line, side string) string {
	path, _, _ := strings.Cut(line[len("+++ "):], "\t")
	return strings.TrimPrefix(path, side)
}
