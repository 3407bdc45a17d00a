package integration

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/require"
)

// TestInPlace_ProcessesInOneDirectoryLoseNothing: each has a fleet of its own, and they know the
// directory by different names, or as a part of theirs.
func TestInPlace_ProcessesInOneDirectoryLoseNothing(t *testing.T) {
	t.Parallel()
	const each = 5
	home, parent := t.TempDir(), t.TempDir()
	workspace, link := filepath.Join(parent, "work"), filepath.Join(t.TempDir(), "link")
	write(t, filepath.Join(workspace, "n"), "0\n")
	write(t, filepath.Join(workspace, "list"), "end\n")
	require.NoError(t, os.Symlink(workspace, link))

	const add = `cd "$(ls -d work 2>/dev/null || echo .)"; x=$(cat n); sleep 0.02; echo $((x+1)) >n`
	session := func(dir, list string) *process {
		var steps []step
		for i := range each {
			steps = append(steps, say("", bash(fmt.Sprint("b", i), add),
				use(fmt.Sprint("e", i), "edit", object{"path": list, "old": "end\n", "new": "line\nend\n"})))
		}
		args := []string{"run", "--json", "--model", script(t, append(steps, say("done"))...), "--sandbox", "process", "--workspace", dir, "go"}
		return start(t, coordinator, launch{args: args, env: []string{"HOME=" + home}})
	}
	sessions := []*process{session(workspace, "list"), session(link, "list"), session(parent, "work/list")}
	command := exec.CommandContext(context.WithoutCancel(t.Context()), coordinator, "mcp", "--workspace", workspace, "--sandbox", "process")
	command.Env = append(os.Environ(), "HOME="+home, "TMPDIR="+home, "TOOLFLEET_MIN_LEVEL=none")
	dieWithTests(command)
	c := mcpClient(t, &mcp.CommandTransport{Command: command})
	for range each {
		mcpBash(t, c, add)
		edited, err := c.CallTool(t.Context(), &mcp.CallToolParams{Name: "edit", Arguments: map[string]any{"path": "list", "old": "end\n", "new": "line\nend\n"}})
		require.NoError(t, err)
		require.False(t, edited.IsError, "%v", edited.StructuredContent)
	}
	for _, s := range sessions {
		require.Equal(t, 0, s.wait(t), s.stderr.String())
		for _, r := range results(events(t, s.stdout.String())) {
			require.Equal(t, "ok", r.Status)
		}
	}
	require.Equal(t, fmt.Sprintln(4*each), content(t, filepath.Join(workspace, "n")))
	require.Equal(t, 4*each, strings.Count(content(t, filepath.Join(workspace, "list")), "line\n"))
}

// TestInPlace_ACallWaitsForAnotherProcess, is told for which, and is freed when that is killed. The
// wait is no part of the time that the call has to run.
func TestInPlace_ACallWaitsForAnotherProcess(t *testing.T) {
	t.Parallel()
	home, workspace := t.TempDir(), t.TempDir()
	write(t, filepath.Join(workspace, "sub/file"), "")
	model := script(t, say("", bash("c1", "touch started; sleep 600")))
	holder := start(t, coordinator, launch{args: []string{"run", "--model", model, "--sandbox", "process", "--workspace", workspace, "go"}, env: []string{"HOME=" + home}})
	require.Eventually(t, func() bool {
		_, err := os.Stat(filepath.Join(workspace, "started"))
		return err == nil
	}, patience, 20*time.Millisecond)
	waiting := start(t, coordinator, launch{
		args: []string{"call", "--workspace", filepath.Join(workspace, "sub"), "--sandbox", "process", "bash", `{"command":"echo mine","timeout":3}`},
		env:  []string{"HOME=" + home},
	})
	told := waiting.waitFor(t, `bash waits for: process (\d+) \(coordinator run, session \S+\), which uses (.+) since`)
	require.Equal(t, fmt.Sprint(holder.cmd.Process.Pid), told[1])
	require.Equal(t, workspace, told[2])
	ended := execute(t, coordinator, launch{
		args: []string{"call", "--workspace", workspace, "--sandbox", "process", "--timeout", "5s", "bash", `{"command":"echo other"}`}, env: []string{"HOME=" + home},
	})
	require.Equal(t, 1, ended.code)
	require.Regexp(t, `the call ended while it waited for process \d+ .*; nothing was run`, ended.stdout)
	holder.kill(t)
	require.Equal(t, 0, waiting.wait(t))
	require.Contains(t, waiting.stdout.String(), `"content":"mine\n"`)
}

