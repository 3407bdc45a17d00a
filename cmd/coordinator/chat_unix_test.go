//go:build unix

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	innerfleet "github.com/toolfleet/toolfleet/internal/fleet"
	"github.com/toolfleet/toolfleet/internal/workspace/backup"
	"github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/loop"
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
	m.shows("/help lists commands", "\n›")
	m.keys("-l", "look at @rea")
	m.keys("Tab")
	m.shows("› look at @readme.txt")
	m.keys("Enter")
	screen := m.shows("First is done.", "answered", "made.txt  +1 −0  new")
	require.Equal(t, 1, strings.Count(screen, "look at @readme.txt"), "what was typed is not printed again: %s", screen)
	m.keys("/diff", "Enter")
	m.shows("+++ b/made.txt\n@@ -0,0 +1 @@\n+new\n")
	m.keys("/undo", "Enter")
	m.shows("1 new file removed")
	require.NoFileExists(t, filepath.Join(m.dir, "made.txt"))
	m.keys("/attach nothing", "Enter")
	m.shows("nothing is not attached: no such file or directory")
	m.keys("/attach readme.txt", "Enter")
	m.shows("readme.txt (text/plain) goes with your next message")
	m.keys("again", "Enter")
	m.shows("  attached readme.txt", "│ waits", "turn ")
	m.keys("C-c") // the turn, not the program
	m.shows("■ interrupted")
	m.keys("/status", "Enter")
	m.shows("2 turns, 0 tokens; continue")
	m.keys("Up", "Up", "Enter") // the line before
	m.shows("Third is done.", "›")
	m.keys("/undo", "Enter")
	m.shows("the last turn changed no files")
	m.keys("C-c")
	m.shows("Ctrl-C again ends")
	m.keys("C-c")
	m.shows("[ended: 0]")
}

// Each /undo takes back one turn more, and the model is told how many.
func TestChat_UndoesTurnAfterTurn(t *testing.T) {
	t.Parallel()
	model := script(t, `
		{"tool_calls": [{"name": "write", "arguments": {"path": "one.txt", "content": "1\n"}}]}, {"text": "First is done."},
		{"tool_calls": [{"name": "write", "arguments": {"path": "one.txt", "content": "2\n"}}, {"name": "write", "arguments": {"path": "two.txt", "content": "2\n"}}]}, {"text": "Second is done."},
		{"tool_calls": [{"name": "write", "arguments": {"path": "three.txt", "content": "3\n"}}]}, {"text": "Third is done."}`)
	m := inTmux(t, 80, nil, "chat", "--sandbox", "process", "--workspace", ".", "--data", t.TempDir(), "--model", model)
	m.shows("/help lists commands", "\n›")
	m.keys("one", "Enter")
	m.shows("First is done.", "answered")
	m.keys("two", "Enter")
	m.shows("Second is done.", "two.txt  +1 −0  new")
	m.keys("/undo", "Enter")
	m.shows("undone: 1 file as before, 1 new file removed", "as before: one.txt\n", "removed: two.txt\n")
	require.Equal(t, "1\n", contentOf(t, filepath.Join(m.dir, "one.txt")))
	require.NoFileExists(t, filepath.Join(m.dir, "two.txt"))
	m.keys("/undo", "Enter")
	m.shows("undone: 0 files as before, 1 new file removed")
	require.NoFileExists(t, filepath.Join(m.dir, "one.txt"))
	m.keys("/undo", "Enter")
	m.shows("there is no turn to undo")
	m.keys("three", "Enter")
	m.shows("before your last 2 turns: I have undone", "Third is done.", "three.txt  +1 −0  new")
	m.keys("/undo", "Enter")
	require.Eventually(t, func() bool {
		_, err := os.Stat(filepath.Join(m.dir, "three.txt"))
		return os.IsNotExist(err)
	}, 3*time.Minute, 10*time.Millisecond)
}

