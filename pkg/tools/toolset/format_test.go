package toolset_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/modeltext/prose"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
	"github.com/toolfleet/toolfleet/pkg/tools/toolset"
)

// answered is what a reader gets of a call whose result is at hand: the tool is that of the call.
func answered(t *testing.T, set, tool, raw string, result protocol.Result) string {
	t.Helper()
	found, _, _ := setTable(t, set).Plan(scope, tool, raw)
	return found.Text(&result)
}

// notOK is a result of a status other than ok.
func notOK(status protocol.Status, code protocol.Code, message string) protocol.Result {
	return protocol.Result{CallID: "c-1", Status: status, Error: protocol.Errorf(code, "%s", message)}
}

// beside is a result with what a command wrote before it failed.
func beside(result protocol.Result, e protocol.Execution) protocol.Result {
	result.Value = protocol.CommandRunResult{Execution: e}
	return result
}

func ran(e protocol.Execution) protocol.Result {
	result := ok(protocol.CommandRunResult{Execution: e})
	result.RunMS = 1.5
	return result
}

// formatTest is a result, and what readers of a system get of it.
type formatTest struct {
	tool, raw string
	result    protocol.Result
	want      string
}

func checkFormats(t *testing.T, set string, tests map[string]formatTest) {
	t.Helper()
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, test.want, answered(t, set, test.tool, test.raw, test.result))
		})
	}
}

