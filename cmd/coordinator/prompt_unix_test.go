//go:build unix

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
	"github.com/stretchr/testify/require"
)

const question = "anything else is no"

// console is the command line on a terminal of its own.
type console struct {
	t    *testing.T
	tty  *os.File
	cmd  *exec.Cmd
	dir  string // with the file a.txt, which is the workspace
	done chan struct{}

	mu     sync.Mutex
	screen bytes.Buffer
	fresh  chan struct{} // has one when the screen has changed
	stdout bytes.Buffer
}

// open starts this program on a new terminal; typed is there before it reads.
func open(t *testing.T, typed string, args ...string) *console {
	t.Helper()
	return openAt(t, nil, typed, args...)
}

// openAt is open with more environment; {dir} in it is the workspace.
func openAt(t *testing.T, env []string, typed string, args ...string) *console {
	t.Helper()
	executable, err := os.Executable()
	require.NoError(t, err)
	c := &console{t: t, dir: t.TempDir(), done: make(chan struct{}), fresh: make(chan struct{}, 1)}
	require.NoError(t, os.WriteFile(filepath.Join(c.dir, "a.txt"), []byte("old"), 0o600))
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	t.Cleanup(cancel)
	c.cmd = exec.CommandContext(ctx, executable)
	c.cmd.Args = append([]string{"coordinator", args[0], "--sandbox", "process", "--workspace", c.dir, "--data", t.TempDir()}, args[1:]...)
	if args[0] == "session" { // which runs nothing
		c.cmd.Args = append([]string{"coordinator"}, args...)
	}
	c.cmd.Stdout, c.cmd.Env = &c.stdout, os.Environ()
	for _, variable := range env {
		c.cmd.Env = append(c.cmd.Env, strings.ReplaceAll(variable, "{dir}", c.dir))
	}
	// The terminal has what was typed early before the program can look.
	var slave *os.File
	c.tty, slave, err = pty.Open()
	require.NoError(t, err)
	c.typeIn(typed)
	c.cmd.Stdin, c.cmd.Stderr = slave, slave
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	require.NoError(t, c.cmd.Start())
	require.NoError(t, slave.Close())
	go c.watch()
	t.Cleanup(func() {
		<-c.done
		require.NoError(t, c.tty.Close())
	})
	return c
}

// watch copies the screen until the program has ended.
func (c *console) watch() {
	defer close(c.done)
	buf := make([]byte, 4096)
	for {
		n, err := c.tty.Read(buf)
		c.mu.Lock()
		c.screen.Write(buf[:n])
		c.mu.Unlock()
		select {
		case c.fresh <- struct{}{}:
		default:
		}
		if err != nil { // nobody has the terminal open any more
			return
		}
	}
}

// shows waits until a text was on the screen so many times.
func (c *console) shows(text string, times int) {
	c.t.Helper()
	for {
		c.mu.Lock()
		screen := c.screen.String()
		c.mu.Unlock()
		if strings.Count(screen, text) >= times {
			return
		}
		select {
		case <-c.fresh:
		case <-c.done:
			require.FailNow(c.t, "the program has ended", "%q is not on the screen:\n%s\n%s", text, screen, c.stdout.String())
		}
	}
}

func (c *console) typeIn(keys string) {
	c.t.Helper()
	_, err := c.tty.WriteString(keys)
	require.NoError(c.t, err)
}

// ends waits for the end, and returns the exit code, and what a call printed.
func (c *console) ends() (code int, output callOutput) {
	c.t.Helper()
	<-c.done
	_ = c.cmd.Wait() // the code says it
	if c.stdout.Len() > 0 && json.Valid(c.stdout.Bytes()) {
		require.NoError(c.t, json.Unmarshal(c.stdout.Bytes(), &output))
	}
	return c.cmd.ProcessState.ExitCode(), output
}

func (c *console) file() string {
	c.t.Helper()
	content, err := os.ReadFile(filepath.Join(c.dir, "a.txt"))
	require.NoError(c.t, err)
	return string(content)
}

