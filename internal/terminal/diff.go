package terminal

import (
	"fmt"
	"iter"
	"strings"
	"time"
)

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
