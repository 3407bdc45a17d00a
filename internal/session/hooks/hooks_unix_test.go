//go:build unix

package hooks_test

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/session/hooks"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/tools/policy"
)

// load makes a file with one hook, and loads it.
func load(t *testing.T, event loop.HookEvent, command string) loop.Hook {
	t.Helper()
	text, err := json.Marshal(map[string]any{"hooks": map[loop.HookEvent]any{
		event: []any{map[string]any{"hooks": []any{map[string]any{"type": "command", "command": command}}}},
	}})
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "hooks.json")
	require.NoError(t, os.WriteFile(path, text, 0o600))
	list, err := hooks.Load(path, "/somewhere")
	require.NoError(t, err)
	require.Len(t, list, 1)
	return list[0]
}

func TestHook_SaysWhatItsProgramPrints(t *testing.T) {
	t.Parallel()
	output := "out"
	for command, want := range map[string]loop.HookAnswer{
		`true`:                          {},
		`echo text`:                     {},
		`echo '{"decision":"approve"}'`: {},
		`echo '{"decision":"block","reason":"r"}'`:   {Decision: policy.Denied, Reason: "r"},
		`echo '{"continue":false,"stopReason":"r"}'`: {Decision: policy.Denied, Reason: "r"},
		`echo why >&2; exit 2`:                       {Decision: policy.Denied, Reason: "why"},
		`echo '{"hookSpecificOutput":{"permissionDecision":"ask","permissionDecisionReason":"r","updatedInput":{"a":1}}}'`: {
			Decision: policy.Ask, Reason: "r", Input: json.RawMessage(`{"a":1}`),
		},
		`echo '{"hookSpecificOutput":{"additionalContext":"c","updatedToolOutput":"out"}}'`: {Context: "c", Output: &output},
		`echo '{"decision":"approve","hookSpecificOutput":{"permissionDecision":"deny"}}'`:  {Decision: policy.Denied},
	} {
		got, err := load(t, loop.HookBefore, command).Run(t.Context(), loop.HookRequest{Event: loop.HookBefore})
		require.NoError(t, err, command)
		require.Equal(t, want, got, command)
	}
	got, err := load(t, loop.HookPrompt, "echo text").Run(t.Context(), loop.HookRequest{Event: loop.HookPrompt})
	require.NoError(t, err)
	require.Equal(t, loop.HookAnswer{Context: "text"}, got)
}

func TestHook_WhatCannotBeUnderstoodFails(t *testing.T) {
	t.Parallel()
	for command, want := range map[string]string{
		`exit 1`:                      "exit status 1",
		`/no/such/program`:            "exit status 127",
		`echo '{"decision":"maybe"}'`: `decision "maybe": must be allow, deny, ask or block`,
		`echo '{"decision":'`:         "is no JSON",
		`echo '{} {}'`:                "more than one JSON object",
		`echo '{"decision":"block","reason":"","decision":"approve"}'`: `duplicate object member name "decision"`,
		`head -c 2000000 /dev/zero`:                                    "it printed more than 1048576 bytes",
	} {
		_, err := load(t, loop.HookBefore, command).Run(t.Context(), loop.HookRequest{Event: loop.HookBefore})
		require.ErrorContains(t, err, want, command)
	}
}

// A program ends with its time, and so does what it has started.
func TestHook_EndsWithItsTime(t *testing.T) {
	t.Parallel()
	mark := filepath.Join(t.TempDir(), "pid")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	hook := load(t, loop.HookBefore, "sleep 600 & echo $! > "+mark+"; wait")
	done := make(chan error, 1)
	go func() {
		_, err := hook.Run(ctx, loop.HookRequest{Event: loop.HookBefore})
		done <- err
	}()
	require.Eventually(t, func() bool { content, _ := os.ReadFile(mark); return len(content) > 0 }, time.Minute, time.Millisecond)
	cancel()
	require.ErrorIs(t, <-done, context.Canceled)
	pid, err := os.ReadFile(mark)
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		state, err := os.ReadFile(filepath.Join("/proc", string(pid[:len(pid)-1]), "stat"))
		return err != nil || len(state) == 0 || containsZombie(state)
	}, time.Minute, time.Millisecond)
}

func containsZombie(stat []byte) bool {
	for i := range stat {
		if i+2 < len(stat) && stat[i] == ')' && stat[i+2] == 'Z' {
			return true
		}
	}
	return false
}

func TestLoad_NamesWhatIsWrong(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`{`: "not JSON",
		`{"hooks":{"PreToolUse":[{"matcher":"(","hooks":[]}]}}`:                                              `hooks.PreToolUse[0].matcher "("`,
		`{"hooks":{"PreToolUse":[{"hooks":[{"type":"http","command":"x"}]}]}}`:                               `hooks.PreToolUse[0].hooks[0].type "http": must be "command"`,
		`{"hooks":{"PreToolUse":[{"hooks":[{"type":"command"}]}]}}`:                                          "command: is missing",
		`{"hooks":{"PreToolUse":[{"hooks":[{"type":"command","command":"x","timeout":601}]}]}}`:              "timeout 601: must be 0 to 600 seconds",
		`{"hooks":{"PreToolUse":[{"hooks":[{"type":"command","command":"x"}]}]}} {"hooks":{}}`:               "not JSON",
		`{"hooks":{"PreToolUse":[{"hooks":[{"type":"command","command":"x"}]}],"PreToolUse":[]},"hooks":{}}`: `duplicate object member name "PreToolUse"`,
		`{"hooks":{"Later":[]}}`: "hooks.Later: there is no such event",
		`{}`:                     "it names no hook",
	} {
		path := filepath.Join(t.TempDir(), "hooks.json")
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		_, err := hooks.Load(path, "")
		require.ErrorContains(t, err, want, text)
	}
}