// A turn that changed nothing is not undone, and the model is not told so. Going back over it
// counts.
func TestChat_UndoOfATurnWithoutChanges(t *testing.T) {
	t.Parallel()
	model := script(t, `
		{"text": "First is done."}, {"text": "Second is done."},
		{"tool_calls": [{"name": "write", "arguments": {"path": "three.txt", "content": "3\n"}}]}, {"text": "Third is done."},
		{"text": "Fourth is done."}, {"text": "Fifth is done."}`)
	m := inTmux(t, 80, nil, "chat", "--sandbox", "process", "--workspace", ".", "--data", t.TempDir(), "--model", model)
	m.shows("/help lists commands", "\n›")
	m.keys("one", "Enter")
	m.shows("First is done.", "answered")
	m.keys("/undo", "Enter")
	m.shows("the last turn changed no files")
	m.keys("two", "Enter")
	require.NotContains(t, m.shows("Second is done."), "I have undone")
	m.keys("three", "Enter")
	m.shows("Third is done.", "three.txt  +1 −0  new")
	m.keys("four", "Enter")
	m.shows("Fourth is done.")
	m.keys("/undo", "Enter")
	m.keys("/undo", "Enter")
	m.shows("1 new file removed")
	m.keys("five", "Enter")
	m.shows("before your last 2 turns: I have undone", "Fifth is done.")
}

// What the turns of a conversation have changed can be seen, copied and restored when it has ended.
// What a person changes meanwhile stays.
func TestChat_ItsFilesAreStored(t *testing.T) {
	t.Parallel()
	model := script(t, `
		{"tool_calls": [{"name": "write", "arguments": {"path": "one.txt", "content": "1\n"}}]}, {"text": "First is done."},
		{"tool_calls": [{"name": "bash", "arguments": {"command": "echo 2 > one.txt; echo 2 > two.txt"}}]}, {"text": "Second is done."}`)
	state, workspace, out := "XDG_STATE_HOME="+t.TempDir(), t.TempDir(), filepath.Join(t.TempDir(), "out")
	m := inTmux(t, 100, []string{state}, "chat", "--sandbox", "process", "--workspace", workspace, "--session", "talk", "--model", model)
	m.shows("/help lists commands", "\n›")
	m.keys("one", "Enter")
	m.shows("First is done.", "answered")
	m.keys("two", "Enter")
	m.shows("Second is done.", "two.txt  +1 −0  new")
	m.quit()

	session := func(args ...string) string {
		t.Helper()
		command := coordinator(t, append([]string{"session"}, args...)...)
		command.Env = append(command.Environ(), state)
		output, _ := command.CombinedOutput() // which has the error, too
		return string(output)
	}
	require.Regexp(t, `files +stored at the end of turns 0 to 2\n`, session("show", "talk"))
	require.Equal(t, "2\n", session("files", "talk", "one.txt"))
	require.Equal(t, "1\n", session("files", "talk", "one.txt", "--at", "turn 1"))
	require.NotContains(t, session("files", "talk", "--at", "turn 1"), "two.txt")
	require.Contains(t, session("files", "talk", "--at", "turn 7"), "the end of turn 7 is not stored: stored is the end of turns 0 to 2")
	require.Contains(t, session("diff", "talk", "turn 2"), "changed file one.txt\n--- a/one.txt\n+++ b/one.txt\n@@ -1 +1 @@\n-1\n+2\nnew file two.txt\n")
	require.Contains(t, session("diff", "talk"), "session diff talk \"turn N\" shows all of a turn")

	require.NoError(t, os.WriteFile(filepath.Join(workspace, "mine.txt"), []byte("mine\n"), 0o600))
	require.Contains(t, session("restore", "talk", "--at", "c-1"), "not of calls: name one as \"turn N\": stored is the end of turns 0 to 2")
	require.Contains(t, session("restore", "talk", "--at", "turn 1", "--leave-effects"),
		"the workspace of session talk is as it was at the end of turn 1: 1 file written, 1 removed\n")
	require.Equal(t, "1\n", contentOf(t, filepath.Join(workspace, "one.txt")))
	require.NoFileExists(t, filepath.Join(workspace, "two.txt"))
	require.Equal(t, "mine\n", contentOf(t, filepath.Join(workspace, "mine.txt")))
	require.Contains(t, session("restore", "talk", "--at", "turn 2", "--leave-effects"), "at the end of turn 2: 2 files written, 0 removed\n")
	require.Equal(t, "2\n", contentOf(t, filepath.Join(workspace, "one.txt")))
	require.Equal(t, "mine\n", contentOf(t, filepath.Join(workspace, "mine.txt")))

	require.Contains(t, session("pull", "talk", workspace), "session talk works there; coordinator session restore talk")
	require.Contains(t, session("pull", "talk", out, "--at", "turn 1"), "1 path written, 0 removed\n")
	require.Equal(t, "1\n", contentOf(t, filepath.Join(out, "one.txt")))
	require.NoError(t, os.WriteFile(filepath.Join(out, "one.txt"), []byte("other\n"), 0o600))
	require.Contains(t, session("pull", "talk", out), "left unchanged here: one.txt; the version of the session is in one.txt.toolfleet-theirs")
	require.Equal(t, "2\n", contentOf(t, filepath.Join(out, "two.txt")))
	forked := session("fork", "talk", "--at", "turn 1", "--leave-effects")
	require.Contains(t, forked, "the fork gets the files that were in "+workspace+" at the end of turn 1\n")
	fork := forked[strings.LastIndex(strings.TrimSpace(forked), "\n")+1:]
	require.Equal(t, "1\n", session("files", strings.TrimSpace(fork), "one.txt"))
	require.Contains(t, session("restore", "talk", "--at", "turn 0", "--leave-effects"), "at the end of turn 0: 0 files written, 2 removed\n")
	require.NoFileExists(t, filepath.Join(workspace, "one.txt"))
	require.Contains(t, session("fork", "talk", "--at", "turn 0"), "N must be at least 1")
	require.Contains(t, session("rm", "--force", "talk"), "session talk is removed")
	require.Equal(t, "1\n", session("files", strings.TrimSpace(fork), "one.txt"))
	require.Contains(t, session("rm", strings.TrimSpace(fork)), "is removed")
	left, err := filepath.Glob(filepath.Join(strings.TrimPrefix(state, "XDG_STATE_HOME="), "toolfleet", "local", "sessions", "*"))
	require.NoError(t, err)
	require.Empty(t, left)
}