func TestFormat_OpenRath(t *testing.T) {
	t.Parallel()
	const file, run = `{"path":"d/a"}`, `{"cmd":"x"}`
	signaled := execution("", "", -1)
	signaled.Signal = "SIGKILL"
	entries := protocol.FilesListResult{Path: "d", Total: 2, Entries: []protocol.DirEntry{
		{Name: "a", Type: protocol.TypeDir}, {Name: "é", Type: protocol.TypeFile, Size: 3},
	}}
	checkFormats(t, "openrath", map[string]formatTest{
		"a command":    {"run_shell_command", run, ran(execution("a<b>é\n", "e\n", 0)), `{"exit_code":0,"stdout":"a<b>é\n","stderr":"e\n","elapsed_ms":1.5}`},
		"an exit code": {"run_shell_command", run, ran(execution("", "", 3)), `{"exit_code":3,"stdout":"","stderr":"","elapsed_ms":1.5}`},
		"a signal":     {"run_shell_command", run, ran(signaled), `{"exit_code":-9,"stdout":"","stderr":"","elapsed_ms":1.5,"signal":"SIGKILL"}`},
		"a program": {
			"run_code", `{"code":"1"}`, ok(protocol.CodeRunResult{Execution: execution("1\n", "", 0)}), `{"text":null,"stdout":"1\n","stderr":"","error":null}`,
		},
		"a failing program": {
			"run_code", `{"code":"1"}`, ok(protocol.CodeRunResult{Execution: execution("", "trace", 1)}),
			`{"text":null,"stdout":"","stderr":"trace","error":"trace"}`,
		},
		"a text": {
			"read_workspace_file", file,
			ok(protocol.FilesReadResult{Path: "d/a", Content: protocol.Bytes("x\"\n"), Bytes: 3, TotalLines: 1}),
			`{"data":"x\"\n"}`,
		},
		"an empty file": {"read_workspace_file", file, ok(protocol.FilesReadResult{Path: "d/a"}), `{"data":""}`},
		"bytes": {
			"read_workspace_file", file,
			ok(protocol.FilesReadResult{Content: protocol.Bytes("\x00\xff"), Bytes: 2, Binary: true, Raw: true}),
			`{"data":"AP8=","encoding":"base64"}`,
		},
		"bytes as text": {
			"read_workspace_file", file, ok(protocol.FilesReadResult{Content: protocol.Bytes("\xff\x00"), Bytes: 2, Binary: true}),
			`{"ok":false,"error_kind":"tool_execution_exception","message":"the file is not text in a known encoding: read it with encoding null","detail":"d/a"}`,
		},
		"a list": {
			"list_workspace_files", `{"path":"d"}`, ok(entries),
			`{"entries":[{"name":"a","path":"d/a","is_dir":true},{"name":"é","path":"d/é","is_dir":false}]}`,
		},
		"nothing to list": {"list_workspace_files", `{}`, ok(protocol.FilesListResult{}), `{"entries":[]}`},
		"written":         {"write_workspace_file", `{"path":"a","content":"hello"}`, ok(protocol.FilesWriteResult{Path: "a", Bytes: 5}), `{"bytes_written":5}`},
		"there":           {"workspace_path_exists", file, ok(protocol.FilesExistsResult{Exists: true}), `{"ok":true}`},
		"not there":       {"workspace_path_exists", file, ok(protocol.FilesExistsResult{}), `{"ok":false}`},

		"not found": {
			"read_workspace_file", file, notOK(protocol.StatusFailed, protocol.CodeNotFound, "no a"),
			`{"ok":false,"error_kind":"file_not_found","message":"no a","detail":"d/a"}`,
		},
		"a directory": {
			"read_workspace_file", file, notOK(protocol.StatusFailed, codes.IsDirectory, "is one"),
			`{"ok":false,"error_kind":"os_error","message":"is one","detail":"d/a"}`,
		},
		"timeout": {
			"run_shell_command", run, beside(notOK(protocol.StatusTimeout, protocol.CodeRunTimeout, "too slow"), execution("half", "", -1)),
			`{"ok":false,"error_kind":"timeout","message":"too slow","detail":"run_timeout","stdout":"half"}`,
		},
		"cancelled": {
			"run_shell_command", run, notOK(protocol.StatusCancelled, protocol.CodeCancelled, "stopped"),
			`{"ok":false,"error_kind":"unexpected","message":"stopped","detail":"cancelled"}`,
		},
		"denied": {
			"run_shell_command", run, notOK(protocol.StatusRejected, protocol.CodePolicyDenied, "no rm"),
			`{"ok":false,"error_kind":"tool_policy_denied","message":"no rm","detail":"policy_denied"}`,
		},
		"worker lost": {
			"run_shell_command", run, notOK(protocol.StatusOutcomeUnknown, protocol.CodeOutcomeUnknown, "lost"),
			`{"ok":false,"error_kind":"sandbox_closed","message":"lost","detail":"outcome_unknown"}`,
		},
		"sandbox lost": {
			"run_code", `{"code":"1"}`, notOK(protocol.StatusFailed, protocol.CodeSandboxLost, "lost"),
			`{"ok":false,"error_kind":"sandbox_closed","message":"lost","detail":"sandbox_lost"}`,
		},
		"no such language": {
			"run_code", `{"code":"1"}`, notOK(protocol.StatusRejected, codes.Language, "no go"),
			`{"ok":false,"error_kind":"unsupported_tool","message":"no go","detail":"language_unavailable"}`,
		},
		"an unknown tool": {
			"nope", `{}`, notOK(protocol.StatusRejected, codes.UnknownTool, "none"),
			`{"ok":false,"error_kind":"unknown_tool","message":"none","detail":"unknown_tool"}`,
		},
		"invalid arguments": {
			"run_shell_command", `[`, notOK(protocol.StatusRejected, protocol.CodeInvalidArguments, "bad"),
			`{"ok":false,"error_kind":"invalid_tool_arguments","message":"bad","detail":"invalid_tool_arguments"}`,
		},
	})
}

