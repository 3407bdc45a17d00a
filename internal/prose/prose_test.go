package prose

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestClip_KeepsToItsLimitAndLosesNothingUnsaid(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		limit := rapid.IntRange(100, 300).Draw(t, "limit")
		s := rapid.StringOfN(rapid.RuneFrom([]rune("aé日😀\n")), 0, 600, -1).Draw(t, "s")
		out := Clip(s, limit)
		require.True(t, utf8.ValidString(out))
		require.LessOrEqual(t, utf8.RuneCountInString(out), limit)
		if utf8.RuneCountInString(s) <= limit {
			require.Equal(t, s, out)
			return
		}
		head, rest, found := strings.Cut(out, "\n[... ")
		require.True(t, found)
		number, tail, found := strings.Cut(rest, " characters left out ...]\n")
		require.True(t, found)
		require.True(t, strings.HasPrefix(s, head))
		require.True(t, strings.HasSuffix(s, tail))
		left := utf8.RuneCountInString(s) - utf8.RuneCountInString(head) - utf8.RuneCountInString(tail)
		require.Equal(t, number, decimalOf(left))
	})
}

func decimalOf(n int) string {
	if n < 10 {
		return string(rune('0' + n))
	}
	return decimalOf(n/10) + string(rune('0'+n%10))
}

func TestShort(t *testing.T) {
	t.Parallel()
	require.Equal(t, "ééé", Short("ééé", 3))
	require.Equal(t, "é…", Short("ééé", 2))
	require.Empty(t, Short("", 1))
}

func TestHeadOf(t *testing.T) {
	t.Parallel()
	require.Equal(t, "ééé", Head("ééé", 3))
	require.Equal(t, "éé [... and 1 more characters]", Head("ééé", 2))
}
