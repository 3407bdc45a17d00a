package system_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/system"
)

func TestWithin(t *testing.T) {
	t.Parallel()
	for _, in := range [][2]string{{"a", "a"}, {"a", "a/b/c"}, {"/", "/"}, {"/", "/a"}, {"/a", "/a/..b"}, {"", "a"}, {".", "a/b"}, {"", ""}} {
		require.True(t, system.Within(in[0], in[1]), in)
	}
	for _, out := range [][2]string{{"a", "ab"}, {"a/b", "a"}, {"/a", "/"}, {"/a", "/ab"}, {"/a", "a"}, {"a", "/a"}, {"a", ""}, {"", ".."}, {"a", "../a"}} {
		require.False(t, system.Within(out[0], out[1]), out)
	}
}