func contentOf(t *testing.T, path string) string {
	t.Helper()
	content, err := os.ReadFile(path)
	require.NoError(t, err)
	return string(content)
}

// --continue goes on with the session that a directory had last.
func TestChat_Continue(t *testing.T) {
	t.Parallel()
	data, state := t.TempDir(), "XDG_STATE_HOME="+t.TempDir()
	workspace := t.TempDir()
	args := []string{"--sandbox", "process", "--workspace", workspace, "--data", data, "--model", script(t, `{"text": "One."}, {"text": "Two."}`)}
	m := inTmux(t, 80, []string{state}, append([]string{"chat", "--continue"}, args...)...)
	m.shows("there is no session in "+workspace, "[ended: 2]")
	m = inTmux(t, 80, []string{state}, append([]string{"run"}, args...)...) // without a prompt it is a conversation
	m.shows("/help lists commands")
	m.keys("hello", "Enter")
	m.shows("● One.")
	m.keys("C-d")
	m.shows("[ended: 0]")
	m = inTmux(t, 80, []string{state}, append([]string{"chat", "--continue"}, args...)...)
	m.shows("/help lists commands")
	m.keys("Up")
	m.shows("› hello") // what was said before, also in another conversation
	m.keys(" again", "Enter")
	m.shows("› hello again", "● Two.")
	m.quit()
}