func TestFormat_Smithers(t *testing.T) {
	t.Parallel()
	const file = `{"path":"d/a"}`
	bash, edit := `{"cmd":"curl"}`, `{"path":"d/a","patch":"@@"}`
	found := protocol.FilesSearchResult{Matches: []protocol.Match{{Path: "a.go", Line: 2, Text: "x"}, {Path: "b", Line: 3, Text: "y"}}, Total: 2}
	both := execution("1\n", "2\n", 0)
	both.Combined = protocol.Bytes("2\n1\n")
	checkFormats(t, "smithers", map[string]formatTest{
		"a text":              {"read", file, ok(protocol.FilesReadResult{Content: protocol.Bytes("x\r\n\ty"), Lines: 2, TotalLines: 2, Bytes: 5}), "x\r\n\ty"},
		"an empty file":       {"read", file, ok(protocol.FilesReadResult{}), ""},
		"written":             {"write", `{"path":"a","content":""}`, ok(protocol.FilesWriteResult{}), "ok"},
		"edited":              {"edit", edit, ok(protocol.FilesEditResult{Replacements: 1, Diff: "x"}), "ok"},
		"matches":             {"grep", `{"pattern":"x"}`, ok(found), "a.go:2:x\nb:3:y\n"},
		"matches in one file": {"grep", `{"pattern":"x","path":"./b"}`, ok(protocol.FilesSearchResult{Matches: found.Matches[1:], Total: 1}), "3:y\n"},
		"no match":            {"grep", `{"pattern":"x"}`, ok(protocol.FilesSearchResult{Files: 9}), ""},
		"no match, files named": {
			"grep", `{"pattern":"x"}`,
			ok(protocol.FilesSearchResult{Files: 9, Binary: 2, BinaryPaths: []string{"a", "b"}, Skipped: 1, SkippedPaths: []string{"c"}}),
			"\n[not searched: 2 binary (a, b), 1 too large or unreadable (c)]",
		},
		"no match in text": {
			"grep", `{"pattern":"x"}`, ok(protocol.FilesSearchResult{Files: 9, Binary: 2, Skipped: 1}), "\n[not searched: 2 binary, 1 too large or unreadable]",
		},
		"another name": {
			"edit", `{"path":"a","patch":"x"}`, ok(protocol.FilesEditResult{Links: 2}),
			"ok\n[the file had 2 other names (hard links), which keep the old content]",
		},
		"another encoding": {
			"read", `{"path":"a"}`, ok(protocol.FilesReadResult{Content: protocol.Bytes("中"), Lines: 1, TotalLines: 1, Encoding: "GBK"}), "中\n[encoding GBK]",
		},
		"a command":            {"bash", bash, ran(both), "2\n1\n"},
		"a command that fails": {"bash", bash, ran(execution("out\n", "", 3)), "TOOL_COMMAND_FAILED: Command failed with exit code 3\nout\n"},
		"a silent failure":     {"bash", bash, ran(execution("", "", 1)), "TOOL_COMMAND_FAILED: Command failed with exit code 1"},

		"timeout": {
			"bash", bash,
			beside(notOK(protocol.StatusTimeout, protocol.CodeRunTimeout, "slow"), execution("half\n", "", -1)),
			"PROCESS_TIMEOUT: Command timed out after 60000ms\nhalf\n",
		},
		"not spawned":       {"bash", bash, notOK(protocol.StatusFailed, protocol.CodeCommandNotFound, "none"), "PROCESS_FAILED: Failed to spawn curl"},
		"invalid input":     {"bash", `{}`, notOK(protocol.StatusRejected, protocol.CodeInvalidArguments, "bad"), "INVALID_INPUT: bad"},
		"no path":           {"read", `{"path":7}`, notOK(protocol.StatusRejected, protocol.CodeInvalidArguments, "bad"), "TOOL_PATH_INVALID: Path must be a string"},
		"outside":           {"read", `{"path":"../a"}`, notOK(protocol.StatusRejected, codes.PathEscape, "bad"), "TOOL_PATH_ESCAPE: Path escapes sandbox root"},
		"outside by a link": {"read", file, notOK(protocol.StatusRejected, codes.PathEscape, "bad"), "TOOL_PATH_ESCAPE: Path escapes sandbox root (via symlink)"},
		"a directory outside": {
			"bash", `{"cmd":"a","opts":{"cwd":".."}}`, notOK(protocol.StatusRejected, codes.PathEscape, "bad"), "TOOL_PATH_ESCAPE: Path escapes sandbox root",
		},
		"large file": {
			"read", file,
			notOK(protocol.StatusFailed, codes.TooLarge, `"a" has 200001 bytes, at most 200000`),
			"TOOL_FILE_TOO_LARGE: File too large (200001 bytes)",
		},
		"large file to edit": {
			"edit", edit,
			notOK(protocol.StatusFailed, codes.TooLarge, `"a" has 200001 bytes, at most 200000`),
			"TOOL_FILE_TOO_LARGE: File too large (200001 bytes)",
		},
		"not to be patched": {"edit", edit, notOK(protocol.StatusFailed, codes.EditNotFound, "hunk 1"), "TOOL_PATCH_FAILED: Failed to apply patch: hunk 1"},
		"no patch":          {"edit", edit, notOK(protocol.StatusFailed, codes.InvalidPatch, "line 1"), "TOOL_PATCH_FAILED: Failed to apply patch: line 1"},
		"no expression":     {"grep", `{"pattern":"("}`, notOK(protocol.StatusFailed, codes.InvalidPattern, "missing )"), "TOOL_GREP_FAILED: missing )"},
		"not found":         {"read", file, notOK(protocol.StatusFailed, protocol.CodeNotFound, "none"), "ENOENT: no such file or directory, open 'd/a'"},
		"cancelled":         {"bash", bash, notOK(protocol.StatusCancelled, protocol.CodeCancelled, "stopped"), "CANCELLED: stopped"},
		"denied":            {"write", `{"path":"a","content":""}`, notOK(protocol.StatusRejected, protocol.CodePolicyDenied, "no"), "POLICY_DENIED: no"},
		"worker lost":       {"bash", bash, notOK(protocol.StatusOutcomeUnknown, protocol.CodeOutcomeUnknown, "lost"), "OUTCOME_UNKNOWN: lost"},
		"unknown tool":      {"nope", `{}`, notOK(protocol.StatusRejected, codes.UnknownTool, "none"), "UNKNOWN_TOOL: none"},
	})
	for what, raw := range map[string]string{"write": `{"path":"a","content":"%s"}`, "edit": `{"path":"a","patch":"%s"}`} {
		tool, _, refusal := setTable(t, "smithers").Plan(scope, what, fmt.Sprintf(raw, strings.Repeat("x", 200_001)))
		want := map[string]string{"write": "TOOL_CONTENT_TOO_LARGE: Content too large (200001 bytes)", "edit": "TOOL_PATCH_TOO_LARGE: Patch too large (200001 bytes)"}
		require.Equal(t, want[what], tool.Failure(&protocol.Result{Status: protocol.StatusRejected, Error: refusal}))
	}
}

