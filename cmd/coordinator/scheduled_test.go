package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools/policy"
)

// The policies of serve bind scheduled calls, and what needs a person does not start.
func TestJudgeScheduled(t *testing.T) {
	t.Parallel()
	call := protocol.Call{
		Tool: "bash", Payload: protocol.CommandRun{Command: "rm x"}, Delivery: protocol.Rollback,
		Resources: []protocol.Use{{Key: protocol.SandboxKey("s"), Access: protocol.Exclusive}},
	}
	for text, says := range map[string]string{
		"tools: {deny: [bash]}":                            "The tool bash is not allowed",
		"commands: {deny: [rm]}":                           `The command "rm x" is not allowed`,
		"paths: {write: [src]}":                            "bash may change everything",
		"approval: {tools: [bash]}":                        "calls of bash need approval, and no person can approve a scheduled call (approval.tools)",
		"approval: {commands: [rm]}":                       "no person can approve",
		"commands: {allow: [rm]}":                          "",
		"{min_level: full, at_most_once: {tools: [bash]}}": "",
	} {
		rules, err := policy.Parse("rules", []byte(text))
		require.NoError(t, err)
		judged := call
		if err := judgeScheduled([]policy.Policy{rules})(&judged); says != "" {
			require.ErrorContains(t, err, says)
			continue
		}
		require.NoError(t, err)
		if rules.MinLevel != "" {
			require.Equal(t, "full at_most_once", judged.MinLevel+" "+string(judged.Delivery))
		}
	}
	require.Nil(t, judgeScheduled(nil))
}