// What is typed at a prompt is a text of one line or several, or a command, which says what it
// does.
func TestChat_WhatIsTyped(t *testing.T) {
	t.Parallel()
	model := script(t, `
		{"text": "I write.", "tool_calls": [{"name": "write", "arguments": {"path": "made.txt", "content": "new\n"}}]},
		{"text": "First is done.", "usage": {"input_tokens": 20, "output_tokens": 1}},
		{"text": "Second is done.", "usage": {"input_tokens": 20, "output_tokens": 1}}`)
	m := inTmux(t, 100, nil, "chat", "--sandbox", "process", "--workspace", ".", "--data", t.TempDir(), "--model", model)
	prompted := func() { // only then it reads keys one by one, and sees what is pasted
		require.Eventually(t, func() bool {
			return strings.HasSuffix(strings.TrimRight(withoutPadding(m.run("capture-pane", "-p")), "\n"), "\n›")
		}, 3*time.Minute, 100*time.Millisecond)
	}
	prompted()
	m.keys("/undo", "Enter")
	m.shows("there is no turn to undo")
	prompted()
	m.keys("/diff", "Enter")
	m.shows("nothing has changed")
	prompted()
	m.keys("/nope", "Enter")
	m.shows("there is no command /nope; the commands are /attach, /clear, /compact, /cost, /diff, /edit, /fork,")
	prompted()
	m.keys("/he", "Tab", "Enter")
	m.shows("/undo      restores the files as they were before the last turn")
	prompted()
	m.keys(`one \`, "Enter", "two", "Enter")
	m.shows("› one \\\n› two\n", "First is done.")
	prompted()
	m.keys("/undo", "Enter")
	m.shows("undone: 0 files as before, 1 new file removed")
	prompted()
	m.run("set-buffer", "/diff\nthree")
	m.run("paste-buffer", "-p") // what is pasted is no command
	m.keys("Enter")
	m.shows("› [The files are as they were before your last turn: I have undone its changes.]\n\n  /diff\n  three\n", "Second is done.")
	prompted()
	m.keys("/status", "Enter")
	m.shows("2 turns, 42 tokens")
	prompted()
	m.keys("C-d")
	m.shows("[ended: 0]")
}

// A terminal that becomes narrower or wider while somebody types shows the line again, once, with
// all that was typed and the cursor where it was, and what stands above stays.
func TestChat_ALineIsTypedOnWhenTheTerminalIsResized(t *testing.T) {
	t.Parallel()
	m := inTmux(t, 80, nil, "chat", "--sandbox", "process", "--workspace", ".", "--data", t.TempDir(), "--model", script(t, `{"text": "Yes."}`))
	m.shows("/help lists commands", "\n›")
	screen := func(columns int, want string) {
		if columns > 0 {
			m.run("resize-window", "-x", fmt.Sprint(columns))
		}
		require.EventuallyWithT(t, func(c *assert.CollectT) {
			got := withoutPadding(strings.TrimRight(m.run("capture-pane", "-p"), "\n"))
			require.True(c, strings.HasSuffix(got, " ends chat.\n"+want), "want\n%s\ngot\n%s", want, got)
		}, 3*time.Minute, 100*time.Millisecond)
	}
	a, b := strings.Repeat("a", 70), strings.Repeat("b", 20)
	m.keys("-l", a)
	screen(0, "› "+a)
	screen(50, "› "+a[:48]+"\n"+a[48:])
	m.keys("-l", b)
	screen(0, "› "+a[:48]+"\n"+a[48:]+b)
	m.keys("Left", "Left", "Left")
	screen(30, "› "+a[:28]+"\n"+a[28:58]+"\n"+a[58:]+b[:18]+"\n"+b[18:])
	m.keys("X")
	screen(0, "› "+a[:28]+"\n"+a[28:58]+"\n"+a[58:]+b[:17]+"X\nbbb")
	screen(120, "› "+a+b[:17]+"Xbbb")
	m.keys("Enter")
	m.shows("› "+a+b[:17]+"Xbbb\n", "Yes.")
}

// An MCP server may have other tools in the next turn; the one that runs keeps its tools.
func TestChat_ServersToolsComeBetweenTurns(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(folder, "test.yaml"), []byte("kind: mcp\nname: test\ncommand: mcptest\n"), 0o600))
	model := script(t, `
		{"tool_calls": [{"name": "test__grow", "arguments": {}}]}, {"tool_calls": [{"name": "test__grown", "arguments": {}}]}, {"text": "First is done."},
		{"tool_calls": [{"name": "test__grown", "arguments": {}}]}, {"text": "Second is done."}`)
	m := inTmux(t, 100, nil, "chat", "--tools", folder, "--sandbox", "process", "--workspace", ".", "--data", t.TempDir(), "--model", model)
	m.shows("/help lists commands", "\n›")
	m.keys("one", "Enter")
	m.shows("[1.1 test__grow] ✓ ok", "[2.1 test__grown] ✗ rejected (unknown_tool)", "First is done.", "answered")
	m.keys("two", "Enter")
	m.shows("[1.1 test__grown] ✓ ok", "│ new\n", "Second is done.")
	m.quit()
}

// A turn has what the folder of manifests has when it begins: a server that has come may ask.
func TestChat_ManifestsComeBetweenTurns(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	model := script(t, `
		{"text": "First is done."}, {"tool_calls": [{"name": "late__asks", "arguments": {}}]}, {"text": "Second is done."}`)
	m := inTmux(t, 100, nil, "chat", "--tools", folder, "--sandbox", "process", "--workspace", ".", "--data", t.TempDir(), "--model", model)
	m.shows("/help lists commands", "\n›")
	m.keys("one", "Enter")
	m.shows("First is done.", "answered")
	require.NoError(t, os.WriteFile(filepath.Join(folder, "broken.yaml"), []byte("name: broken\n"), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(folder, "late.yaml"), []byte("kind: mcp\nname: late\ncommand: mcptest\n"), 0o600))
	m.keys("two", "Enter")
	m.shows("broken.yaml:1: exactly one of command", "Your name?", question)
	m.keys("n", "Enter")
	m.shows("[1.1 late__asks] ✓ ok", "│ decline\n", "Second is done.")
	m.quit()
}

// What a turn has left for git to run is told when it ends, once, and again when the conversation
// does: a person may use git between two turns.
func TestChat_TellsWhatGitWouldRunAfterEachTurn(t *testing.T) {
	t.Parallel()
	model := script(t, `
		{"tool_calls": [{"name": "bash", "arguments": {"command": "git init -q . && git config core.fsmonitor ./watch"}}]},
		{"text": "First is done."}, {"text": "Second is done."}`)
	m := inTmux(t, 100, nil, "chat", "--sandbox", "process", "--workspace", ".", "--data", t.TempDir(), "--model", model)
	const told = "\n  .git/config.set-aside: was set aside, so that git does not run what it names\n"
	m.shows("/help lists commands", "\n›")
	m.keys("one", "Enter")
	m.shows("First is done.", told+"›")
	m.keys("two", "Enter")
	m.shows("Second is done.")
	m.quit()
	require.Equal(t, 2, strings.Count(m.shows("[ended: 0]"), told))
}

// What is typed while a turn runs reaches the model at its next step, Ctrl-T keeps it for the next
// turn, and the rest of a line is there when the turn has ended.
func TestChat_TypedWhileATurnRuns(t *testing.T) {
	t.Parallel()
	model := script(t, `
		{"tool_calls": [{"name": "bash", "arguments": {"command": "while [ ! -e more ]; do sleep 0.1; done"}}]},
		{"tool_calls": [{"name": "bash", "arguments": {"command": "while [ ! -e end ]; do sleep 0.1; done"}}]},
		{"text": "First is done."}, {"text": "Second is done."}, {"text": "Third is done."}`)
	data := t.TempDir()
	m := inTmux(t, 80, nil, "chat", "--sandbox", "process", "--workspace", ".", "--data", data, "--model", model)
	m.shows("/help lists commands", "\n›")
	m.keys("one", "Enter")
	m.shows("while [ ! -e more ]", "turn ", "\n› ")
	m.keys("-l", "use tabxs")
	m.keys("Left", "BSpace", "Enter")
	m.shows("\n› use tabs\n")
	m.keys("/jobs", "Enter")
	m.shows("no call runs in the background")
	m.keys("/undo", "Enter")
	m.shows("/undo works between two turns")
	m.keys("-l", "later, please")
	m.keys("C-t")
	m.shows("\n› later, please\n", "this message is for the next turn")
	require.NoError(t, os.WriteFile(filepath.Join(m.dir, "more"), nil, 0o600))
	m.shows("while [ ! -e end ]")
	m.keys("-l", "half a li")
	m.shows("› half a li")
	require.NoError(t, os.WriteFile(filepath.Join(m.dir, "end"), nil, 0o600))
	m.shows("First is done.", "› later, please\n\n● Second is done.", "› half a li")
	m.keys("-l", "ne")
	m.keys("Enter")
	m.shows("› half a line\n", "Third is done.")
	m.quit()
	var inputs []string
	for _, e := range journalOf(t, data) {
		if e.Type == loop.EventTurnStarted || e.Type == loop.EventInputAdded {
			inputs = append(inputs, fmt.Sprintf("%d/%d %s", e.Turn, e.Step, e.Input))
		}
	}
	require.Equal(t, []string{"1/0 one", "1/1 use tabs", "2/0 later, please", "3/0 half a line"}, inputs)
}

// A question takes the terminal from a line that is being typed, and gives it back.
func TestChat_AQuestionWhileALineIsTyped(t *testing.T) {
	t.Parallel()
	model := script(t, `
		{"tool_calls": [{"name": "bash", "arguments": {"command": "while [ ! -e more ]; do sleep 0.1; done"}}]},
		{"tool_calls": [{"name": "write", "arguments": {"path": "made.txt", "content": "new\n"}}]},
		{"tool_calls": [{"name": "bash", "arguments": {"command": "while [ ! -e end ]; do sleep 0.1; done"}}]},
		{"text": "First is done."}, {"text": "Second is done."}`)
	m := inTmux(t, 100, nil, "chat", "--sandbox", "process", "--workspace", ".", "--data", t.TempDir(), "--model", model, "--ask-for", "write")
	m.shows("/help lists commands", "\n›")
	m.keys("one", "Enter")
	m.shows("while [ ! -e more ]", "turn ", "\n› ")
	m.keys("-l", "half")
	m.shows("\n› half")
	require.NoError(t, os.WriteFile(filepath.Join(m.dir, "more"), nil, 0o600))
	m.shows("write", question)
	m.keys("y", "Enter")
	m.shows("while [ ! -e end ]", "\n› half")
	m.keys("-l", " a line")
	m.keys("Enter")
	m.shows("\n› half a line\n")
	m.keys("C-c")
	m.shows("■ interrupted")
	require.FileExists(t, filepath.Join(m.dir, "made.txt"))
	m.keys("C-d")
	m.shows("[ended: 0]")
}

// A turn that a lost process has left open is continued before the prompt: the state between the
// two is that at its end. A prompt that is repeated only continues it.
func TestChat_ContinuesAnOpenTurnBeforeThePrompt(t *testing.T) {
	t.Parallel()
	data, state, workspace := t.TempDir(), "XDG_STATE_HOME="+t.TempDir(), t.TempDir()
	write := func(text string) string {
		return `{"tool_calls": [{"name": "write", "arguments": {"path": "a", "content": "` + text + `"}}]}, {"text": "` + text + ` is done."}`
	}
	model := script(t, write("first")+", "+write("second")+", "+write("third")+`, {"text": "fourth is done."}`)
	chat := func(prompt string) *tmux {
		return inTmux(t, 100, []string{state}, "chat", "--session", "s", "--sandbox", "process", "--workspace", workspace, "--data", data, "--model", model, prompt)
	}
	ends := func(m *tmux) {
		m.quit()
	}
	lost := func(input string) { // a process begins a turn, changes half of the files, and is lost
		var f *innerfleet.Fleet
		o := fleet.Options{Data: data}
		o.Opened = func(opened *innerfleet.Fleet) { f = opened }
		client, err := fleet.Connect(t.Context(), o)
		require.NoError(t, err)
		defer client.Close()
		history, err := f.Journal.Load(t.Context(), "s")
		require.NoError(t, err)
		turn := history.Events[len(history.Events)-1].Turn + 1
		_, err = f.Journal.Append(t.Context(), "s", history.Last, loop.Event{
			Type: loop.EventTurnStarted, Turn: turn, SessionID: "s", StartFields: loop.StartFields{Input: input},
		})
		require.NoError(t, err)
		backup.Open(workspace, backup.Folder(data, "s")).Save(t.Context(), turn, backup.Before)
		require.NoError(t, os.WriteFile(filepath.Join(workspace, "a"), []byte("half"), 0o600))
	}
	m := chat("one")
	m.shows("first is done.", "answered")
	ends(m)
	lost("two")
	m = chat("three")
	m.shows("second is done.", "third is done.", "answered")
	require.Equal(t, "third", contentOf(t, filepath.Join(workspace, "a")))
	m.keys("/undo", "Enter")
	m.shows("undone: 1 file as before")
	require.Equal(t, "second", contentOf(t, filepath.Join(workspace, "a")))
	m.keys("/undo", "Enter")
	require.Eventually(t, func() bool { return contentOf(t, filepath.Join(workspace, "a")) == "first" }, 3*time.Minute, 10*time.Millisecond)
	ends(m)
	lost("four")
	m = chat("four")
	m.shows("fourth is done.", "answered")
	ends(m)
	var inputs []string
	for _, e := range journalOf(t, data) {
		if e.Type == loop.EventTurnStarted {
			inputs = append(inputs, e.Input)
		}
	}
	require.Equal(t, []string{"one", "two", "three", "four"}, inputs)
}

// The conversation goes back with its files: for another answer, for another input, or to its
// beginning.
func TestChat_GoesBack(t *testing.T) {
	t.Parallel()
	model := script(t, `
		{"text": "First is done."},
		{"tool_calls": [{"name": "write", "arguments": {"path": "made.txt", "content": "2\n"}}]}, {"text": "Second is done."},
		{"text": "Third is done."}, {"text": "Fourth is done."}, {"text": "Fifth is done."}`)
	data := t.TempDir()
	m := inTmux(t, 100, nil, "chat", "--sandbox", "process", "--workspace", ".", "--data", data, "--model", model)
	m.shows("/help lists commands", "\n›")
	m.keys("/retry", "Enter")
	m.shows("there is no message to answer again")
	m.keys("one", "Enter")
	m.shows("First is done.", "answered")
	m.keys("two", "Enter")
	m.shows("Second is done.", "made.txt  +1 −0  new")
	m.keys("/retry", "Enter")
	m.shows("(the conversation goes back to the end of turn 1)", "1 new file removed", "Third is done.")
	require.NoFileExists(t, filepath.Join(m.dir, "made.txt"))
	m.keys("/edit 7", "Enter")
	m.shows("/edit 7: the conversation has turns 1 and 3; name one")
	m.keys("/undo 2", "Enter")
	m.shows("/undo takes no argument")
	m.keys("/edit 1", "Enter")
	m.shows("instead of your message of turn 1", "› one")
	m.keys("-l", " more")
	m.keys("Enter")
	m.shows("(the conversation begins again)", "Fourth is done.")
	m.keys("/clear", "Enter")
	m.keys("six", "Enter")
	m.shows("Fifth is done.")
	m.quit()
	var said []string
	for _, e := range journalOf(t, data) {
		switch e.Type {
		case loop.EventTurnStarted:
			said = append(said, e.Input)
		case loop.EventRewound:
			said = append(said, fmt.Sprint(e.KeptTurn))
		}
	}
	require.Equal(t, []string{"one", "two", "1", "two", "0", "one more", "0", "six"}, said)
}

// What is asked of the conversation itself is answered without the model.
func TestChat_SaysWhatItIs(t *testing.T) {
	t.Parallel()
	skills := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(skills, "release"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(skills, "release", "SKILL.md"), []byte("---\nname: release\ndescription: How we release.\n---\nTag it.\n"), 0o600))
	other := script(t, `{"text": "From the other."}, {"text": "From the other one."}, {"text": "Skilled."}`)
	m := inTmux(t, 200, nil, "chat", "--sandbox", "process", "--workspace", ".", "--data", t.TempDir(), "--price", "1/2", "--skills", skills,
		"--model", script(t, `{"text": "One.", "usage": {"input_tokens": 1000000, "output_tokens": 1}}`))
	m.shows("/help lists commands", "\n›")
	m.keys("one", "Enter")
	m.shows("● One.", "answered")
	m.keys("/cost", "Enter")
	m.shows("1 turn: 1000000 input tokens (0 from the cache), 1 output tokens; $1.0000")
	m.keys("/model nothing:x", "Enter")
	m.shows("the model stays script:")
	m.keys("-l", "/model "+other)
	m.keys("Enter")
	m.shows("replies from the next turn on")
	m.keys("two", "Enter")
	m.shows("From the other one.")
	m.keys("/tools", "Enter")
	m.shows("bash  ", "coordinator tools --doc NAME")
	m.keys("/triggers", "Enter")
	m.shows("triggers need a fleet")
	m.keys("/fork", "Enter")
	m.shows(" is a fork of this one", " --data ")
	m.keys("/skill", "Enter")
	m.shows("- release: How we release.")
	m.keys("/skill release now", "Enter")
	m.shows("› Read the skill release with the tool skill, and follow it. now", "Skilled.")
	m.quit()
}

// journalOf reads the journal of the only session in a data directory.
func journalOf(t *testing.T, data string) []loop.Event {
	t.Helper()
	client, err := fleet.Connect(t.Context(), fleet.Options{Data: data})
	require.NoError(t, err)
	defer client.Close()
	ids, err := client.Sessions("").IDs(t.Context())
	require.NoError(t, err)
	require.Len(t, ids, 1)
	history, err := client.Sessions("").Log(t.Context(), ids[0])
	require.NoError(t, err)
	return history.Events
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
