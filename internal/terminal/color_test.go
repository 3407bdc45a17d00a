package terminal_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/term"

	"github.com/toolfleet/toolfleet/internal/terminal"
)

func TestColorWanted(t *testing.T) {
	t.Parallel()
	file, err := os.Create(filepath.Join(t.TempDir(), "log"))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, file.Close()) })
	for name, c := range map[string]struct {
		env                  map[string]string
		wantFile, wantScreen bool
	}{
		"nothing set":                 {nil, false, true},
		"NO_COLOR":                    {map[string]string{"NO_COLOR": "1"}, false, false},
		"NO_COLOR, any value":         {map[string]string{"NO_COLOR": "0"}, false, false},
		"NO_COLOR empty":              {map[string]string{"NO_COLOR": ""}, false, true},
		"NO_COLOR beats force":        {map[string]string{"NO_COLOR": "1", "FORCE_COLOR": "1", "CLICOLOR_FORCE": "1"}, false, false},
		"FORCE_COLOR":                 {map[string]string{"FORCE_COLOR": "3"}, true, true},
		"FORCE_COLOR=0":               {map[string]string{"FORCE_COLOR": "0"}, false, false},
		"FORCE_COLOR=false":           {map[string]string{"FORCE_COLOR": "false"}, false, false},
		"CLICOLOR_FORCE":              {map[string]string{"CLICOLOR_FORCE": "1"}, true, true},
		"CLICOLOR_FORCE=0":            {map[string]string{"CLICOLOR_FORCE": "0"}, false, true},
		"force beats a dumb terminal": {map[string]string{"CLICOLOR_FORCE": "1", "TERM": "dumb"}, true, true},
		"dumb":                        {map[string]string{"TERM": "dumb"}, false, false},
		"xterm":                       {map[string]string{"TERM": "xterm-256color"}, false, true},
		"CLICOLOR=0":                  {map[string]string{"CLICOLOR": "0"}, false, false},
		"CLICOLOR=1":                  {map[string]string{"CLICOLOR": "1"}, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			getenv := func(key string) string { return c.env[key] }
			require.Equal(t, c.wantFile, terminal.ColorWanted(file, getenv), "a file")
			require.Equal(t, c.wantFile, terminal.ColorWanted(nil, getenv), "nothing")
			if screen := pseudoTerminal(t); screen != nil {
				require.Equal(t, c.wantScreen, terminal.ColorWanted(screen, getenv), "a terminal")
			}
		})
	}
	require.Zero(t, terminal.Width(file))
	require.Zero(t, terminal.Width(nil))
}

// pseudoTerminal returns a terminal; nil where there is none to be had.
func pseudoTerminal(t *testing.T) *os.File {
	t.Helper()
	file, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Logf("colours on a terminal are not tested: %v", err)
		return nil
	}
	t.Cleanup(func() { _ = file.Close() })
	if !term.IsTerminal(int(file.Fd())) {
		t.Log("colours on a terminal are not tested: /dev/ptmx is none")
		return nil
	}
	return file
}
