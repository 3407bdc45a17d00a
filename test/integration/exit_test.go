package integration

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/test/processtest"
)

func TestRun_ExitCodes(t *testing.T) {
	t.Parallel()
	forever := script(t, say("", bash("c1", "true")), say("", bash("c1", "true")), say("", bash("c1", "true")))
	cases := map[string]struct {
		model  string
		flags  []string
		code   int
		status string
		stderr string
	}{
		"answered":           {script(t, say("yes")), nil, 0, "answered", ``},
		"the model fails":    {script(t, say("", bash("c1", "true"))), nil, 1, "failed", `script .* has 1 steps and step 2 was asked for`},
		"too many steps":     {forever, []string{"--max-steps", "2"}, 3, "limit_reached", `limit of 2 steps`},
		"too long":           {script(t, say("", bash("c1", "sleep 100"))), []string{"--timeout", "700ms"}, 3, "limit_reached", `limit of 700ms`},
		"too long, thinking": {script(t, step{"text": "one two three", "delay_ms": 60000}), []string{"--timeout", "300ms"}, 3, "limit_reached", `limit of 300ms`},
		"too many tokens": {
			script(t, step{"text": "", "tool_calls": []object{bash("c1", "true")}, "usage": object{"input_tokens": 99}}, say("never")),
			[]string{"--max-tokens", "50"},
			3, "limit_reached", `limit of 50 tokens`,
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := execute(t, coordinator, launch{args: runFlags(t, c.model, t.TempDir(), append(c.flags, "--json")...)})
			require.Equal(t, c.code, got.code, got.stderr)
			require.Regexp(t, c.stderr, got.stderr)
			list := events(t, got.stdout)
			ended := list[len(list)-1]
			require.Equal(t, "session_ended", ended.Type)
			require.Equal(t, c.status, ended.Status)
			require.NotNil(t, ended.Usage)
			require.Len(t, ofType(list, "tool_result"), len(ofType(list, "tool_call")), "every call has its result")
		})
	}
}

// TestRun_UsageErrorsRunNothing: the fault is named with what is allowed, and the
// data directory is not even made.
func TestRun_UsageErrorsRunNothing(t *testing.T) {
	t.Parallel()
	missing := filepath.Join(t.TempDir(), "missing")
	file := filepath.Join(t.TempDir(), "file")
	write(t, file, "")
	for name, c := range map[string]struct {
		flags  []string
		stderr string
	}{
		"unknown flag":        {[]string{"--frobnicate"}, `unknown flag --frobnicate; --help-all lists the flags`},
		"missing workspace":   {[]string{"--workspace", missing}, `--workspace .*missing: no such file`},
		"workspace is a file": {[]string{"--workspace", file}, `--workspace .*file: not a directory`},
		"bad number":          {[]string{"--max-steps", "many"}, `--max-steps`},
		"no steps":            {[]string{"--max-steps", "0"}, `--max-steps 0: must be at least 1`},
		"bad duration":        {[]string{"--timeout", "soon"}, `--timeout`},
		"negative timeout":    {[]string{"--timeout=-1s"}, `--timeout -1s: must not be negative`},
		"unknown model":       {[]string{"--model", "magic:x"}, `--model(?s:.*)script:FILE(?s:.*)openai:NAME`},
		"missing script":      {[]string{"--model", "script:" + missing}, `missing`},
		"unknown toolset":     {[]string{"--toolset", "nope"}, `--toolset(?s:.*)nope(?s:.*)core`},
		"unknown sandbox":     {[]string{"--sandbox", "docker"}, `--sandbox(?s:.*)docker(?s:.*)auto(?s:.*)process`},
		"no slots":            {[]string{"--slots", "0"}, `--slots 0: must be 1 to 4096`},
		"bad session":         {[]string{"--session", "../x"}, `--session`},
		"bad fleet":           {[]string{"--fleet", "a.b"}, `--fleet`},
		"bad environment":     {[]string{"--env", "NOVALUE"}, `--env`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			data := filepath.Join(t.TempDir(), "data")
			args := []string{"run", "--model", script(t, say("never")), "--data", data, "--sandbox", "process"}
			got := execute(t, coordinator, launch{args: append(append(args, c.flags...), "do it")})
			require.Equal(t, 2, got.code, got.stderr)
			require.Regexp(t, c.stderr, got.stderr)
			require.Empty(t, got.stdout)
			require.NoDirExists(t, data)
		})
	}
}

// TestRun_InterruptLeavesNothingBehind: SIGINT ends the running call with all that
// it started, promptly, even what tries to get away.
func TestRun_InterruptLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		processtest.Unavailable(t, "processes are found by /proc")
	}
	// An argument that no other process on this machine has.
	marker := fmt.Sprintf("8%d.%d", os.Getpid(), time.Now().UnixNano()%1e9)
	sleep := "sleep " + marker
	command := fmt.Sprintf("%s & setsid %s & (trap '' TERM INT; %s) & touch started; %s", sleep, sleep, sleep, sleep)
	workspace := t.TempDir()
	p := start(t, coordinator, launch{args: runFlags(t, script(t, say("Working.", bash("c1", command)), say("never")), workspace, "--json")})
	waitUntil(t, func() bool { return len(processesWith(t, marker)) >= 4 })

	begin := time.Now()
	p.signal(t, os.Interrupt)
	require.Equal(t, 130, p.wait(t), p.stderr)
	took := time.Since(begin)
	t.Logf("ended %s after SIGINT", took.Round(time.Millisecond))
	require.Less(t, took, time.Minute)
	require.Empty(t, processesWith(t, marker))

	list := events(t, p.stdout.String())
	require.Equal(t, "cancelled", results(list)["c1"].Status)
	require.Equal(t, "interrupted", list[len(list)-1].Status)
	require.Len(t, ofType(list, "model_reply"), 1, "the model is not asked again")
}

// TestRun_InterruptWhileTheModelThinks: a model that does not answer is no reason to stay.
func TestRun_InterruptWhileTheModelThinks(t *testing.T) {
	t.Parallel()
	p := start(t, coordinator, launch{args: runFlags(t, script(t, step{"text": "one two three", "delay_ms": 60000}), "")})
	p.waitFor(t, `do it`)
	p.signal(t, syscall.SIGTERM)
	require.Equal(t, 130, p.wait(t))
	require.Empty(t, p.stdout.String(), "no answer, no output")
	require.Regexp(t, `coordinator: interrupted`, p.stderr)
}

// slowness scales bounds of time: the race detector makes everything slower.
const slowness = 1 + 2*slow

// processesWith are the live processes that have the marker in their command line.
func processesWith(tb testing.TB, marker string) []string {
	tb.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	require.NoError(tb, err)
	var found []string
	for _, file := range files {
		line, err := os.ReadFile(file)
		args := bytes.Split(bytes.TrimRight(line, "\x00"), []byte{0})
		// A shell has the marker inside its script; only the commands have it as an argument.
		if err == nil && len(args) == 2 && string(args[1]) == marker {
			found = append(found, filepath.Base(filepath.Dir(file)))
		}
	}
	return found
}

// perProcess is the time between two looks that start a process each.
const perProcess = 250 * time.Millisecond

// waitUntil waits for something that announces itself in no other way.
func waitUntil(tb testing.TB, holds func() bool) {
	tb.Helper()
	require.Eventually(tb, holds, patience, 20*time.Millisecond)
}
