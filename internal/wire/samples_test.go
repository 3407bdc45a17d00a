package wire_test

import (
	"encoding/json"
	"maps"
	"time"

	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

const (
	sampleSession protocol.SessionID = "0199f3a2-7c1e-7a44-9d50-2f6f1c0d9b11"
	sampleWorker  protocol.WorkerID  = "host-1-5f0c2a9e"
)

// binary is content that no JSON string can carry.
var binary = protocol.Bytes{0x00, 0xff, 0xfe, 'a'}

func sampleTime() time.Time { return time.Date(2026, 3, 14, 15, 9, 26, 535_897_000, time.UTC) }

// samples are what the golden files hold, by folder and name. A kind has one
// sample with every field set, and one with none where that is legal.
func samples() map[string]any {
	all := map[string]any{}
	for _, group := range []map[string]any{
		commandSamples(), filePayloadSamples(), fileValueSamples(), fleetSamples(), envelopeSamples(), frameSamples(), questionSamples(), workerSamples(),
	} {
		maps.Copy(all, group)
	}
	return all
}

func sampleExecution() protocol.Execution {
	return protocol.Execution{
		ExitCode: -1, Signal: "SIGKILL", Reason: "timeout",
		Stdout: protocol.Bytes("Grüße, <b> & \u2028\n"), Stderr: binary,
		StdoutBytes: 18, StderrBytes: 4_000_000, Truncated: true, CPUMS: 12.5, MaxRSSBytes: 3 << 20,
	}
}

// fullExecution has what later workers say too.
func fullExecution() protocol.Execution {
	e := sampleExecution()
	e.Combined = append(protocol.Bytes("Grüße\n"), binary...)
	e.LimitKinds = map[string]string{"cpu": "rlimit", "memory": "cgroup"}
	return e
}

func sampleLimits() protocol.Limits {
	return protocol.Limits{
		Wall: 60_000, CPU: 30_000, Memory: 1 << 30, Processes: 64, OpenFiles: 256, FileSize: 1 << 28, Disk: 2 << 30, Output: 64 << 10,
	}
}

func sampleProcess() wire.ProcessStatus {
	return wire.ProcessStatus{
		Process: "p-0c1d2e3f", Command: "npm run dev", StartedAt: sampleTime(), Reason: "signaled", ExitCode: -1, Signal: "SIGKILL", Bytes: 420,
	}
}

func commandSamples() map[string]any {
	return map[string]any{
		"payload/command_run": protocol.CommandRun{
			Command: "go test ./... && echo 'done <ok>'", Cwd: "src", Env: map[string]string{"A": "1", "B": ""},
			Stdin: protocol.Bytes("y\n"),
		},
		"payload/command_run_argv": protocol.CommandRun{Argv: []string{"printf", "%s", ""}, Stdin: binary},
		"payload/command_run_zero": protocol.CommandRun{},
		"payload/command_run_read_only": protocol.CommandRun{
			Command: "ls", ReadOnly: true, KeepShell: true, Background: true, Limits: sampleLimits(),
		},
		"payload/code_run": protocol.CodeRun{
			Code: "print('hi')\n", Language: "python", Cwd: "src", Env: map[string]string{"PYTHONUTF8": "1"},
		},
		"payload/code_run_read_only": protocol.CodeRun{Code: "1", Language: "sh", ReadOnly: true, Limits: sampleLimits()},
		"payload/code_run_zero":      protocol.CodeRun{},
		"payload/process_list":       wire.ProcessList{},
		"payload/process_read":       wire.ProcessRead{Process: "p-0c1d2e3f", Offset: -1000, Limit: 4096, Wait: 5000},
		"payload/process_send":       wire.ProcessSend{Process: "p-0c1d2e3f", Input: protocol.Bytes("1 + 1\r"), Wait: 5000},
		"payload/process_kill":       wire.ProcessKill{Process: "p-0c1d2e3f"},
		"payload/result_read":        wire.ResultRead{CallID: "c-1", Part: wire.PartStderr, Offset: 3, Column: 2001, Limit: 20},
		"payload/result_read_whole":  wire.ResultRead{CallID: "c-1"},
		"value/command_run":          protocol.CommandRunResult{Execution: sampleExecution()},
		"value/command_run_full":     protocol.CommandRunResult{Execution: fullExecution()},
		"value/command_run_empty":    protocol.CommandRunResult{Execution: protocol.Execution{Reason: "exited", Stdout: protocol.Bytes{}, Stderr: protocol.Bytes{}}},
		"value/command_run_background": protocol.CommandRunResult{
			Execution: protocol.Execution{ExitCode: -1, Reason: "running", Stdout: protocol.Bytes{}, Stderr: protocol.Bytes{}}, Process: "p-0c1d2e3f",
		},
		"value/code_run":     protocol.CodeRunResult{Execution: sampleExecution()},
		"value/process_list": wire.ProcessListResult{Processes: []wire.ProcessStatus{sampleProcess()}},
		"value/process_read": wire.ProcessReadResult{
			ProcessStatus: sampleProcess(), Content: protocol.Bytes("ready\n"), Offset: 414, NextOffset: 420,
		},
		"value/process_send": wire.ProcessSendResult{ProcessReadResult: wire.ProcessReadResult{
			ProcessStatus: wire.ProcessStatus{Process: "p-0c1d2e3f", Command: "python3", StartedAt: sampleTime(), Reason: "running", ExitCode: -1, Bytes: 13, TTY: true},
			Content:       protocol.Bytes("1 + 1\r\n2\r\n"), NextOffset: 13,
		}},
		"value/process_kill": wire.ProcessKillResult{ProcessStatus: sampleProcess()},
		"value/result_read": wire.ResultReadResult{
			CallID: "c-1", Part: wire.PartStderr, Content: protocol.Bytes("three\n"), Bytes: 30, FirstLine: 3,
			FirstColumn: 2, LineBytes: 6, Lines: 1, TotalLines: 9, Truncated: true,
		},
	}
}

func fleetSamples() map[string]any {
	return map[string]any{
		"payload/workspace_import":  wire.WorkspaceImport{Upload: "u1", Blob: "ws-1"},
		"payload/workspace_export":  wire.WorkspaceExport{Upload: "u1"},
		"payload/workspace_restore": wire.WorkspaceRestore{At: "c-1"},
		"value/workspace_restore":   wire.WorkspaceRestoreResult{Written: 3, Removed: 1},
		"payload/workspace_remove":  wire.WorkspaceRemove{},
		"value/workspace_remove":    wire.WorkspaceRemoveResult{},
		"payload/workspace_fork":    wire.WorkspaceFork{To: "s-2"},
		"value/workspace_fork":      wire.WorkspaceForkResult{Files: 3, Bytes: 30},
		"payload/workspace_merge":   wire.WorkspaceMerge{From: "s-2", After: 7},
		"value/workspace_merge": wire.WorkspaceMergeResult{
			Written: []string{"a", "b"}, Removed: []string{"c"}, Merged: []string{"b"}, Conflicts: []string{"d"}, Theirs: []string{"d.toolfleet-theirs"},
			Protected: []string{".git/config"}, Commits: true, Checkpoint: 9,
		},
		"payload/workspace_unpack": wire.WorkspaceUnpack{Blob: "upload/s-1/u", Digest: sampleSum, Path: "src"},
		"value/workspace_unpack":   wire.WorkspaceUnpackResult{Files: 3, Bytes: 30, Written: 2},
		"payload/turn_run": wire.TurnRun{
			Prompt: "Fix the test.", Attachments: []wire.Attachment{{Name: "a.png", Data: []byte(binary)}}, Model: "openai:gpt",
			Toolsets: []string{"core"},
			TurnBounds: wire.TurnBounds{
				MaxSteps: 64, MaxTokens: 1 << 40, Budget: &protocol.Spending{Steps: 200, Calls: 500, Tokens: 2e6, TimeMS: 7.2e6, USD: 2.5}, PromoteAfter: 1500,
			},
			AnswerSchema: json.RawMessage(`{"type":"object"}`), Guard: protocol.GuardRead, Policies: []json.RawMessage{json.RawMessage(`{"max_calls":3}`)},
			ReplySettings: wire.ReplySettings{Temperature: new(float64), Reasoning: "low", MaxOutput: 4096},
			System:        "You are careful.", Project: []protocol.InstructionFile{{Name: "AGENTS.md", Text: "Run make check."}},
			Author: protocol.Author{Name: "Ada Lovelace", Email: "ada@example.com"}, Compact: true,
		},
		"payload/turn_run_prompt": wire.TurnRun{Prompt: "Hello"},
		"payload/noop":            wire.Noop{WorkMS: 5, Fill: binary},
		"payload/noop_zero":       wire.Noop{},
		"payload/stored":          wire.Stored{Blob: "call/s/1", Bytes: 9 << 20},
		"payload/stored_turn":     wire.Stored{Blob: "call/s/1", Bytes: 9 << 20, Of: wire.KindTurnRun, Model: "gpt-5"},
		"payload/unknown": protocol.UnknownPayload{
			Name: "browser_click", Raw: json.RawMessage(`{"type":"browser_click","version":3,"at":[1,2.50]}`),
		},
		"payload/tool_run": protocol.ToolRun{
			Argv: []string{"python3", "{tools}/count.py"}, Arguments: json.RawMessage(`{"path":"a.txt"}`),
			Env: map[string]string{"LANG": "C"}, Text: true,
		},
		"payload/mcp_list": wire.MCPList{
			Server: protocol.MCPServer{Name: "search", URL: "https://mcp.example/mcp", Headers: map[string]string{"Authorization": "Bearer ${TOKEN}"}},
		},
		"payload/mcp_list_client": wire.MCPList{Server: protocol.MCPServer{
			Name: "search", URL: "https://mcp.example/mcp", Client: &protocol.MCPClient{ID: "me", Secret: "${SECRET}", Scopes: []string{"read"}},
		}},
		"payload/mcp_call": protocol.MCPCall{
			Server: protocol.MCPServer{Name: "fs", Command: "npx", Args: []string{"-y", "server-filesystem", "."}, Env: map[string]string{"TOKEN": "${TOKEN}"}, Cwd: "src"},
			Tool:   "read_file", Arguments: json.RawMessage(`{"path":"a.txt"}`), ReadOnly: true,
		},
		"value/mcp_list": wire.MCPListResult{Tools: []wire.MCPTool{
			{
				Name: "read_file", Description: "Read.", Schema: json.RawMessage(`{"type":"object"}`), Title: "Read a file",
				Output: json.RawMessage(`{"type":"object"}`), ReadOnly: true, Idempotent: true, Additive: true, Closed: true,
			},
			{Name: "write_file", Schema: json.RawMessage(`{"type":"object"}`)},
		}},
		"value/mcp_call": protocol.MCPCallResult{
			Content: []protocol.MCPContent{
				{Type: "text", Text: "Grüße"},
				{Type: "image", Data: binary, MediaType: "image/png"},
				{Type: "resource_link", URI: "file:///a", Name: "a", Text: "A file."},
			},
			Structured: json.RawMessage(`{"n":1}`), IsError: true, ToolsChanged: true, Notes: []string{"The server asked."},
		},
		"value/tool_run":           protocol.ToolRunResult{Output: json.RawMessage(`{"words":17}`), Execution: sampleExecution()},
		"value/tool_run_no_output": protocol.ToolRunResult{Execution: sampleExecution()},
		"payload/dialog_open":      wire.DialogOpen{Tool: "repl", Arguments: json.RawMessage(`{"language":"lua"}`)},
		"payload/dialog_continue":  wire.DialogContinue{Dialog: "c-1", Input: json.RawMessage(`"x + 1"`)},
		"payload/dialog_end":       wire.DialogEnd{Dialog: "c-1"},
		"value/dialog_open": wire.DialogOpenResult{DialogState: wire.DialogState{
			Dialog: "c-1", Output: json.RawMessage(`"ready"`), Idle: 600_000,
		}},
		"value/dialog_continue": wire.DialogContinueResult{DialogState: wire.DialogState{
			Dialog: "c-1", Output: json.RawMessage(`{"value":42}`), Ending: wire.DialogDone,
		}},
		"value/dialog_end": wire.DialogEndResult{DialogState: wire.DialogState{Dialog: "c-1", Ending: wire.DialogEnded}},
		"payload/user": protocol.UnknownPayload{
			Name: "crm_lookup", Raw: json.RawMessage(`{"type":"crm_lookup","version":1,"arguments":{"account":"acme"}}`),
		},
		"value/user": protocol.UnknownValue{
			Name: "crm_lookup", Raw: json.RawMessage(`{"type":"crm_lookup","version":1,"output":{"balance":12}}`),
		},
		"value/workspace_import": wire.WorkspaceImportResult{Files: 10_532, Bytes: 107 << 20, Checkpoint: 7},
		"value/workspace_export": wire.WorkspaceExportResult{Files: 10_532, Bytes: 107 << 20, Checkpoint: 8},
		"value/turn_run": wire.TurnRunResult{
			Outcome: "answered", Text: "Done.", Answer: json.RawMessage(`{"done":true}`), Steps: 3, Usage: protocol.Usage{InputTokens: 100, OutputTokens: 20}, Compacted: true,
		},
		"value/noop":    wire.NoopResult{},
		"value/stored":  wire.Stored{Blob: "result/s/1", Bytes: 9 << 20},
		"value/unknown": protocol.UnknownValue{Name: "browser_click", Raw: json.RawMessage(`{"type":"browser_click","hit":true}`)},
	}
}

func sampleCall() *protocol.Call {
	return &protocol.Call{
		ID: wire.NewCallID(sampleSession, "", 1, 2, 0), SessionID: sampleSession, ToolCallID: "toolu_01", Tool: "read",
		Turn: 1, Step: 2, Index: 3, Pool: protocol.DefaultPool,
		Resources: []protocol.Use{
			{Key: "sandbox/s1/a/b.txt", Access: protocol.Shared},
			{Key: "sandbox/s1/c", Access: protocol.Exclusive},
		},
		Delivery: protocol.Rollback, MaxAttempts: 3, MinLevel: "full", Roots: []protocol.Roots{{Read: []string{"docs"}, Write: []string{"src", "go.mod"}}},
		IssuedAt: sampleTime(), QueueTimeout: 60_000, RunTimeout: 30_000, Deadline: sampleTime().Add(time.Hour),
		Payload: protocol.FilesRead{Path: "a/b.txt"},
	}
}

func minimalCall() *protocol.Call {
	return &protocol.Call{
		ID: "c-1", SessionID: "my_session", Pool: "gpu",
		Resources: []protocol.Use{{Key: "account/acme", Access: protocol.Exclusive}},
		Delivery:  protocol.AtMostOnce, IssuedAt: sampleTime(), Payload: wire.Noop{},
	}
}

func envelopeSamples() map[string]any {
	unknown := minimalCall()
	unknown.Delivery = protocol.Idempotent
	unknown.Payload = protocol.UnknownPayload{Name: "browser_click", Raw: json.RawMessage(`{"type":"browser_click"}`)}
	partial := wire.NewResult(sampleCall(), protocol.StatusTimeout, protocol.Errorf(protocol.CodeRunTimeout, "took longer than %d s", 30))
	partial.WorkerID, partial.Attempt, partial.Level = sampleWorker, 2, "full"
	partial.QueueMS, partial.LaneMS, partial.RunMS, partial.FinishedAt = 12.25, 0.5, 30_000, sampleTime()
	partial.Value = protocol.CommandRunResult{Execution: sampleExecution()}
	ok := protocol.Result{
		CallID: "c-1", SessionID: "my_session", Status: protocol.StatusOK, FinishedAt: sampleTime(), Value: wire.NoopResult{},
	}
	all := map[string]any{
		"call/full": sampleCall(), "call/minimal": minimalCall(), "call/unknown_payload": unknown,
		"result/timeout_partial": &partial, "result/ok": &ok,
	}
	full := ok
	full.WorkerID, full.Attempt, full.Level, full.Sequence, full.Epoch, full.Checkpoint = sampleWorker, 2, "full", 1<<53, 41, 7
	full.QueueMS, full.LaneMS, full.RunMS = 99.5, 42, 1.25
	full.Waits = protocol.Waits{NotBeforeMS: 1, SlotMS: 2, LaneMS: 3, AfterMS: 4, LimitMS: 5, RateMS: 6, PauseMS: 7}
	full.Tries = []protocol.Try{{Attempt: 1, Error: protocol.Errorf(protocol.CodeToolFailed, "why"), RunMS: 1, WaitMS: 2}}
	full.Kept = &protocol.Kept{Lines: 1}
	all["result/full"] = &full
	kept := ok
	kept.Kept = &protocol.Kept{Lines: 100_000, Truncated: true}
	all["result/kept"] = &kept
	for _, status := range wire.Statuses() {
		if status == protocol.StatusOK {
			continue
		}
		result := wire.NewResult(minimalCall(), status, protocol.Errorf(protocol.CodeInternal, "why"))
		result.FinishedAt = sampleTime()
		all["result/"+string(status)] = &result
	}
	return all
}

func frameSamples() map[string]any {
	frame := func(kind wire.FrameKind, seq uint64, data protocol.Bytes) *wire.Frame {
		return &wire.Frame{CallID: "c-1", Seq: seq, Kind: kind, WorkerID: sampleWorker, Attempt: 1, Data: data}
	}
	return map[string]any{
		"frame/waiting": &wire.Frame{CallID: "c-1", Kind: wire.FrameWaiting, WorkerID: sampleWorker, Attempt: 1, Data: protocol.Bytes("process 7")},
		"frame/started": frame(wire.FrameStarted, 1, nil),
		"frame/stdout":  frame(wire.FrameStdout, 2, protocol.Bytes("ok  \tpkg\n")),
		"frame/stderr":  frame(wire.FrameStderr, 3, binary),
		"frame/event":   &wire.Frame{CallID: "c-1", Seq: 4, Kind: wire.FrameEvent, Data: protocol.Bytes(`{"type":"text_delta"}`)},
	}
}

func questionSamples() map[string]any {
	return map[string]any{
		"question/full": &protocol.Question{
			ID: "1", Message: "Your name?", Schema: json.RawMessage(`{"type":"object","properties":{"name":{"type":"string","default":"ada"}}}`),
		},
		"question/minimal": &protocol.Question{ID: "2", Message: "Go on?"},
		"answer/full":      &protocol.Answer{Question: "1", Action: protocol.ActionAccept, Content: json.RawMessage(`{"name":"bob"}`), By: "ann"},
		"answer/minimal":   &protocol.Answer{Action: protocol.ActionDecline},
	}
}

func workerSamples() map[string]any {
	return map[string]any{
		"worker/full": &wire.WorkerInfo{
			WorkerID: sampleWorker, Pool: protocol.DefaultPool, Build: "v1.2.3", Slots: 4, HeldLanes: 2, Running: 1, Ended: 100,
			Failed: 3, StartedAt: sampleTime(), Driver: "ns", Launcher: "native", Level: "full",
			Network: "proxy", ReadOnly: true, LimitKinds: map[string]string{"memory": "cgroup"}, Limits: sampleLimits(),
			Languages: []string{"python", "sh"}, Kinds: []protocol.Kind{"acme_refund"},
		},
		"worker/coordinator": &wire.WorkerInfo{
			WorkerID: sampleWorker, Pool: protocol.SessionPool, Slots: 64, Driver: "none", Level: "none", Network: "none", Languages: []string{},
			Models: []string{"gpt-4.1", "gpt-5"},
		},
		"worker/minimal": &wire.WorkerInfo{
			WorkerID: sampleWorker, Pool: "gpu", Slots: 1, Driver: "process", Level: "none", Network: "all", Languages: []string{},
		},
	}
}

const sampleSum = "2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae"

func filePayloadSamples() map[string]any {
	return map[string]any{
		"payload/files_read":          protocol.FilesRead{Path: "a/b.txt", Offset: 3, Limit: 20},
		"payload/files_read_whole":    protocol.FilesRead{Path: "a/b.txt"},
		"payload/files_write":         protocol.FilesWrite{Path: "a/b.txt", Content: protocol.Bytes("one\ntwo\n")},
		"payload/files_write_binary":  protocol.FilesWrite{Path: "logo.png", Content: binary},
		"payload/files_write_empty":   protocol.FilesWrite{Path: "empty", Content: protocol.Bytes{}},
		"payload/files_edit":          protocol.FilesEdit{Path: "a/b.txt", Old: "one", New: "", ReplaceAll: true},
		"payload/files_write_guarded": protocol.FilesWrite{Path: "a", Content: protocol.Bytes("x"), ExpectSHA256: sampleSum, Guard: protocol.GuardRead},
		"payload/files_write_raw":     protocol.FilesWrite{Path: "a", Content: protocol.Bytes("x"), Guard: protocol.GuardAbsent, Mode: 0o755, Raw: true},
		"payload/files_remove":        protocol.FilesRemove{Path: "a/b.txt", ExpectSHA256: sampleSum},
		"value/files_remove":          protocol.FilesRemoveResult{Path: "a/b.txt"},
		"payload/files_read_guarded":  protocol.FilesRead{Path: "a", MaxBytes: 200_000, Raw: true, Guard: protocol.GuardChanged},
		"payload/files_edit_first":    protocol.FilesEdit{Path: "a", Old: "one", New: "two", First: true},
		"payload/files_edit_several": protocol.FilesEdit{
			Path: "a", Edits: []protocol.FileEdit{{Old: "one", New: ""}, {Old: "<b>", New: "ü", ReplaceAll: true}},
			BestEffort: true, ExpectSHA256: sampleSum, Guard: protocol.GuardRead,
		},
		"payload/files_edit_patch":      protocol.FilesEdit{Path: "a", Patch: "@@ -1 +1 @@\n-one\n+two\n", MaxBytes: 200_000},
		"payload/files_json_read":       protocol.FilesJSONRead{Path: "a.json", Query: "/b/0", Guard: protocol.GuardRead},
		"payload/files_json_read_whole": protocol.FilesJSONRead{Path: "a.json"},
		"payload/files_json_write": protocol.FilesJSONWrite{
			Path: "a.json", Query: "/b/-", Content: json.RawMessage(`{"z":1.50,"a":null}`), ExpectSHA256: sampleSum, Guard: protocol.GuardChanged,
		},
		"payload/files_json_write_whole": protocol.FilesJSONWrite{Path: "a.json", Content: json.RawMessage(`"x"`)},
		"payload/files_tree":             protocol.FilesTree{Path: "src", Depth: 2, Limit: 100, NoIgnore: true},
		"payload/files_tree_root":        protocol.FilesTree{},
		"payload/http_fetch": protocol.HTTPFetch{
			URL: "https://example.com/a?b=c", Method: "HEAD", Headers: map[string]string{"Accept": "text/plain"}, MaxBytes: 1000, Raw: true,
		},
		"payload/files_glob":     protocol.FilesGlob{Pattern: "**/*.go", Names: true, Path: "src", Limit: 100, NoIgnore: true},
		"payload/files_glob_all": protocol.FilesGlob{Pattern: "*"},
		"payload/files_search_options": protocol.FilesSearch{
			Pattern: "x", IgnoreCase: true, Path: "src", Glob: "*.go", Limit: 20, NoIgnore: true,
		},
		"payload/files_list":       protocol.FilesList{Path: "a"},
		"payload/files_list_root":  protocol.FilesList{},
		"payload/files_exists":     protocol.FilesExists{Path: "a/b.txt"},
		"payload/files_search":     protocol.FilesSearch{Pattern: `func \w+\(`, Path: "src", Glob: "**/*.go"},
		"payload/files_search_all": protocol.FilesSearch{Pattern: "x"},
	}
}

func fileValueSamples() map[string]any {
	return map[string]any{
		"value/files_read": protocol.FilesReadResult{
			Path: "a/b.txt", Content: protocol.Bytes("three\n"), SHA256: sampleSum, Bytes: 30, FirstLine: 3, Lines: 1,
			TotalLines: 9, LineBytes: 300_000, Truncated: true, Encoding: "UTF-16LE", BOM: true, LineEnds: "CRLF",
		},
		"value/files_read_binary": protocol.FilesReadResult{
			Path: "logo.png", Content: binary, SHA256: sampleSum, Bytes: 4, Binary: true,
		},
		"value/files_write": protocol.FilesWriteResult{
			Path: "a/b.txt", Bytes: 3, SHA256: sampleSum, Created: true, Diff: "@@ -0,0 +1 @@\n+foo\n", Links: 1,
		},
		"value/files_edit": protocol.FilesEditResult{
			Path: "a/b.txt", Replacements: 2, Bytes: 3, SHA256: sampleSum, Diff: "@@ -1 +1 @@\n-one\n+two\n", Links: 1,
		},
		"value/files_read_image": protocol.FilesReadResult{
			Path: "logo.png", Content: binary, SHA256: sampleSum, Bytes: 4, Binary: true, Image: "image/png", Raw: true,
		},
		"value/files_edit_outcomes": protocol.FilesEditResult{
			Path: "a", Replacements: 1, Bytes: 3, SHA256: sampleSum, Outcomes: []protocol.EditOutcome{
				{Replacements: 1, Line: 7, Offset: -2}, {Error: protocol.Errorf(codes.EditNotFound, "not there")},
			},
		},
		"value/files_json_read": protocol.FilesJSONReadResult{
			Path: "a.json", Query: "/b", Value: protocol.Bytes("[1, 2.50]"), JSONType: "array", Length: 2, Bytes: 20, SHA256: sampleSum,
		},
		"value/files_json_write": protocol.FilesJSONWriteResult{FilesWriteResult: protocol.FilesWriteResult{
			Path: "a.json", Bytes: 3, SHA256: sampleSum, Created: true, Diff: "@@ -1 +1 @@\n-one\n+two\n",
		}},
		"value/files_tree": protocol.FilesTreeResult{
			Path: "src", Total: 9, Ignored: 4, Skipped: 1, Entries: []protocol.TreeEntry{
				{Path: "src/a", Type: protocol.TypeDir, Hidden: 3}, {Path: "src/b.go", Type: protocol.TypeFile, Size: 10},
			},
		},
		"value/http_fetch": protocol.HTTPFetchResult{
			URL: "https://example.com/b", Status: 200, MediaType: "text/html", Title: "A page", Content: protocol.Bytes("# A page"), Bytes: 512,
			Truncated: true, Redirects: []string{"https://example.com/a"}, Headers: map[string]string{"ETag": `"1"`},
		},
		"value/http_fetch_image": protocol.HTTPFetchResult{
			URL: "https://example.com/i", Status: 200, MediaType: "image/png", Image: "image/png", Content: protocol.Bytes("\x89PNG"), Bytes: 4,
		},
		"value/files_glob": protocol.FilesGlobResult{Paths: []string{"a.go", "b/c.go"}, Total: 3, Skipped: 1, Ignored: 5},
		"value/files_list": protocol.FilesListResult{
			Path: "a", Total: 2001, Entries: []protocol.DirEntry{
				{Name: "b.txt", Type: protocol.TypeFile, Size: 30},
				{Name: "c", Type: protocol.TypeDir},
				{Name: "d", Type: protocol.TypeSymlink, Size: 5},
				{Name: "e", Type: protocol.TypeOther},
			},
		},
		"value/files_exists":        protocol.FilesExistsResult{Path: "a/b.txt", Exists: true, Type: protocol.TypeFile, Size: 30},
		"value/files_exists_absent": protocol.FilesExistsResult{Path: "nothing"},
		"value/files_search": protocol.FilesSearchResult{
			Matches: []protocol.Match{{Path: "src/a.go", Line: 7, Text: "func a() {"}},
			Total:   700, Stopped: true, Files: 12, Skipped: 3, Binary: 5, Ignored: 4,
			SkippedPaths: []string{"secret"}, BinaryPaths: []string{"a.png"},
		},
	}
}