// TestInPlace_WithoutAStateFolderItSaysThatCallsMayOverlap.
func TestInPlace_WithoutAStateFolderItSaysThatCallsMayOverlap(t *testing.T) {
	t.Parallel()
	home, workspace := t.TempDir(), t.TempDir()
	write(t, filepath.Join(home, ".local/state/toolfleet/in-place"), "no folder")
	got := execute(t, coordinator, launch{
		args: []string{"call", "--workspace", workspace, "--sandbox", "process", "bash", `{"command":"echo mine"}`}, env: []string{"HOME=" + home},
	})
	require.Equal(t, 0, got.code, got.stderr)
	require.Contains(t, got.stderr, "may overlap with their calls")
	require.Contains(t, got.stderr, "in-place: not a directory")
}

// TestInPlace_AKilledSessionGoesOnWhereItWorked, although the next process stands in another
// directory: what the killed command did is there, and it does not start again from its beginning.
func TestInPlace_AKilledSessionGoesOnWhereItWorked(t *testing.T) {
	t.Parallel()
	home, workspace := t.TempDir(), t.TempDir()
	const command = `echo start >>log; sleep 600; echo end >>log`
	run := func(prompt string, args ...string) launch {
		model := script(t, say("", bash("c1", command)), say("", bash("c2", "echo later >>log")), say("the first turn ends"), say("so does the second"))
		if prompt != "" {
			args = append(args, prompt)
		}
		return launch{args: append([]string{"run", "--json", "--session", "killed", "--model", model, "--sandbox", "process"}, args...), env: []string{"HOME=" + home}}
	}
	killed := start(t, coordinator, run("go", "--workspace", workspace))
	require.Eventually(t, func() bool {
		_, err := os.Stat(filepath.Join(workspace, "log"))
		return err == nil
	}, patience, 20*time.Millisecond)
	killed.kill(t)
	killed.wait(t)
	shown := execute(t, coordinator, launch{args: []string{"session", "show", "killed"}, env: []string{"HOME=" + home}})
	require.Contains(t, shown.stdout, "the process that ran turn 1 was lost; it continues with: coordinator run --session killed")
	again := execute(t, coordinator, run(""))
	require.Equal(t, 0, again.code, again.stderr)
	require.Equal(t, "start\nlater\n", content(t, filepath.Join(workspace, "log")))
	require.Contains(t, again.stdout, `"status":"outcome_unknown"`)
	require.Contains(t, again.stdout, "works in a directory in place")
	require.Contains(t, again.stderr, "turn 1 of this session did not end, because the process that ran it was lost while this ran: bash echo start")
	require.Contains(t, again.stdout, `"text":"the first turn ends"`)
	nothing := execute(t, coordinator, run(""))
	require.Equal(t, 2, nothing.code, nothing.stderr)
	require.Contains(t, nothing.stderr, "session killed has no unfinished turn to continue")
	second := execute(t, coordinator, run("go on"))
	require.Equal(t, 0, second.code, second.stderr)
	require.Contains(t, second.stdout, `"text":"so does the second"`)
}

