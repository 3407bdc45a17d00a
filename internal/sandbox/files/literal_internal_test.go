package files

import (
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestLiteral: a search looks for a text that every match has, and at no other lines.
func TestLiteral(t *testing.T) {
	t.Parallel()
	for pattern, want := range map[string]string{
		`func F1\b`: "func F1", `a|b`: "", `fn .*Name\(`: "Name(", `x(?:yz)+w?`: "yz", `(abc){2}`: "abc", `(abc)*d`: "d", `(abc){0,2}`: "",
		`(?i)aBc`: "abc", `a(?i)bcd`: "bcd", `(?i)strasse`: "tra", `(?i)KÄX`: "x", `(?i)İzmir`: "zmir", `\x{fffd}abc`: "", `^\s*$`: "", `end\r`: "end\r", `αβ.`: "αβ", `(a*)*`: "", `[a]b`: "ab",
	} {
		compiled := regexp.MustCompile(pattern)
		found := literalOf(compiled)
		require.Equal(t, want, found.text, pattern)
		for _, line := range []string{"func F1() {}", "fn t Name()", "xyzyz", "abcabc", "d", "ABC", "aBCD", "\xffabc", "", "end\r", "αβγ", "aab", "\u017fTra\u017f\u017fe", "\u212aäX", "İZMIR"} {
			if compiled.MatchString(line) {
				if found.folded {
					line = string(lowered([]byte(line)))
				}
				require.Contains(t, line, want, pattern)
			}
		}
	}
}
