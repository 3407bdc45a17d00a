//go:build unix

package main

import (
	"bufio"
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

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"mvdan.cc/sh/v3/shell"
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
	model := script(t,
		`{"text": "I look.", "tool_calls": [{"name": "bash", "arguments": {"command": "git init -q sub && git -C sub config core.fsmonitor ./watch"}}]}, {"text": "Fine."}`)
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

// served starts a coordinator that serves a model, and a worker, and returns the flags that lead to
// them.
func served(t *testing.T, model string) []string {
	t.Helper()
	line := background(t, regexp.MustCompile(`start workers with: worker (--nats \S+ --creds .+) --call-keys`),
		"coordinator", "serve", "--listen", "127.0.0.1:0", "--data", t.TempDir(), "--model", model, "--min-level", "none", "--drain", "1s")
	fleet, err := shell.Fields(line, nil)
	require.NoError(t, err)
	background(t, regexp.MustCompile(`takes calls of (pool)`), append([]string{"worker", "--sandbox", "process", "--data", t.TempDir(), "--drain", "1s"}, fleet...)...)
	return fleet
}

// background starts this program under a name, and returns what is found in a line of its stderr.
func background(t *testing.T, sign *regexp.Regexp, args ...string) string {
	t.Helper()
	match, _ := begun(t, sign, args...)
	return match
}

// begun is background, and returns the process, too.
func begun(t *testing.T, sign *regexp.Regexp, args ...string) (string, *os.Process) {
	t.Helper()
	executable, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), executable)
	cmd.Args, cmd.Env = args, append(os.Environ(), "HOME="+t.TempDir())
	cmd.Cancel, cmd.WaitDelay = func() error { return cmd.Process.Signal(syscall.SIGTERM) }, time.Minute
	stderr, err := cmd.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	found, ended := make(chan string, 1), make(chan string, 1)
	go func() {
		var all strings.Builder
		for lines := bufio.NewScanner(stderr); lines.Scan(); {
			fmt.Fprintln(&all, lines.Text())
			if match := sign.FindStringSubmatch(lines.Text()); match != nil && len(found) == 0 {
				found <- match[1]
			}
		}
		_ = cmd.Wait()
		ended <- all.String()
	}()
	t.Cleanup(func() { t.Logf("%s: %s", args[:2], <-ended) }) // told when the test fails
	select {
	case match := <-found:
		return match, cmd.Process
	case all := <-ended:
		ended <- ""
		require.FailNow(t, "ended", "%s: %s", args, all)
	case <-time.After(time.Minute):
		require.FailNow(t, "does not say that it is ready", "%s", args)
	}
	return "", nil
}

// watched is a model whose command waits until a file is there; the file is path.
func watched(t *testing.T) (model, path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "go")
	return script(t, `
		{"text": "I **look**.", "tool_calls": [
			{"name": "bash", "arguments": {"command": "echo one; echo two; until test -e '`+path+`'; do sleep 0.1; done; exit 3"}},
			{"name": "write", "arguments": {"path": "new.txt", "content": "a\nb\n"}}]},
		{"text": "# Done\n\nIt is `+"`fine`"+`."}`), path
}

// What a serving coordinator runs is seen as what this process runs is, at any width; and a
// terminal of the same session beside it shows the same.
func TestScreen_SubmitIsWatched(t *testing.T) {
	t.Parallel()
	for _, columns := range []int{80, 40} {
		t.Run(fmt.Sprint(columns), func(t *testing.T) {
			t.Parallel()
			model, path := watched(t)
			fleet := served(t, model)
			m := inTmux(t, columns, nil, append([]string{"submit", "--min-level", "none", "--session", "s-1", "--workspace", ".", "Look at it."}, fleet...)...)
			m.shows("● I look.", "│ one", "│ two", "behind:", "turn ")
			beside := inTmux(t, columns, nil, append([]string{"session", "attach", "s-1"}, fleet...)...)
			beside.shows("● I look.", "behind:", "turn ")
			m.run("resize-window", "-x", fmt.Sprint(120-columns))
			m.shows("behind:")
			require.NoError(t, os.WriteFile(path, nil, 0o600))
			for _, terminal := range []*tmux{m, beside} {
				screen := terminal.shows("answered", "changed", "[ended: 0]")
				require.Contains(t, screen, "exit code 3")
				require.Contains(t, screen, "+2 −0  new")
				require.Contains(t, screen, "● Done\n\n  It is fine.\n")
				require.NotContains(t, screen, "behind:", "what was live has gone")
				require.LessOrEqual(t, strings.Count(screen, "│ one"), 1, "once, folded:\n%s", screen)
			}
			require.FileExists(t, filepath.Join(m.dir, "new.txt"), "what changed comes back")
		})
	}
}