func TestFormat_Files(t *testing.T) {
	t.Parallel()
	const file = `{"path":"d/a","content":"","search":"x","replace":"y"}`
	found := protocol.FilesSearchResult{Matches: []protocol.Match{{Path: "a.go", Line: 2, Text: "\tx"}}, Total: 1}
	checkFormats(t, "files", map[string]formatTest{
		"a text":          {"read_file", file, ok(protocol.FilesReadResult{Content: protocol.Bytes("x\ny"), Lines: 2, TotalLines: 2, Bytes: 3}), "x\ny"},
		"an empty file":   {"read_file", file, ok(protocol.FilesReadResult{}), ""},
		"a binary file":   {"read_file", file, ok(protocol.FilesReadResult{Content: protocol.Bytes("\x00"), Binary: true, Bytes: 1}), "Error: Not a text file 'd/a'"},
		"written":         {"write_file", file, ok(protocol.FilesWriteResult{}), "Successfully wrote to 'd/a'"},
		"edited":          {"edit_file", file, ok(protocol.FilesEditResult{}), "Successfully edited 'd/a'"},
		"files":           {"list_files", `{}`, ok(protocol.FilesGlobResult{Paths: []string{"a", "d/b"}, Total: 2, Ignored: 3}), "a\nd/b"},
		"no files":        {"list_files", `{}`, ok(protocol.FilesGlobResult{}), "No files found"},
		"matches":         {"search_files", `{"pattern":"x"}`, ok(found), "a.go:2: \tx"},
		"no matches":      {"search_files", `{"pattern":"x"}`, ok(protocol.FilesSearchResult{Files: 3}), "No matches found"},
		"outside":         {"read_file", `{"path":"../a"}`, notOK(protocol.StatusRejected, codes.PathEscape, "bad"), "Error: Invalid path '../a'"},
		"not found":       {"edit_file", file, notOK(protocol.StatusFailed, protocol.CodeNotFound, "none"), "Error: File not found 'd/a'"},
		"nothing to edit": {"edit_file", file, notOK(protocol.StatusFailed, codes.EditNotFound, "none"), "Error: Search string not found in 'd/a'"},
		"unknown tool":    {"nope", `{}`, notOK(protocol.StatusRejected, codes.UnknownTool, "none"), "Error: Unknown tool 'nope'"},
		"timeout":         {"search_files", `{"pattern":"x"}`, notOK(protocol.StatusTimeout, protocol.CodeRunTimeout, "slow"), "Error: slow"},
		"cancelled":       {"read_file", file, notOK(protocol.StatusCancelled, protocol.CodeCancelled, "stopped"), "Error: stopped"},
		"denied":          {"write_file", file, notOK(protocol.StatusRejected, protocol.CodePolicyDenied, "no"), "Error: no"},
		"worker lost":     {"edit_file", file, notOK(protocol.StatusOutcomeUnknown, protocol.CodeOutcomeUnknown, "lost"), "Error: lost"},
		"no handle":       {"read_file", `{"path":"result:c-9"}`, notOK(protocol.StatusFailed, protocol.CodeNotFound, "there is no result"), "Error: there is no result"},
	})
}

