package toolset_test

import (
	"path"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
)

// planned returns the call that a tool of the core toolset makes of a path.
func planned(t require.TestingT, table *tools.Table, toolName, path string) protocol.Call {
	_, plan, err := table.Plan(scope, toolName, argumentsFor(t, toolName, path))
	require.Nil(t, err, "%s %q", toolName, path)
	call, err := plan.Call(scope, tools.Place{ID: "c", Turn: 1, Step: 1}, "", toolName, time.Unix(0, 0))
	require.Nil(t, err, "%s %q", toolName, path)
	return call
}

func TestCore_WhatConflicts(t *testing.T) {
	t.Parallel()
	table := coreTable(t)
	readOnly := func(toolName string) protocol.Call {
		raw := map[string]string{"bash": `{"command":"ls","read_only":true}`, "run_code": `{"code":"1","read_only":true}`}[toolName]
		_, plan, err := table.Plan(scope, toolName, raw)
		require.Nil(t, err)
		call, err := plan.Call(scope, tools.Place{ID: "c", Turn: 1, Step: 1}, "", toolName, time.Unix(0, 0))
		require.Nil(t, err)
		return call
	}
	for name, test := range map[string]struct {
		first, second string // tool and path
		conflict      bool
	}{
		"two reads of a file":                     {"read a", "read a", false},
		"read and write of a file":                {"read a", "write a", true},
		"two writes of a file":                    {"write a", "write a", true},
		"edit and read of a file":                 {"edit a", "read a", true},
		"edits of two files":                      {"edit a", "edit b", false},
		"names that begin alike":                  {"write a", "write ab", false},
		"one file in two spellings":               {"write ./x/../a", "read /workspace/a", true},
		"a write and the listing of its folder":   {"write a/b.txt", "list a", true},
		"a write and the listing above":           {"write a/b/c.txt", "list .", true},
		"a write and the listing beside it":       {"write a/b.txt", "list c", false},
		"a write and a search above":              {"write a/b.txt", "grep .", true},
		"a write and a search of another file":    {"write a/b.txt", "grep a/c.txt", false},
		"a write that makes a folder, and exists": {"write new/x", "exists new", true},
		"two writes into one new folder":          {"write new/x", "write new/y", false},
		"a file, and a file below that name":      {"write a", "write a/b", true},
		"a listing and a search":                  {"list .", "grep .", false},
		"a write and a glob above":                {"write a/b.txt", "glob .", true},
		"a write and a tree above":                {"json_write a/b.txt", "tree a", true},
		"a glob, a tree and a listing":            {"glob .", "tree .", false},
		"two places of one document":              {"json_write a", "json_write ./a", true},
		"a JSON read and a read":                  {"json_read a", "read a", false},
		"several edits and a JSON read":           {"multi_edit a", "json_read a", true},
		"four edits of one file":                  {"edit a.txt", "edit ./a.txt", true},
		"a command and a read":                    {"bash .", "read a", true},
		"a command elsewhere and a read":          {"bash x", "read a", true},
		"two commands":                            {"bash .", "bash .", true},
		"a command and a program":                 {"bash .", "run_code .", true},
		"a program and a listing":                 {"run_code .", "list a", true},
		"two commands that change nothing":        {"bash !", "bash !", false},
		"such a command and such a program":       {"bash !", "run_code !", false},
		"such a command and a read":               {"bash !", "read a", false},
		"such a command and a write":              {"bash !", "write a", true},
		"such a command and any other":            {"bash !", "bash .", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			call := func(s string) protocol.Call {
				toolName, path, _ := strings.Cut(s, " ")
				if path == "!" {
					return readOnly(toolName)
				}
				return planned(t, table, toolName, path)
			}
			first, second := call(test.first), call(test.second)
			require.Equal(t, test.conflict, first.ConflictsWith(&second))
			require.Equal(t, test.conflict, second.ConflictsWith(&first))
			require.Equal(t, first.Lane(), second.Lane())
		})
	}
}

func TestCore_SandboxesAreLanesOfTheirOwn(t *testing.T) {
	t.Parallel()
	table := coreTable(t)
	_, plan, err := table.Plan(tools.Scope{Session: "s", Sandbox: "other"}, "write", argumentsFor(t, "write", "a"))
	require.Nil(t, err)
	require.Equal(t, use("sandbox/other/a", protocol.Exclusive), plan.Resources)
}

