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

// What is cut splits no character, neither at its end nor at its start, and what is no text is left
// as it is.
func TestCut(t *testing.T) {
	t.Parallel()
	require.Equal(t, "aé", Cut("aé", 3))
	require.Equal(t, "a...", Cut("aéb", 2))
	require.Equal(t, "aé...", Cut("aéb", 3))
	require.Empty(t, Cut("", 0))
	rapid.Check(t, func(t *rapid.T) {
		s := rapid.StringOfN(rapid.RuneFrom([]rune("aé日😀")), 0, 20, -1).Draw(t, "s")
		at := rapid.IntRange(0, len(s)).Draw(t, "at")
		head, tail := s[:Border(s[:at])], s[at:][Start(s[at:]):]
		require.True(t, utf8.ValidString(head))
		require.True(t, utf8.ValidString(tail))
		require.LessOrEqual(t, len(s)-len(head)-len(tail), utf8.UTFMax)
	})
	for _, binary := range []string{"\xff\xfe", "\x80\x80\x80\x80\x80"} {
		require.Equal(t, len(binary), Border(binary))
		require.Zero(t, Start([]byte(binary)))
	}
}

func TestOneLine(t *testing.T) {
	t.Parallel()
	require.Equal(t, "account/näme x", OneLine("account/näme x"))
	require.Equal(t, `"a\x1b[31m/b"`, OneLine("a\x1b[31m/b"))
	require.Equal(t, `"a\nb"`, OneLine("a\nb"))
	require.Equal(t, `"a\xff"`, OneLine("a\xff"))
	require.Empty(t, OneLine(""))
	require.Equal(t, ".", Path(""))
}
