package toolset_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

func TestProcess_NeedsAName(t *testing.T) {
	t.Parallel()
	for _, action := range []string{"read", "send", "kill"} {
		_, _, err := coreTable(t).Plan(scope, "process", `{"action":"`+action+`"}`)
		require.NotNil(t, err)
		require.Equal(t, protocol.CodeInvalidArguments, err.Code)
		require.Contains(t, err.Message, "process: is required, but missing")
	}
}

func TestText_BackgroundProcesses(t *testing.T) {
	t.Parallel()
	living := wire.ProcessStatus{
		Process: "p-1", Command: "npm run\ndev", StartedAt: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Reason: "running", ExitCode: -1, Bytes: 6,
	}
	terminal := living
	terminal.TTY = true
	kept := wire.ProcessStatus{Process: "p-1", Reason: "exited", Bytes: 6, Kept: "c-1"}
	state := func(reason, signal string, exit int) wire.ProcessStatus {
		return wire.ProcessStatus{Process: "p-1", Reason: reason, Signal: signal, ExitCode: exit}
	}
	started := func(reason string, exit int, output string) protocol.CommandRunResult {
		return protocol.CommandRunResult{
			Process: "p-1", Execution: protocol.Execution{Reason: reason, ExitCode: exit, Combined: protocol.Bytes(output)},
		}
	}
	for name, test := range map[string]struct {
		tool  string
		value protocol.Value
		want  string
	}{
		"started":          {"bash", started("running", -1, ""), "[background process p-1: running; it runs concurrently with other calls; the process tool reads what it writes, and kills it]"},
		"started and said": {"bash", started("running", -1, "ready"), "ready\n[background process p-1: running; it runs concurrently with other calls; the process tool reads what it writes, and kills it]"},
		"failed at once":   {"bash", started("exited", 127, "sh: x: not found\n"), "sh: x: not found\n[background process p-1: ended with exit code 127; it ended at once]"},
		"none":             {"process", wire.ProcessListResult{}, "[there are no background processes]"},
		"some": {
			"process",
			wire.ProcessListResult{Processes: []wire.ProcessStatus{living, state("cancelled", "SIGTERM", -1)}},
			"p-1  running, 6 bytes written, started 03:04:05: npm run\np-1  killed, 0 bytes written, started 00:00:00: ",
		},
		"read": {
			"process",
			wire.ProcessReadResult{ProcessStatus: living, Content: protocol.Bytes("ready\n"), NextOffset: 6},
			"ready\n[p-1 running; bytes 0-6 of 6; read on with offset=6]",
		},
		"a terminal": {
			"process",
			wire.ProcessSendResult{ProcessReadResult: wire.ProcessReadResult{
				ProcessStatus: terminal, Content: protocol.Bytes("50%\r100%\r\n\x1b[1G\x1b[0J> \x1b[3G"), Offset: 4, NextOffset: 6,
			}},
			"100%\n>\n[p-1 running; bytes 4-6 of 6; read on with offset=6]",
		},
		"dropped": {
			"process",
			wire.ProcessReadResult{ProcessStatus: living, Content: protocol.Bytes("end"), Offset: 3, NextOffset: 6, Dropped: 3},
			"end\n[3 bytes before this are dropped and not stored: if you need all output, let the command write it to a file]\n[p-1 running; bytes 3-6 of 6; read on with offset=6]",
		},
		"kept": {
			"process",
			wire.ProcessReadResult{ProcessStatus: kept, Content: protocol.Bytes("end"), Offset: 3, NextOffset: 6, Dropped: 3},
			"end\n[p-1 ended with exit code 0; bytes 3-6 of 6; read on with offset=6; all of it: read with path=\"result:c-1\"]",
		},
		"nothing new":  {"process", wire.ProcessReadResult{ProcessStatus: living, Offset: 6, NextOffset: 6}, "[p-1 running; nothing new after byte 6 of 6]"},
		"killed":       {"process", wire.ProcessKillResult{ProcessStatus: state("cancelled", "SIGKILL", -1)}, "[p-1: killed]"},
		"ended before": {"process", wire.ProcessKillResult{ProcessStatus: state("exited", "", 0)}, "[p-1: ended with exit code 0]"},
		"out of time":  {"process", wire.ProcessKillResult{ProcessStatus: state("timeout", "SIGKILL", -1)}, "[p-1: killed at its time limit]"},
		"no memory":    {"process", wire.ProcessKillResult{ProcessStatus: state("oom", "SIGKILL", -1)}, "[p-1: killed, it ran out of memory]"},
		"no disk":      {"process", wire.ProcessKillResult{ProcessStatus: state("disk_limit", "SIGKILL", -1)}, "[p-1: ended, the sandbox used up its disk]"},
		"by a signal":  {"process", wire.ProcessKillResult{ProcessStatus: state("signaled", "SIGSEGV", -1)}, "[p-1: ended by signal SIGSEGV]"},
		"lost":         {"process", wire.ProcessKillResult{ProcessStatus: state("sandbox_lost", "", -1)}, "[p-1: ended with its sandbox]"},
	} {
		require.Equal(t, test.want, text(t, test.tool, ok(test.value)), name)
	}
}

// TestProcess_WhatIsTyped: text as it is, line feeds as Enter, keys by their names.
func TestProcess_WhatIsTyped(t *testing.T) {
	t.Parallel()
	for arguments, want := range map[string]string{
		`"text":"1 + 1"`:                          "1 + 1\r",
		`"text":"if x:\n  y\n\n"`:                 "if x:\r  y\r\r",
		`"text":"y","keys":[]`:                    "y",
		`"keys":["ctrl-c"]`:                       "\x03",
		`"text":"q","keys":["Escape","up","tab"]`: "q\x1b\x1b[A\t",
		`"keys":["ctrl-\\","ctrl-]"]`:             "\x1c\x1d",
		`"text":"é 漢"`:                            "é 漢\r",
		`"text":"a\r\nb"`:                         "a\rb\r",
	} {
		_, plan, err := coreTable(t).Plan(scope, "process", `{"action":"send","process":"p-1",`+arguments+`}`)
		require.Nil(t, err, arguments)
		send, ok := plan.Payload.(wire.ProcessSend)
		require.True(t, ok)
		require.Equal(t, want, string(send.Input), arguments)
		require.Equal(t, protocol.AtMostOnce, plan.Delivery)
		require.Equal(t, protocol.Exclusive, plan.Resources[0].Access)
		require.EqualValues(t, 5000, send.Wait)
	}
	_, plan, err := coreTable(t).Plan(scope, "bash", `{"command":"python3","tty":true}`)
	require.Nil(t, err)
	command, ok := plan.Payload.(protocol.CommandRun)
	require.True(t, ok && command.TTY && command.Background, "%+v", plan.Payload)
	for arguments, want := range map[string]string{
		`"keys":["f13"]`: `keys.0: there is no key "f13": must be backspace, delete,`,
		`"keys":[]`:      "text: is required, but missing",
		`"text":""`:      "text: is required, but missing",
	} {
		_, _, err := coreTable(t).Plan(scope, "process", `{"action":"send","process":"p-1",`+arguments+`}`)
		require.NotNil(t, err, arguments)
		require.Contains(t, err.Message, want)
	}
}