// spelling draws another way to write a canonical path.
func spelling(t *rapid.T, canonical string) string {
	var b strings.Builder
	b.WriteString(rapid.SampledFrom([]string{"", "./", "/workspace/", "//workspace//", "/x/../workspace/", "x/../", "/../workspace/./"}).Draw(t, "start"))
	for i, segment := range strings.Split(canonical, "/") {
		if i > 0 {
			b.WriteString(rapid.SampledFrom([]string{"/", "//", "/./", "/x/../", "/x/y/../../"}).Draw(t, "between"))
		}
		b.WriteString(segment)
	}
	return b.String()
}

func TestKeys_OneFileHasOneKeyHoweverItIsSpelled(t *testing.T) {
	t.Parallel()
	table := coreTable(t)
	segment := rapid.StringMatching(`[a-zA-Z0-9 _é$*\\-]{1,8}|\.[a-z]{1,3}|\.\.\.`)
	rapid.Check(t, func(t *rapid.T) {
		canonical := strings.Join(rapid.SliceOfN(segment, 1, 5).Draw(t, "segments"), "/")
		toolName := rapid.SampledFrom([]string{
			"read", "write", "edit", "multi_edit", "json_read", "json_write", "list", "tree", "glob", "exists", "grep",
		}).Draw(t, "tool")
		plain, spelled := planned(t, table, toolName, canonical), planned(t, table, toolName, spelling(t, canonical))
		require.Equal(t, plain, spelled)
		require.Equal(t, protocol.ResourceKey("sandbox/box/"+canonical), plain.Resources[0].Key)
	})
}

func TestKeys_EveryAcceptedPathStaysInside(t *testing.T) {
	t.Parallel()
	table := coreTable(t)
	piece := rapid.SampledFrom([]string{"..", ".", "/", "a", "workspace", "/workspace", "\\", "", "é", " "})
	rapid.Check(t, func(t *rapid.T) {
		raw := strings.Join(rapid.SliceOfN(piece, 0, 8).Draw(t, "pieces"), "/")
		_, plan, err := table.Plan(scope, "exists", argumentsFor(t, "exists", raw))
		if err != nil {
			require.Contains(t, []protocol.Code{codes.PathEscape, codes.InvalidPath}, err.Code)
			return
		}
		payload, ok := plan.Payload.(protocol.FilesExists)
		require.True(t, ok)
		require.False(t, path.IsAbs(payload.Path))
		require.NotContains(t, strings.Split(payload.Path, "/"), "..")
		require.True(t, payload.Path == "" || path.Clean(payload.Path) == payload.Path)
		require.True(t, protocol.SandboxKey("box").Contains(plan.Resources[0].Key))
	})
}

func TestKeys_VeryLongPathsGetABroaderKey(t *testing.T) {
	t.Parallel()
	table := coreTable(t)
	long := strings.Repeat("directory/", 400) + "file"
	call := planned(t, table, "write", long)
	require.LessOrEqual(t, len(call.Resources[0].Key), 1024)
	require.Equal(t, protocol.FilesWrite{Path: long, Content: protocol.Bytes("x")}, call.Payload)
	same := planned(t, table, "read", "./"+long)
	require.True(t, call.ConflictsWith(&same))

	single := planned(t, table, "write", strings.Repeat("x", 4000))
	require.Equal(t, protocol.SandboxKey("box"), single.Resources[0].Key)
}

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
		"started": {
			"bash", started("running", -1, ""),
			"[background process p-1: running; it runs concurrently with other calls; the process tool reads what it writes, and kills it]",
		},
		"started and said": {
			"bash", started("running", -1, "ready"),
			"ready\n[background process p-1: running; it runs concurrently with other calls; the process tool reads what it writes, and kills it]",
		},
		"failed at once": {"bash", started("exited", 127, "sh: x: not found\n"), "sh: x: not found\n[background process p-1: ended with exit code 127; it ended at once]"},
		"none":           {"process", wire.ProcessListResult{}, "[there are no background processes]"},
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