func TestPrompt_OnATerminal(t *testing.T) {
	t.Parallel()
	overwrite := []string{"call", "--ask-for", "write", "write", `{"path":"a.txt","content":"new"}`}
	for name, test := range map[string]struct {
		early, keys string
		file, says  string
		code        int
	}{
		"y":                {keys: "y\n", file: "new", says: "Replaced the content of a.txt"},
		"yes in capitals":  {keys: " YES \n", file: "new", says: "Replaced the content of a.txt"},
		"y and more":       {keys: "y: just this once\n", file: "new", says: "approved by a person, who said: just this once"},
		"n and more":       {keys: "no: take b.txt\n", file: "old", says: "They said: take b.txt", code: 1},
		"n":                {keys: "n\n", file: "old", says: "A person was asked about this call and said no.", code: 1},
		"just return":      {keys: "\n", file: "old", says: "A person was asked about this call and said no.", code: 1},
		"something else":   {keys: "take b.txt\n", file: "old", says: "They said: take b.txt", code: 1},
		"the end of input": {keys: "\x04", file: "old", says: "the standard input has ended", code: 1},
		"typed before":     {early: "y\ny\ny\n", keys: "n\n", file: "old", says: "said no", code: 1},
		"half before":      {early: "y\ny", keys: "o\n", file: "old", says: "They said: o", code: 1},
		"interrupted":      {keys: "\x03", file: "old", says: "stopped before anybody answered", code: 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := open(t, test.early, overwrite...)
			c.shows(question, 1)
			c.typeIn(test.keys)
			code, output := c.ends()
			require.Equal(t, test.code, code, c.screen.String())
			require.Contains(t, output.Content, test.says)
			require.Equal(t, test.file, c.file())
		})
	}
}

func TestPrompt_RunsOutOfTime(t *testing.T) {
	t.Parallel()
	rules := filepath.Join(t.TempDir(), "policy.yaml")
	require.NoError(t, os.WriteFile(rules, []byte("approval: {tools: [write], timeout: 200ms}"), 0o600))
	c := open(t, "", "call", "--policy", rules, "write", `{"path":"a.txt","content":"new"}`)
	c.shows(question, 1)
	c.shows("No answer is needed any more.", 1)
	code, output := c.ends()
	require.Equal(t, 1, code)
	require.Contains(t, output.Content, "nobody answered within 200ms")
	require.Equal(t, "old", c.file())
}

// Two calls of one step are asked about one after the other, and an answer is for one of them.
func TestPrompt_OneQuestionAtATime(t *testing.T) {
	t.Parallel()
	script := filepath.Join(t.TempDir(), "script.json")
	require.NoError(t, os.WriteFile(script, []byte(`{"steps": [
		{"tool_calls": [
			{"name": "write", "arguments": {"path": "first.txt", "content": "1"}},
			{"name": "write", "arguments": {"path": "second.txt", "content": "2"}}
		]},
		{"text": "Done."}
	]}`), 0o600))
	c := open(t, "", "run", "--model", "script:"+script, "--ask-for", "write", "go")
	c.shows(question, 1)
	require.NotContains(t, c.screenNow(), "second.txt\"", "nothing is said of the second yet")
	c.typeIn("n\nn\n") // both lines at once: the second one comes before its question
	c.shows(question, 2)
	c.typeIn("y\n")
	code, _ := c.ends()
	require.Equal(t, 0, code, c.screen.String())
	require.NoFileExists(t, filepath.Join(c.dir, "first.txt"))
	require.FileExists(t, filepath.Join(c.dir, "second.txt"))
}

func (c *console) screenNow() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.screen.String()
}

