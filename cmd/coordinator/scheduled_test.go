package main

import (
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools/policy"
)

// The policies of serve bind scheduled calls, and what needs a person does not start.
func TestJudgeScheduled(t *testing.T) {
	t.Parallel()
	call := protocol.Call{
		ID: "c", SessionID: protocol.NewSessionID(), Tool: "bash", Payload: protocol.CommandRun{Command: "rm x"}, Delivery: protocol.Rollback,
		Resources: []protocol.Use{{Key: protocol.SandboxKey("s"), Access: protocol.Exclusive}},
	}
	for text, says := range map[string]string{
		"tools: {deny: [bash]}":                            "The tool bash is not allowed",
		"commands: {deny: [rm]}":                           `The command "rm x" is not allowed`,
		"paths: {write: [src]}":                            "bash may change everything",
		"approval: {tools: [bash]}":                        "nobody could be asked (no person can approve a scheduled call)",
		"approval: {commands: [rm]}":                       "no person can approve",
		"commands: {allow: [rm]}":                          "",
		"{min_level: full, at_most_once: {tools: [bash]}}": "",
	} {
		rules, err := policy.Parse("rules", []byte(text))
		require.NoError(t, err)
		judged := call
		if err := judgeScheduled([]policy.Policy{rules}, nil, slog.New(slog.DiscardHandler))(t.Context(), &judged); says != "" {
			require.ErrorContains(t, err, says)
			continue
		}
		require.NoError(t, err)
		if rules.MinLevel != "" {
			require.Equal(t, "full at_most_once", judged.MinLevel+" "+string(judged.Delivery))
		}
	}
	require.Nil(t, judgeScheduled(nil, nil, nil))

	// The calls of a schedule count, each once.
	judge := judgeScheduled([]policy.Policy{{MaxCallsOf: map[string]int{"bash": 2}}}, loop.NewLedger(nil), slog.New(slog.DiscardHandler))
	for _, id := range []protocol.CallID{"1", "2", "2", "3", "1"} {
		judged := call
		judged.ID = id
		if err := judge(t.Context(), &judged); id == "3" {
			require.ErrorContains(t, err, "used up its 2 calls of bash")
		} else {
			require.NoError(t, err, id)
		}
	}
}
