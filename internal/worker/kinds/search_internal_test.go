package kinds

import (
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRipgrepPattern_IsLooser(t *testing.T) {
	t.Parallel()
	const anyOne = `(?-u:[^\n]){1,4}`
	for pattern, want := range map[string]string{
		`abc`:       `abc`,
		`a.c`:       `(?:a` + anyOne + `c)`,
		`^a$`:       `(?:(?m:^)a)`,
		`\bfoo\b`:   `(?:foo)`,
		`\w+\(`:     `(?:(?:[0-9A-Z_a-z])+\()`,
		`[^"]*`:     `(?:` + anyOne + `)*`,
		`a{2,3}|b?`: `(?:(?:a){2,3}|(?:b)?)`,
		`x{2,}`:     `(?:x){2,}`,
		``:          ``,
	} {
		got, ok := ripgrepPattern(pattern, false)
		require.True(t, ok, pattern)
		require.Equal(t, want, got, pattern)
	}
	got, ok := ripgrepPattern("é", true)
	require.True(t, ok)
	require.Equal(t, "(?i:É)", got)
	got, ok = ripgrepPattern("é|ÿ", false)
	require.True(t, ok)
	require.Equal(t, anyOne, got)
	for _, pattern := range []string{"a\nb", "("} {
		_, ok := ripgrepPattern(pattern, false)
		require.False(t, ok, pattern)
	}
}

// What is loosened matches wherever the pattern does; said with what Go has for bytes that are no
// characters.
func FuzzRipgrepPattern(f *testing.F) {
	for _, pattern := range []string{"abc", "a.c$", `\bx\B`, `(?i)straße|k`, `[^a-z]{2,}`, `\s+$`, "\uFFFD"} {
		f.Add(pattern, "xx abc\xffStraSSe K \u212a", true)
	}
	f.Fuzz(func(t *testing.T, pattern, line string, ignoreCase bool) {
		strict, err := regexp.Compile(map[bool]string{true: "(?i)"}[ignoreCase] + pattern)
		if err != nil {
			return
		}
		loose, ok := ripgrepPattern(pattern, ignoreCase)
		if !ok || !strict.MatchString(line) {
			return
		}
		inGo, err := regexp.Compile(regexp.MustCompile(regexp.QuoteMeta(anyText)).ReplaceAllLiteralString(loose, `(?s:.)`))
		if err != nil {
			return // too large for Go, perhaps
		}
		require.True(t, inGo.MatchString(line), "%q became %q and does not match %q", pattern, loose, line)
	})
}
