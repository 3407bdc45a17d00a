//go:build unix

package main

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// On a terminal the home directory is asked about, and nothing but yes is yes.
func TestWholeHome_IsAskedAbout(t *testing.T) {
	t.Parallel()
	for answer, want := range map[string]int{"y\n": 0, "\n": 2, "what?\n": 2} {
		c := openAt(t, []string{"HOME={dir}"}, "y\n", "run", "--model", script(t, `{"text": "Done."}`), "go")
		c.shows("The workspace is all of", 1)
		c.typeIn(answer)
		code, _ := c.ends()
		require.Equal(t, want, code, "%q: %s", answer, c.screen.String())
		if want == 2 {
			require.Contains(t, c.screen.String(), "--whole-home")
		}
	}
}
