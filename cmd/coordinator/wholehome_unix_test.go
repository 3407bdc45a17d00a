//go:build unix

package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// What last stands for is removed on a terminal after a yes alone, or with --yes.
func TestSessionRemove_AsksOnATerminal(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		args    []string
		answer  string
		removed bool
	}{
		"no":           {[]string{"last"}, "n\n", false},
		"yes":          {[]string{"last"}, "y\n", true},
		"not asked":    {[]string{"--yes", "last"}, "", true},
		"the id whole": {[]string{"a-session"}, "", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			state := t.TempDir()
			dir := filepath.Join(state, "toolfleet", "local", "sessions", "a-session")
			require.NoError(t, os.MkdirAll(dir, 0o700))
			c := openAt(t, []string{"XDG_STATE_HOME=" + state}, "", append([]string{"session", "rm"}, test.args...)...)
			if test.answer != "" {
				c.shows("remove session a-session (last)?", 1)
				c.typeIn(test.answer)
			}
			<-c.done
			_, err := os.Stat(dir)
			require.Equal(t, test.removed, err != nil, c.screen.String())
		})
	}
}

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