// TestRun_ManyFileCallsInOneStep: 64 parallel calls on files return in under 2 s in total,
// without the race detector.
func TestRun_ManyFileCallsInOneStep(t *testing.T) { //nolint:paralleltest // it measures
	const calls = 64
	var writes, reads []object
	for i := range calls {
		path := fmt.Sprintf("dir%d/file%d.txt", i%8, i)
		writes = append(writes, use(fmt.Sprintf("w%d", i), "write", object{"path": path, "content": path}))
		reads = append(reads, use(fmt.Sprintf("r%d", i), "read", object{"path": path}))
	}
	model := script(t, say("Write.", writes...), say("Read.", reads...), say("Done."))
	for range tries { // other programs of the machine take its time too, but not each time
		workspace := t.TempDir()
		got := succeed(t, coordinator, launch{args: runFlags(t, model, workspace, "--json")})
		list := events(t, got.stdout)
		told := results(list)
		require.Len(t, told, 2*calls)
		for i := range calls {
			path := fmt.Sprintf("dir%d/file%d.txt", i%8, i)
			require.Equal(t, "ok", told[fmt.Sprintf("w%d", i)].Status)
			require.Contains(t, told[fmt.Sprintf("r%d", i)].Content, path)
			require.Equal(t, path, content(t, filepath.Join(workspace, path)))
		}
		wrote, read := between(t, list, 1), between(t, list, 2)
		t.Logf("%d calls in one step, from the first tool_call to the last tool_result: writes %s, reads %s",
			calls, wrote.Round(time.Millisecond), read.Round(time.Millisecond))
		if raceEnabled || testing.Short() || max(wrote, read) < 2*time.Second {
			return
		}
	}
	require.Fail(t, "a step takes too long", "in each of %d runs", tries)
}

// between is the time from the first tool call of a step to its last result.
func between(tb testing.TB, list []event, step int) time.Duration {
	tb.Helper()
	var first, last time.Time
	for _, e := range list {
		if e.Step != step || e.Type != "tool_call" && e.Type != "tool_result" {
			continue
		}
		at, err := time.Parse(time.RFC3339Nano, e.Time)
		require.NoError(tb, err)
		if first.IsZero() {
			first = at
		}
		last = at
	}
	require.False(tb, first.IsZero(), "step %d has calls", step)
	return last.Sub(first)
}

// TestRun_CallsOfOneFileKeepTheirOrder: what a step writes, the same step reads, by
// whichever tool: 100 times of 100.
func TestRun_CallsOfOneFileKeepTheirOrder(t *testing.T) {
	t.Parallel()
	const rounds = 40
	var steps []step
	for i := range rounds {
		id := func(name string) string { return fmt.Sprintf("%s%d", name, i) }
		steps = append(steps, say("",
			use(id("w"), "write", object{"path": "f.txt", "content": fmt.Sprintf("first of %d\n", i)}),
			use(id("r"), "read", object{"path": "f.txt"}),
			use(id("v"), "write", object{"path": "./sub/../f.txt", "content": fmt.Sprintf("second of %d\n", i)}),
			bash(id("b"), "cat f.txt"),
			use(id("e"), "edit", object{"path": "f.txt", "old": "second", "new": "third"}),
			use(id("g"), "grep", object{"pattern": "of"}),
		))
	}
	steps = append(steps, say("Done."))
	got := succeed(t, coordinator, launch{args: runFlags(t, script(t, steps...), t.TempDir(), "--json", "--max-steps", "41")})
	told := results(events(t, got.stdout))
	require.Len(t, told, 6*rounds)
	for i := range rounds {
		require.Contains(t, told[fmt.Sprintf("r%d", i)].Content, fmt.Sprintf("\tfirst of %d\n", i))
		require.Equal(t, fmt.Sprintf("second of %d\n", i), told[fmt.Sprintf("b%d", i)].Content)
		require.Contains(t, told[fmt.Sprintf("g%d", i)].Content, fmt.Sprintf("f.txt:1:third of %d\n", i))
	}
}