// What an MCP server asks in the middle of a call is a form at the terminal: each field until it
// fits, an empty line for its default.
func TestForm_OnATerminal(t *testing.T) {
	t.Parallel()
	config := filepath.Join(t.TempDir(), "mcp.json")
	require.NoError(t, os.WriteFile(config, []byte(`{"mcpServers": {"test": {"command": "mcptest"}}}`), 0o600))
	fields := []struct{ shows, types string }{
		{"Who are you?", "y\n"},
		{"a whole number; an empty line is 30:", "old\n"},
		{"age: must be a number", ""},
		{"a whole number; an empty line is 30:", "41\n"},
		{`a text; an empty line is "Ann":`, "Bob\n"},
		{"a number; an empty line is 9.5:", "\n"},
		{`one of active, gone; an empty line is "active":`, "lost\n"},
		{"status: ", ""},
		{`one of active, gone; an empty line is "active":`, "gone\n"},
		{"y or n; an empty line is true:", "n\n"},
	}
	for name, test := range map[string]struct {
		answers bool
		says    string
	}{
		"yes": {true, `accept {"age":41,"name":"Bob","score":9.5,"status":"gone","sure":false}`},
		"no":  {false, "decline null"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := open(t, "", "call", "--mcp-config", config, "test__form")
			seen := map[string]int{}
			for _, field := range fields {
				if !test.answers {
					c.shows(question, 1)
					c.typeIn("n\n")
					break
				}
				seen[field.shows]++
				c.shows(field.shows, seen[field.shows])
				c.typeIn(field.types)
			}
			code, output := c.ends()
			require.Equal(t, 0, code, c.screen.String())
			require.Equal(t, test.says, output.Content)
		})
	}
}

// What the model asks is one line; a choice that is none is asked again.
func TestForm_TheModelAsks(t *testing.T) {
	t.Parallel()
	script := filepath.Join(t.TempDir(), "ask.json")
	require.NoError(t, os.WriteFile(script, []byte(`{"steps": [
		{"tool_calls": [{"name": "ask_user", "arguments": {"question": "Which colour?", "choices": ["red", "blue"]}}]},
		{"text": "thanks"}]}`), 0o600))
	for typed, says := range map[string]string{"blue\n": `"content":"blue"`, "\n": "declined to answer"} {
		c := open(t, "", "run", "--model", "script:"+script, "--toolset", "ask", "--json", "go")
		c.shows("one of red, blue; an empty line declines:", 1)
		c.typeIn("green\n")
		c.shows("must be one of red, blue", 1)
		c.shows("one of red, blue; an empty line declines:", 2)
		c.typeIn(typed)
		<-c.done
		require.Contains(t, c.stdout.String(), says)
	}
}

// TestSettings_APersonIsAskedOnce whether a project's file is trusted, and no means to run without.
func TestSettings_APersonIsAskedOnce(t *testing.T) {
	t.Parallel()
	executable, err := os.Executable()
	require.NoError(t, err)
	project, home := t.TempDir(), t.TempDir()
	for name, content := range map[string]string{
		"toolfleet.yaml": "model: script:ok.json\n", "ok.json": `{"steps": [{"text": "hello"}]}`,
	} {
		require.NoError(t, os.WriteFile(filepath.Join(project, name), []byte(content), 0o600))
	}
	start := func(typed string) (stdout, screen string) {
		terminal, tty, err := pty.Open()
		require.NoError(t, err)
		_, err = terminal.WriteString(typed)
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		cmd := exec.CommandContext(ctx, executable)
		cmd.Args = []string{"coordinator", "run", "--sandbox", "process", "Hello"}
		cmd.Dir, cmd.Env = project, append(os.Environ(), "HOME="+home, "XDG_STATE_HOME=", "XDG_CONFIG_HOME=")
		var out, seen bytes.Buffer
		cmd.Stdin, cmd.Stderr, cmd.Stdout = tty, tty, &out
		require.NoError(t, cmd.Start())
		require.NoError(t, tty.Close())
		_, _ = io.Copy(&seen, terminal) // ends with an error where the other side is closed
		_ = cmd.Wait()
		require.NoError(t, terminal.Close())
		return out.String(), seen.String()
	}
	const asked = "Trust this file, as it is now?"
	stdout, screen := start("n\n")
	require.Contains(t, screen, "toolfleet.yaml sets for this command:\r\n  model: script:")
	require.Contains(t, screen, asked)
	require.Contains(t, screen, "--model: ", "which nothing else sets")
	require.Empty(t, stdout)
	stdout, screen = start("y\n")
	require.Contains(t, screen, asked)
	require.Equal(t, "hello\n", stdout, screen)
	stdout, screen = start("")
	require.NotContains(t, screen, asked)
	require.Equal(t, "hello\n", stdout, screen)
}

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
