package isolation_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
)

func TestCleanProtected(t *testing.T) {
	t.Parallel()
	for want, places := range map[string][]string{
		"":           nil,
		"a":          {"a", "./a/", "a/b/c", "a/../a"},
		"a b c/d ab": {"b", "c/d", "ab", "a"},
		"...":        {"..."},
	} {
		got, err := isolation.CleanProtected(places)
		require.NoError(t, err, places)
		require.ElementsMatch(t, strings.Fields(want), got, places)
	}
	for place, fault := range map[string]string{
		"": "the workspace itself", ".": "the workspace itself", "a/..": "the workspace itself", "..": "relative to it", "a/../../b": "relative to it",
		"/a": "relative to it", "a\x00": "without NUL", "\xff": "UTF-8", strings.Repeat("a", 256): "256 bytes", strings.Repeat("a/", 3000) + "a": "6001 bytes",
	} {
		_, err := isolation.CleanProtected([]string{"fine", place})
		require.ErrorContains(t, err, "protected place", "%.10q", place)
		require.ErrorContains(t, err, fault, "%.10q", place)
	}
	_, err := isolation.CleanProtected(make([]string, isolation.MaxProtected+1))
	require.ErrorContains(t, err, "1025 protected places: at most 1024")
}
