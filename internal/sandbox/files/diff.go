package files

import (
	"fmt"
	"strings"

	"github.com/aymanbagabas/go-udiff"
)

// Bounds of diffs, in bytes.
const (
	maxDiff      = 8 << 10
	maxDiffInput = 512 << 10 // of either side
)

// diff returns a unified diff, cut at maxDiff; "" when there is no difference, or
// when either side is binary or large.
func diff(name string, before, after []byte, created bool) string {
	if len(before) > maxDiffInput || len(after) > maxDiffInput {
		return ""
	}
	before, _, wasText := decode(before)
	after, _, isText := decode(after)
	if !wasText || !isText {
		return ""
	}
	from, to := "a/"+name, "b/"+name
	if created {
		from = "/dev/null"
	}
	old := string(before)
	text, err := udiff.ToUnified(from, to, old, udiff.Lines(old, string(after)), udiff.DefaultContextLines)
	if err != nil {
		return ""
	}
	if len(text) <= maxDiff {
		return text
	}
	cut := strings.LastIndexByte(text[:maxDiff], '\n') + 1
	return text[:cut] + fmt.Sprintf("[... %d bytes of the diff left out ...]\n", len(text)-cut)
}
