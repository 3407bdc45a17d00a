package gitignore_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/sandbox/internal/gitignore"
)

// Names and endings are looked up; patterns, which are tried one by one, are bounded.
func TestRules_ManyOfThem(t *testing.T) {
	t.Parallel()
	var file strings.Builder
	for i := range 50_000 {
		_, _ = fmt.Fprintf(&file, "n%d\n/p/%d\n*.e%d\n", i, i, i)
	}
	file.WriteString("!n7\n")
	for i := range gitignore.MaxPatterns + 1 {
		_, _ = fmt.Fprintf(&file, "x?%d\n", i)
	}
	rules := gitignore.Rules(nil).With(".", file.String())
	for name, excluded := range map[string]bool{
		"n49999": true, "d/n49999": true, "n7": false, "n50000": false, "p/49999": true, "d/p/49999": false, "a.e49999": true, ".e0": true,
		"a.e50000": false, "xy999": true, fmt.Sprint("xy", gitignore.MaxPatterns): false,
	} {
		require.Equal(t, excluded, rules.Excludes(name, false), name)
	}
	below := rules.With("d", "x?a\nb\n")
	require.False(t, below.Excludes("d/xya", false), "the patterns above are as many as are heeded")
	require.True(t, below.Excludes("d/b", false))
}

// 50,000 lines must not make each of 50,000 names a search through all of them.
func BenchmarkRules_Names(b *testing.B) {
	var file strings.Builder
	for i := range 50_000 {
		_, _ = fmt.Fprintf(&file, "n%d\n", i)
	}
	rules := gitignore.Rules(nil).With(".", file.String())
	for b.Loop() {
		rules.Excludes("some/name", false)
	}
}