// TestFormat_WhatIsCut: it has the handle, in a form that the readers of each system take.
func TestFormat_WhatIsCut(t *testing.T) {
	t.Parallel()
	entries, paths, matches := make([]protocol.DirEntry, 600), make([]string, 600), make([]protocol.Match, 600)
	for i := range 600 {
		name := fmt.Sprintf("f%03d", i)
		entries[i], paths[i], matches[i] = protocol.DirEntry{Name: name, Type: protocol.TypeFile}, name, protocol.Match{Path: name, Line: 1, Text: "x"}
	}
	var list struct {
		Entries   []map[string]any `json:"entries"`
		Total     int              `json:"total"`
		Truncated string           `json:"truncated"`
	}
	require.NoError(t,
		json.Unmarshal([]byte(answered(t, "openrath", "list_workspace_files", `{}`, keptText(protocol.FilesListResult{Entries: entries, Total: 600}, 600))), &list))
	require.Len(t, list.Entries, 500)
	require.Equal(t, 600, list.Total)
	require.Equal(t, `100 more; the others: read on with path="result:c-1:501"`, list.Truncated)
	for text, end := range map[string]string{
		answered(t, "smithers", "grep", `{"pattern":"x"}`, keptText(protocol.FilesSearchResult{
			Matches: matches, Total: 600,
		}, 600)): "f499:1:x\n[100 more of 600 lines; the others: read on with path=\"result:c-1:501\"]",
		answered(t, "files", "search_files", `{"pattern":"x"}`, keptText(protocol.FilesSearchResult{
			Matches: matches, Total: 600,
		}, 600)): "f499:1: x\n[100 more of 600 lines; the others: read on with path=\"result:c-1:501\"]",
		answered(t, "files", "list_files", `{}`, keptText(protocol.FilesGlobResult{
			Paths: paths, Total: 600,
		}, 600)): "f499\n[100 more of 600 files; the others: read on with path=\"result:c-1:501\"]",
		answered(t, "smithers", "bash", `{"cmd":"a"}`, keptText(protocol.CommandRunResult{Execution: execution(strings.Repeat("x", 100_000), "", 0)}, 0)): `all of it: read it from path="result:c-1:1@20971" on]`,
	} {
		require.True(t, strings.HasSuffix(text, end), text[max(0, len(text)-200):])
		require.LessOrEqual(t, utf8.RuneCountInString(text), prose.MaxText)
	}
}

