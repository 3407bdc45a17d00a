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
		`func F1\b`: "func F1", `a|b`: "", `func .*Name\(`: "Name(", `x(?:yz)+w?`: "yz", `(abc){2}`: "abc", `(abc)*d`: "d", `(abc){0,2}`: "",
		`(?i)abc`: "", `a(?i)bcd`: "a", `\x{fffd}abc`: "", `^\s*$`: "", `end\r`: "end\r", `αβ.`: "αβ", `(a*)*`: "", `[a]b`: "ab",
	} {
		compiled := regexp.MustCompile(pattern)
		require.Equal(t, want, literal(compiled), pattern)
		for _, line := range []string{"func F1() {}", "func (t T) Name()", "xyzyz", "abcabc", "d", "ABC", "aBCD", "\xffabc", "", "end\r", "αβγ", "aab"} {
			if compiled.MatchString(line) {
				require.Contains(t, line, want, pattern)
			}
		}
	}
}
