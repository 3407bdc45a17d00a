//go:build unix

package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// tmux is a terminal that shows what a person would see.
type tmux struct {
	t      *testing.T
	dir    string // the workspace, in which the program was started
	socket string
}

// inTmux starts this program on a terminal of its own, in a new workspace.
func inTmux(t *testing.T, columns int, env []string, args ...string) *tmux {
	t.Helper()
	if _, err := exec.LookPath("tmux"); err != nil {
		if os.Getenv("TOOLFLEET_INTEGRATION") == "required" {
			t.Fatal("tmux is not installed (apt install tmux)")
		}
		t.Skip("NOT TESTED: tmux is not installed (apt install tmux)")
	}
	executable, err := os.Executable()
	require.NoError(t, err)
	beside := t.TempDir()
	m := &tmux{t: t, dir: t.TempDir(), socket: filepath.Join(beside, "tmux")}
	require.NoError(t, os.Symlink(executable, filepath.Join(beside, "coordinator")))
	var quoted []string
	for _, word := range slices.Concat([]string{"env", "HOME=" + t.TempDir()}, env, []string{filepath.Join(beside, "coordinator")}, args) {
		quoted = append(quoted, "'"+strings.ReplaceAll(word, "'", `'\''`)+"'")
	}
	alive := filepath.Join(beside, "alive") // which all that it starts holds open
	require.NoError(t, syscall.Mkfifo(alive, 0o600))
	m.run("new-session", "-d", "-x", fmt.Sprint(columns), "-y", "24", "-c", m.dir,
		"exec 9<>'"+alive+"'; "+strings.Join(quoted, " ")+`; echo "[ended: $?]"; cat`)
	t.Cleanup(func() {
		m.run("kill-server")
		gone, err := os.OpenFile(alive, os.O_RDONLY|syscall.O_NONBLOCK, 0)
		require.NoError(t, err)
		defer gone.Close()
		require.NoError(t, gone.SetReadDeadline(time.Now().Add(time.Minute)))
		_, err = io.Copy(io.Discard, gone)
		require.NoError(t, err, "what ran in the terminal has not ended with it")
	})
	return m
}

// run runs a command of tmux, and returns what it prints.
func (m *tmux) run(args ...string) string {
	m.t.Helper()
	args = append([]string{"-S", m.socket, "-f", "/dev/null"}, args...)
	out, err := exec.CommandContext(context.Background(), "tmux", args...).CombinedOutput()
	require.NoError(m.t, err, "tmux %s: %s", args, out)
	return string(out)
}

// shows waits until every text is on the screen, or above it, and returns all of that.
func (m *tmux) shows(texts ...string) string {
	m.t.Helper()
	return m.until(func(screen string) (missing string) {
		for _, text := range texts {
			if !strings.Contains(screen, text) {
				missing = text
			}
		}
		return missing
	})
}

// until waits until nothing is missing on the screen, and above it, and returns all of that.
func (m *tmux) until(missing func(screen string) string) string {
	m.t.Helper()
	timeout := time.After(3 * time.Minute)
	look := time.NewTicker(100 * time.Millisecond)
	defer look.Stop()
	for {
		screen := withoutPadding(m.run("capture-pane", "-p", "-J", "-S", "-"))
		text := missing(screen)
		if text == "" {
			return screen
		}
		select {
		case <-look.C:
		case <-timeout:
			require.FailNow(m.t, "not on the screen", "%q in:\n%s", text, screen)
		}
	}
}

// quit ends chat. A turn whose reply is on the screen may not have ended: then it is tried again.
func (m *tmux) quit() {
	m.t.Helper()
	const ended, refused = "[ended: 0]", "/quit works between two turns"
	for times := 0; ; times++ {
		m.keys("/quit", "Enter")
		screen := m.until(func(screen string) string {
			if strings.Contains(screen, ended) || strings.Count(screen, refused) > times {
				return ""
			}
			return ended
		})
		if strings.Contains(screen, ended) {
			return
		}
	}
}

// withoutPadding drops the spaces at the ends of lines.
func withoutPadding(screen string) string {
	lines := strings.Split(screen, "\n")
	for i := range lines {
		lines[i] = strings.TrimRight(lines[i], " ")
	}
	return strings.Join(lines, "\n")
}

func (m *tmux) keys(keys ...string) {
	m.t.Helper()
	m.run(append([]string{"send-keys"}, keys...)...)
}

// script writes a model's replies into a file.
func script(t *testing.T, steps string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "script.json")
	require.NoError(t, os.WriteFile(path, []byte(`{"steps": [`+steps+`]}`), 0o600))
	return "script:" + path
}

