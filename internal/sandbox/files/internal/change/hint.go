package change

import (
	"bytes"
	"fmt"
	"strings"

	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Bounds of a hint.
const (
	hintLines = 5   // lines shown
	hintWidth = 200 // bytes of each
)

// hint says why the old text of an edit may not have been found.
func hint(content []byte, req protocol.FileEdit) string {
	if req.New != "" {
		if at := bytes.Index(content, []byte(req.New)); at >= 0 {
			return fmt.Sprintf("The new text is there already, at line %d: perhaps the edit has been made before.",
				1+bytes.Count(content[:at], []byte{'\n'}))
		}
	}
	lines := bytes.SplitAfter(content, []byte{'\n'})
	wanted := strings.Split(strings.Trim(req.Old, "\n"), "\n")
	at, exact := nearest(lines, wanted)
	if at < 0 {
		return "No line of it is like the old text: read the file again."
	}
	why := "The most similar line is"
	if exact {
		why = "It differs in white space or in its other lines. The file has"
	}
	return fmt.Sprintf("%s line %d:\n%s", why, at+1, excerpt(lines[at:], min(len(wanted), hintLines)))
}

// nearest returns the index of the line that is most like the first line of wanted
// that is not blank, less the number of lines before that; -1 when none is like it.
// exact says that it differs in its outer white space only.
func nearest(lines [][]byte, wanted []string) (at int, exact bool) {
	before := 0
	for before < len(wanted)-1 && strings.TrimSpace(wanted[before]) == "" {
		before++
	}
	want := []byte(strings.TrimSpace(wanted[before]))
	best, at := len(want)/2, -1 // half of it has to match
	for i, line := range lines {
		line = bytes.TrimSpace(line)
		if bytes.Equal(line, want) {
			if len(want) == 0 {
				continue
			}
			return max(i-before, 0), true
		}
		if score := common(line, want); score > best {
			best, at = score, max(i-before, 0)
		}
	}
	return at, false
}

// common is the length of the shared start and end of two lines.
func common(a, b []byte) int {
	n := min(len(a), len(b))
	head := 0
	for head < n && a[head] == b[head] {
		head++
	}
	tail := 0
	for tail < n-head && a[len(a)-1-tail] == b[len(b)-1-tail] {
		tail++
	}
	return head + tail
}

// excerpt returns the first n lines, each cut, as valid text.
func excerpt(lines [][]byte, n int) string {
	var out strings.Builder
	for _, line := range lines[:min(n, len(lines))] {
		line = bytes.TrimRight(line, "\r\n")
		out.WriteString(strings.ToValidUTF8(string(line[:runeBorder(line, hintWidth)]), "\uFFFD"))
		out.WriteByte('\n')
	}
	return out.String()
}
