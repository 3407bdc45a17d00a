//go:build unix

package main

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"mvdan.cc/sh/v3/shell"
)

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
		return match
	case all := <-ended:
		ended <- ""
		require.FailNow(t, "ended", "%s: %s", args, all)
	case <-time.After(time.Minute):
		require.FailNow(t, "does not say that it is ready", "%s", args)
	}
	return ""
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