// Whoever watches sees what a command writes while it runs, what others wait for, and in the end
// what came of them, at any width.
func TestScreen_RunIsWatched(t *testing.T) {
	t.Parallel()
	model := script(t, `
		{"text": "I **look**.", "tool_calls": [
			{"name": "bash", "arguments": {"command": "echo one; echo two; until test -e go; do sleep 0.1; done; exit 3"}},
			{"name": "write", "arguments": {"path": "new.txt", "content": "a\nb\n"}}]},
		{"text": "# Done\n\nIt is `+"`fine`"+`."}`)
	for name, c := range map[string]struct {
		columns int
		env     []string
	}{
		"80 columns":           {80, nil},
		"40 columns":           {40, nil},
		"80 columns, no color": {80, []string{"NO_COLOR=1"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := inTmux(t, c.columns, c.env, "run", "--sandbox", "process", "--workspace", ".", "--data", t.TempDir(), "--model", model, "Look at it.")
			m.shows("● I look.", "│ one", "│ two", "behind:", "turn ")
			m.run("resize-window", "-x", fmt.Sprint(120-c.columns))
			m.shows("behind:")
			require.NoError(t, os.WriteFile(filepath.Join(m.dir, "go"), nil, 0o600))
			screen := m.shows("answered", "changed", "[ended: 0]")
			require.Contains(t, screen, "exit code 3")
			require.Contains(t, screen, "+2 −0  new")
			require.NotContains(t, screen, "behind:", "what was live has gone")
			require.Equal(t, 1, strings.Count(screen, "│ one"), "once, folded:\n%s", screen)
			heading := "● # Done\n\n  It is `fine`.\n"
			if c.env == nil {
				heading = "● Done\n\n  It is fine.\n"
			}
			require.Contains(t, screen, heading)
			require.Equal(t, c.env == nil, strings.Contains(m.run("capture-pane", "-p", "-e"), "\x1b[32m"), "colours")
		})
	}
}

// For a screen reader every line comes once, and nothing is drawn.
func TestScreen_Plain(t *testing.T) {
	t.Parallel()
	m := inTmux(t, 80, nil, "run", "--plain", "--sandbox", "process", "--workspace", ".", "--data", t.TempDir(),
		"--model", script(t, `{"text": "I look.", "tool_calls": [{"name": "bash", "arguments": {"command": "exit 3"}}]}, {"text": "Fine."}`), "Go.")
	screen := m.shows("answered, 2 steps", "[ended: 0]")
	require.Contains(t, screen, "You: Go.\n")
	require.Contains(t, screen, "Model: Fine.\n")
	require.Contains(t, screen, "[1.1 bash] exit code 3,")
	require.False(t, strings.ContainsAny(screen, "│●›✓✗·▸⠋"), screen)
}

// What a session has left for git to run is the last thing on the screen, whatever came of it, and
// stands out as a whole.
func TestScreen_WhatGitWouldRunStandsOut(t *testing.T) {
	t.Parallel()
	model := script(t, `{"text": "I look.", "tool_calls": [{"name": "bash", "arguments": {"command": "git init -q sub && git -C sub config core.fsmonitor ./watch"}}]}, {"text": "Fine."}`)
	for name, c := range map[string]struct {
		env, flags []string
		want       string // of the capture, painted
		exit       int
	}{
		"in colour":    {want: painted("!", "sub/.git/config:", "core.fsmonitor")},
		"after errors": {flags: []string{"--max-steps", "1"}, want: painted("!", "sub/.git/config:", "core.fsmonitor"), exit: 3},
		"NO_COLOR":     {env: []string{"NO_COLOR=1"}, want: "(?m)^! before you use git .*\n(.*\n)*^  sub/.git/config: core.fsmonitor = ./watch"},
		"--plain":      {flags: []string{"--plain"}, want: "(?m)^Warning: before you use git .*\n(.*\n)*^  sub/.git/config: core.fsmonitor = ./watch"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			args := []string{"run", "--sandbox", "process", "--workspace", ".", "--data", t.TempDir(), "--model", model, "--keep-git-settings"}
			m := inTmux(t, 80, c.env, append(append(args, c.flags...), "Look at it.")...)
			m.shows(fmt.Sprintf("  sub/.git/config: core.fsmonitor = ./watch\n[ended: %d]", c.exit))
			require.Regexp(t, c.want, m.run("capture-pane", "-p", "-e"))
		})
	}
}

// painted matches words that are bold and yellow, in this order.
func painted(words ...string) string {
	for i, word := range words {
		words[i] = `\x1b\[1m\x1b\[33m` + regexp.QuoteMeta(word) + `\x1b\[0m`
	}
	return "(?s)" + strings.Join(words, ".*")
}

// A person who allows a tool for the session is not asked about it again.
func TestScreen_AlwaysIsForTheSession(t *testing.T) {
	t.Parallel()
	m := inTmux(t, 80, nil, "run", "--ask-for", "write,bash", "--sandbox", "process", "--workspace", ".", "--data", t.TempDir(), "--model", script(t, `
		{"tool_calls": [{"name": "write", "arguments": {"path": "a.txt", "content": "one\n"}}]},
		{"tool_calls": [{"name": "write", "arguments": {"path": "a.txt", "content": "two\n"}}]},
		{"tool_calls": [{"name": "bash", "arguments": {"command": "echo a\necho b"}}]},
		{"tool_calls": [{"name": "bash", "arguments": {"command": "echo c"}}]},
		{"text": "Done."}`), "Go.")
	m.shows("│ +one", `every call of write for "a.txt"`, question)
	m.keys("a", "Enter")
	m.shows("allowed as before: every call of write", "│ echo a\n  │ echo b", "this very call of bash")
	m.keys("a", "Enter")
	m.shows("│ echo c") // another command is another question
	m.keys("n", "Enter")
	m.shows("answered", "[ended: 0]")
	content, err := os.ReadFile(filepath.Join(m.dir, "a.txt"))
	require.NoError(t, err)
	require.Equal(t, "two\n", string(content))
}