// TestFormat_OpenRathIsJSONAtAnyLength, whatever has to be quoted.
func TestFormat_OpenRathIsJSONAtAnyLength(t *testing.T) {
	t.Parallel()
	for _, character := range []string{"x", "\x00", "\u2028", "\"", "漢", "\xffa"} {
		long := strings.Repeat(character, 100_000)
		failed := notOK(protocol.StatusFailed, protocol.CodeInternal, "m"+long+"m")
		failed.Kept = &protocol.Kept{}
		for name, result := range map[string]protocol.Result{
			"command": keptText(protocol.CommandRunResult{Execution: execution(long, long, 1)}, 0),
			"program": keptText(protocol.CodeRunResult{Execution: execution(long, "", 0)}, 0),
			"file":    keptText(protocol.FilesReadResult{Content: protocol.Bytes(long), Bytes: 100_000, TotalLines: 1}, 1),
			"kept":    ok(wire.ResultReadResult{CallID: "c-1", Content: protocol.Bytes(long), FirstLine: 1, LineBytes: 100_000, Lines: 1, TotalLines: 1}),
			"failure": failed,
			"own":     keptText(protocol.ToolRunResult{Output: quoted(t, long)}, 0),
		} {
			text := answered(t, "openrath", "run_shell_command", `{"cmd":"x"}`, result)
			require.LessOrEqual(t, utf8.RuneCountInString(text), prose.MaxText, name)
			var value map[string]any
			require.NoError(t, json.Unmarshal([]byte(text), &value), name)
			require.Contains(t, text, "result:c-1", "%s of %q says where the rest is", name, character)
		}
	}
}

func quoted(t *testing.T, text string) json.RawMessage {
	t.Helper()
	encoded, err := json.Marshal(text)
	require.NoError(t, err)
	return encoded
}

// TestFormat_StartedAgain: what is said of it leaves JSON what it is, and "ok" and files alone.
func TestFormat_StartedAgain(t *testing.T) {
	t.Parallel()
	again := func(result protocol.Result) protocol.Result {
		result.Attempt = 2
		return result
	}
	var value map[string]any
	require.NoError(t, json.Unmarshal([]byte(answered(t, "openrath", "run_shell_command", `{"cmd":"x"}`, again(ran(execution("a", "", 0))))), &value))
	require.Contains(t, value["[started again]"], "attempt 2: ")
	require.Equal(t, "a", value["stdout"])
	require.Regexp(t, `^a\n\[attempt 2: .*\]$`, answered(t, "smithers", "bash", `{"cmd":"x"}`, again(ran(execution("a\n", "", 0)))))
	require.Equal(t, "ok", answered(t, "smithers", "write", `{"path":"a","content":""}`, again(ok(protocol.FilesWriteResult{}))))
	require.Equal(t, "x", answered(t, "files", "read_file", `{"path":"a"}`, again(ok(protocol.FilesReadResult{Content: protocol.Bytes("x"), TotalLines: 1}))))
	require.JSONEq(t, `{"bytes_written":5}`, answered(t, "openrath", "write_workspace_file", `{"path":"a","content":""}`, again(ok(protocol.FilesWriteResult{Bytes: 5}))))
}

