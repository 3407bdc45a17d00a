//go:build unix

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A conversation has several turns in one session; what one changed can be seen and undone.
func TestChat_TurnsOfOneSession(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	model := script(t, `
		{"text": "I write.", "tool_calls": [{"name": "write", "arguments": {"path": "made.txt", "content": "new\n"}}]},
		{"text": "First is done."},
		{"tool_calls": [{"name": "bash", "arguments": {"command": "echo waits; sleep 1000"}}]},
		{"text": "Third is done."}`)
	args := []string{"chat", "--sandbox", "process", "--workspace", ".", "--data", data, "--model", model}
	m := inTmux(t, 80, nil, args...)
	require.NoError(t, os.WriteFile(filepath.Join(m.dir, "readme.txt"), []byte("a\n"), 0o600))
	m.shows("/help says", "\n›")
	m.keys("-l", "look at @rea")
	m.keys("Tab")
	m.shows("› look at @readme.txt")
	m.keys("Enter")
	m.shows("First is done.", "answered", "made.txt  +1 −0  new")
	m.keys("/diff", "Enter")
	m.shows("+++ b/made.txt\n@@ -0,0 +1 @@\n+new\n")
	m.keys("/undo", "Enter")
	m.shows("1 new file removed")
	require.NoFileExists(t, filepath.Join(m.dir, "made.txt"))
	m.keys("again", "Enter")
	m.shows("│ waits", "turn ")
	m.keys("C-c") // the turn, not the program
	m.shows("■ interrupted")
	m.keys("/session", "Enter")
	m.shows("2 turns, 0 tokens; go on with:")
	m.keys("Up", "Up", "Enter") // the line before
	m.shows("Third is done.")
	m.keys("C-c")
	m.shows("Ctrl-C again ends")
	m.keys("C-c")
	m.shows("[ended: 0]")
}

// --continue goes on with the session that a directory had last.
func TestChat_Continue(t *testing.T) {
	t.Parallel()
	data, state := t.TempDir(), "XDG_STATE_HOME="+t.TempDir()
	workspace := t.TempDir()
	args := []string{"--sandbox", "process", "--workspace", workspace, "--data", data, "--model", script(t, `{"text": "One."}, {"text": "Two."}`)}
	m := inTmux(t, 80, []string{state}, append([]string{"chat", "--continue"}, args...)...)
	m.shows("there was no conversation in "+workspace, "[ended: 2]")
	m = inTmux(t, 80, []string{state}, append([]string{"run"}, args...)...) // without a prompt it is a conversation
	m.shows("/help says")
	m.keys("hello", "Enter")
	m.shows("● One.")
	m.keys("C-d")
	m.shows("[ended: 0]")
	m = inTmux(t, 80, []string{state}, append([]string{"chat", "--continue"}, args...)...)
	m.shows("/help says")
	m.keys("hello again", "Enter")
	m.shows("● Two.")
	m.keys("/quit", "Enter")
	m.shows("[ended: 0]")
}

// A prompt comes from a pipe, too.
func TestRun_PromptFromStdin(t *testing.T) {
	t.Parallel()
	for name, args := range map[string][]string{"a dash": {"-"}, "none": nil} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cmd := coordinator(t, append([]string{"run", "--sandbox", "process", "--data", t.TempDir(), "--model", script(t, `{"text": "Yes."}`)}, args...)...)
			cmd.Stdin = strings.NewReader("Is it\nfine?\n")
			out, err := cmd.CombinedOutput()
			require.NoError(t, err, "%s", out)
			require.Contains(t, string(out), "› Is it\n  fine?\n")
			require.Contains(t, string(out), "\nYes.\n")
		})
	}
}
