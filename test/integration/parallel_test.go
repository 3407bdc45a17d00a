package integration

import (
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

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
		got := execute(t, coordinator, launch{args: runFlags(t, model, workspace, "--json")})
		require.Equal(t, 0, got.code, got.stderr)
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
	got := execute(t, coordinator, launch{args: runFlags(t, script(t, steps...), t.TempDir(), "--json", "--max-steps", "41")})
	require.Equal(t, 0, got.code, got.stderr)
	told := results(events(t, got.stdout))
	require.Len(t, told, 6*rounds)
	for i := range rounds {
		require.Contains(t, told[fmt.Sprintf("r%d", i)].Content, fmt.Sprintf("\tfirst of %d\n", i))
		require.Equal(t, fmt.Sprintf("second of %d\n", i), told[fmt.Sprintf("b%d", i)].Content)
		require.Contains(t, told[fmt.Sprintf("g%d", i)].Content, fmt.Sprintf("f.txt:1:third of %d\n", i))
	}
}