// TestFormat_WhatAPersonSaid is a property where readers parse JSON.
func TestFormat_WhatAPersonSaid(t *testing.T) {
	t.Parallel()
	rath, found := setTable(t, "openrath").Lookup("run_code")
	require.True(t, found)
	require.JSONEq(t, `{"ok":true,"[approved]":"the call was approved by a person, who said: \"go\""}`, rath.WithNote(`{"ok":true}`, `"go"`))
	require.Equal(t, "[It goes on as j-1.]\n[the call was approved by a person, who said: go]",
		rath.WithNote("[It goes on as j-1.]", "go"), "what a session says itself is no JSON")
	require.Equal(t, "[the call was approved by a person, who said: go]", rath.WithNote("", "go"))
	file, found := setTable(t, "files").Lookup("read_file")
	require.True(t, found)
	require.Equal(t, "x\n[the call was approved by a person, who said: go]", file.WithNote("x", "go"))
}

// TestFormat_OfOnesOwnTools is that of the toolset beside them; with two there is none.
func TestFormat_OfOnesOwnTools(t *testing.T) {
	t.Parallel()
	schema := json.RawMessage(`{"type":"object"}`)
	mine := []tools.Tool{
		tools.Remote{}.CommandTool(tools.Definition{Name: "mine", Description: "x", Schema: schema}, protocol.ToolRun{Argv: []string{"x"}}),
		tools.New("inline", "x", func(context.Context, struct{}) (string, error) { return "two words", nil }),
	}
	text := func(name string, sets [][]tools.Tool, output string) string {
		table := newTable(t, append(flat(sets), mine...)...)
		tool, _, refusal := table.Plan(scope, name, `{}`)
		if refusal != nil {
			return tool.Failure(&protocol.Result{Status: protocol.StatusRejected, Error: refusal})
		}
		if name == "inline" {
			return tool.Returned("two words", "c-1", nil)
		}
		result := ok(protocol.ToolRunResult{Output: json.RawMessage(output)})
		return tool.Text(&result)
	}
	rath, files, core := [][]tools.Tool{named("openrath")}, [][]tools.Tool{named("files")}, [][]tools.Tool{toolset.Core()}
	require.Equal(t, `"two words"`, text("mine", rath, `"two words"`))
	require.Equal(t, `"two words"`, text("inline", rath, ""))
	require.Equal(t, `[1,2]`, text("mine", rath, `[1,2]`))
	require.Equal(t, "two words", text("mine", files, `"two words"`))
	require.Equal(t, "two words", text("inline", files, ""))
	long := text("mine", rath, "["+strings.Repeat("1,", 30_000)+"1]")
	var cut struct{ Repr, Type string }
	require.NoError(t, json.Unmarshal([]byte(long), &cut))
	require.Equal(t, "list", cut.Type)
	require.True(t, strings.HasPrefix(cut.Repr, "[1,1,") && strings.HasSuffix(cut.Repr, "...(truncated)"), cut.Repr[:20])

	require.Equal(t, "Error: Unknown tool 'nope'", text("nope", files, ""))
	require.Equal(t, "Error: Unknown tool 'nope'", text("nope", append(core, files...), ""), "the tools of core have no format of their own")
	require.Contains(t, text("nope", append(rath, files...), ""), "[rejected: unknown_tool]")
	require.Equal(t, "two words", text("mine", append(rath, files...), `"two words"`))
	jobs, err := toolset.Named("openrath", "help")
	require.NoError(t, err)
	help, _, _ := newTable(t, jobs...).Plan(scope, "tool_help", `{"name":"run_code"}`)
	require.Nil(t, help.Format, "what another toolset has stays as it is")
}

func flat(sets [][]tools.Tool) (all []tools.Tool) {
	for _, set := range sets {
		all = append(all, set...)
	}
	return all
}
