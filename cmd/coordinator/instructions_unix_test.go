//go:build unix

package main

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/pkg/protocol"
)

func TestInstructions_OfAWorkspace(t *testing.T) {
	t.Parallel()
	outside := filepath.Join(t.TempDir(), "secret")
	require.NoError(t, os.WriteFile(outside, []byte("secret"), 0o600))
	write := func(name, text string) func(t *testing.T, dir string) {
		return func(t *testing.T, dir string) {
			t.Helper()
			require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
		}
	}
	link := func(target, name string) func(t *testing.T, dir string) {
		return func(t *testing.T, dir string) {
			t.Helper()
			require.NoError(t, os.Symlink(target, filepath.Join(dir, name)))
		}
	}
	long := strings.Repeat("é", maxProject/2)
	type files = []protocol.InstructionFile
	tests := map[string]struct {
		steps []func(t *testing.T, dir string)
		want  files
		warns string
	}{
		"none":  {want: files{}},
		"one":   {[]func(*testing.T, string){write("AGENTS.md", " Run make check.\n")}, files{{Name: "AGENTS.md", Text: "Run make check."}}, ""},
		"empty": {[]func(*testing.T, string){write("AGENTS.md", " \n")}, files{}, ""},
		"both": {
			[]func(*testing.T, string){write("CLAUDE.md", "b"), write("AGENTS.md", "a")},
			files{{Name: "AGENTS.md", Text: "a"}, {Name: "CLAUDE.md", Text: "b"}},
			"",
		},
		"a link": {[]func(*testing.T, string){write("AGENTS.md", "a"), link("AGENTS.md", "CLAUDE.md")}, files{{Name: "AGENTS.md", Text: "a"}}, ""},
		"out of it": {
			[]func(*testing.T, string){link(outside, "AGENTS.md"), write("CLAUDE.md", "b")},
			files{{Name: "CLAUDE.md", Text: "b"}},
			"AGENTS.md of the workspace is left out",
		},
		"long":         {[]func(*testing.T, string){write("AGENTS.md", "x"+long)}, files{{Name: "AGENTS.md", Text: "x" + long[:maxProject-2] + leftOut}}, "larger than 32 KiB"},
		"just as long": {[]func(*testing.T, string){write("AGENTS.md", long)}, files{{Name: "AGENTS.md", Text: long}}, ""},
		"a FIFO": {[]func(*testing.T, string){func(t *testing.T, dir string) {
			t.Helper()
			require.NoError(t, syscall.Mkfifo(filepath.Join(dir, "AGENTS.md"), 0o600))
		}}, files{}, "is not a regular file"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			for _, step := range test.steps {
				step(t, dir)
			}
			warned := ""
			got, err := (&instructionFlags{}).project(dir, func(message string) { warned += message })
			require.NoError(t, err)
			require.Equal(t, test.want, got)
			require.Equal(t, test.warns == "", warned == "", warned)
			require.Contains(t, warned, test.warns)
		})
	}
	none, err := (&instructionFlags{NoProjectInstructions: true}).project("nowhere", nil)
	require.NoError(t, err)
	require.Equal(t, files{}, none, "which is said, unlike")
	open, err := (&instructionFlags{}).project("", nil)
	require.NoError(t, err)
	require.Nil(t, open)
}