// Ctrl-C of submit ends the turn.
func TestScreen_SubmitIsInterrupted(t *testing.T) {
	t.Parallel()
	model, _ := watched(t)
	m := inTmux(t, 80, nil, append([]string{"submit", "--min-level", "none", "Look at it."}, served(t, model)...)...)
	m.shows("│ two", "behind:")
	m.keys("C-c")
	screen := m.shows("interrupted", "[ended: 130]")
	require.NotContains(t, screen, "behind:", "what was live has gone")
}

// Whoever leaves a session with Ctrl-C leaves it running, and can come back.
func TestScreen_AttachIsLeft(t *testing.T) {
	t.Parallel()
	model, path := watched(t)
	fleet := served(t, model)
	m := inTmux(t, 80, nil, append([]string{"submit", "--detach", "--min-level", "none", "--session", "s-1", "Look at it."}, fleet...)...)
	m.shows("session attach --nats", "s-1", "[ended: 0]")
	for _, columns := range []int{80, 40} {
		m = inTmux(t, columns, nil, append([]string{"session", "attach", "s-1"}, fleet...)...)
		m.shows("● I look.", "behind:", "turn ")
		m.keys("C-c")
		screen := m.shows("detached; the turn continues", "[ended: 130]")
		require.NotContains(t, screen, "behind:", "what was live has gone")
	}
	m = inTmux(t, 80, nil, append([]string{"session", "attach", "s-1"}, fleet...)...)
	m.shows("● I look.", "behind:", "turn ")
	require.NoError(t, os.WriteFile(path, nil, 0o600))
	screen := m.shows("answered", "[ended: 0]")
	require.Contains(t, screen, "exit code 3")
	require.Contains(t, screen, "● Done\n\n  It is fine.\n")
}

// Whoever is asked about a file that is elsewhere sees what would change of it.
func TestScreen_SubmitAsksAboutWhatChanges(t *testing.T) {
	t.Parallel()
	writes := func(content string) string {
		return `{"name": "write", "arguments": {"path": "a.txt", "content": "` + content + `"}}`
	}
	fleet := served(t, script(t, `{"text": "First.", "tool_calls": [`+writes(`one\n`)+`]}, {"text": "Then.", "tool_calls": [`+writes(`two\n`)+`]}, {"text": "Done."}`))
	m := inTmux(t, 80, nil, append([]string{"submit", "--min-level", "none", "--session", "s-1", "--ask-for", "write", "Go."}, fleet...)...)
	m.shows("│ all that it will have:", "│ one", question)
	m.keys("y", "Enter")
	m.shows("│ --- a/a.txt", "│ -one", "│ +two", question)
	m.keys("y", "Enter")
	m.shows("answered", "[ended: 0]")
}

// Whoever looks at a call that no worker may take is told what it needs and who lacks it; and at
// any width the view says so too.
func TestLacking_ItIsTold(t *testing.T) {
	t.Parallel()
	fleet := served(t, script(t, `{"tool_calls": [{"name": "bash", "arguments": {"command": "true"}}]}, {"text": "Done."}`))
	m := inTmux(t, 40, nil, append([]string{"submit", "--min-level", "paths", "--session", "s-1", "Go."}, fleet...)...)
	screen := m.shows("waits for: 1 worker", "no worker can run it, ")
	require.Regexp(t, `none\s+offers\s+level\s+paths`, screen)

	executable, err := os.Executable()
	require.NoError(t, err)
	coordinator := filepath.Join(t.TempDir(), "coordinator")
	require.NoError(t, os.Symlink(executable, coordinator))
	ctx := t.Context()
	prints := func(pattern string, args ...string) { // once the worker answers in time
		t.Helper()
		require.EventuallyWithT(t, func(t *assert.CollectT) {
			out, err := exec.CommandContext(ctx, coordinator, append(args, fleet...)...).CombinedOutput()
			require.NoError(t, err)
			require.Regexp(t, pattern, string(out))
		}, 2*time.Minute, 200*time.Millisecond, "%s", args)
	}
	sentence := `bash, call \S+, waits for: 1 worker of pool default, none offers level paths; a sandbox is offered by \S+\n`
	prints(`(?m)^`+sentence, "lane", "show", "sandbox/s-1")
	prints(`waiting; the next call waits for: 1 worker of pool default, none offers level paths`, "lane", "show", "sandbox/s-1")
	prints(`"needs":\{"kind":"command_run","level":"paths"\},"waits_for":"1 worker`, "lane", "show", "--json", "sandbox/s-1")
	prints(`(?m)^session s-1: `+sentence, "workers")
	prints(`state +waits for worker\n(?:owner .*\n)?waits +`+sentence, "session", "show", "s-1")
	prints(`"waits":\["bash, call`, "session", "show", "--json", "s-1")
	m.keys("C-c")
	m.shows("[ended: 130]")
}
