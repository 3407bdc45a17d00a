//go:build linux

package confine

import (
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestCoreLimit: a crash starts no handler of the host, whatever this process may have.
func TestCoreLimit(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		hard    uint64
		pattern string
		want    uint64
		fails   bool
	}{
		"as it comes":              {unix.RLIM_INFINITY, "|/usr/share/apport/apport -p%p", NoCore, false},
		"one":                      {1, "|/bin/handler", NoCore, false},
		"zero, files":              {0, "core.%p\n", 0, false},
		"zero, a handler":          {0, "|/bin/handler\n", 0, true},
		"zero, a socket":           {0, "@@/run/coredump\n", 0, true},
		"zero, and nobody can say": {0, "", 0, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := coreLimit(test.hard, test.pattern)
			require.Equal(t, test.want, got)
			if test.fails {
				require.ErrorContains(t, err, "LimitCORE=1")
				return
			}
			require.NoError(t, err)
		})
	}
}
