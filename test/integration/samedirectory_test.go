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
