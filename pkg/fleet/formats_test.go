package fleet_test

import (
	"context"
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/tools"
	"github.com/toolfleet/toolfleet/pkg/tools/toolset"
)

// program is a program that was written for another system: it calls that system's tools, and
// reads their texts as it always did.
type program struct {
	*bench

	options fleet.Call
}

func newProgram(t *testing.T, set, denied string) *program {
	t.Helper()
	p := &program{bench: newBench(t)}
	named, err := toolset.Named(set)
	require.NoError(t, err)
	p.table, err = tools.NewTable(named...)
	require.NoError(t, err)
	p.options = fleet.Call{Policy: rules(t, "tools: {deny: ["+denied+"]}")}
	return p
}

func (p *program) text(tool string, arguments map[string]any) string {
	p.t.Helper()
	encoded, err := json.Marshal(arguments)
	require.NoError(p.t, err)
	return p.call(p.options, tool, string(encoded)).Text
}

var keptHandle = regexp.MustCompile(`path="(result:[^":]+)`)

// TestFormats_AProgramThatParsesJSON finds its way by the fields alone, in success and failure.
func TestFormats_AProgramThatParsesJSON(t *testing.T) {
	t.Parallel()
	p := newProgram(t, "openrath", "workspace_path_exists")
	type value = map[string]any
	call := func(tool string, arguments value) (parsed value) {
		t.Helper()
		text := p.text(tool, arguments)
		require.NoError(t, json.Unmarshal([]byte(text), &parsed), text)
		return parsed
	}
	fails := func(kind, tool string, arguments value) {
		t.Helper()
		parsed := call(tool, arguments)
		require.Equal(t, false, parsed["ok"], parsed)
		require.Equal(t, kind, parsed["error_kind"], parsed)
		require.NotEmpty(t, parsed["message"])
		require.NotEmpty(t, parsed["detail"])
	}
	require.InDelta(t, 5, call("write_workspace_file", value{"path": "d/a", "content": "hello"})["bytes_written"], 0)
	require.Equal(t, value{"data": "hello"}, call("read_workspace_file", value{"path": "d/a"}))
	require.Equal(t, []any{value{"name": "a", "path": "d/a", "is_dir": false}}, call("list_workspace_files", value{"path": "d"})["entries"])
	ran := call("run_shell_command", value{"cmd": "cat d/a; echo no >&2; exit 3"})
	require.InDelta(t, 3, ran["exit_code"], 0)
	require.Equal(t, []any{"hello", "no\n"}, []any{ran["stdout"], ran["stderr"]})
	require.Positive(t, ran["elapsed_ms"])
	fails("file_not_found", "read_workspace_file", value{"path": "none"})
	fails("tool_execution_exception", "run_shell_command", value{"cmd": "a\nb"})
	fails("timeout", "run_code", value{"language": "sh", "code": "sleep 1000", "timeout": 0.5})
	fails("unknown_tool", "nope", value{})
	fails("tool_policy_denied", "workspace_path_exists", value{"path": "d"})
	cut := call("run_shell_command", value{"cmd": "seq 20000"})
	require.Contains(t, cut["stdout"], "\n20000\n")
	missing, isText := cut["truncated"].(string)
	require.True(t, isText, cut["truncated"])
	found := keptHandle.FindStringSubmatch(missing)
	require.NotNil(t, found, cut["truncated"])
	require.Contains(t, call("read_workspace_file", value{"path": found[1] + ":10000"})["data"], " 10000\t10000\n")
}

// TestFormats_AProgramThatReadsCodes takes "ok" for a change, and CODE: for a failure.
func TestFormats_AProgramThatReadsCodes(t *testing.T) {
	t.Parallel()
	p := newProgram(t, "smithers", "edit")
	type value = map[string]any
	code := regexp.MustCompile(`^([A-Z_]+): `)
	fails := func(want, tool string, arguments value) {
		t.Helper()
		text := p.text(tool, arguments)
		found := code.FindStringSubmatch(text)
		require.NotNil(t, found, text)
		require.Equal(t, want, found[1])
	}
	require.Equal(t, "ok", p.text("write", value{"path": "a", "content": "one\ntwo\n"}))
	require.Equal(t, "one\ntwo\n", p.text("read", value{"path": "a"}))
	require.Equal(t, "a:2:two\n", p.text("grep", value{"pattern": "w"}))
	require.Empty(t, p.text("grep", value{"pattern": "x"}))
	require.Equal(t, "one\n", p.text("bash", value{"cmd": "head", "args": []string{"-n", "1", "a"}}))
	require.Equal(t, "TOOL_COMMAND_FAILED: Command failed with exit code 3\nno\n",
		p.text("bash", value{"cmd": "sh", "args": []string{"-c", "echo no >&2; exit 3"}}))
	fails("PROCESS_FAILED", "bash", value{"cmd": "no-such-program"})
	fails("INVALID_INPUT", "bash", value{"cmd": " "})
	fails("TOOL_PATH_ESCAPE", "read", value{"path": "../a"})
	fails("ENOENT", "read", value{"path": "none"})
	fails("TOOL_GREP_FAILED", "grep", value{"pattern": "("})
	fails("POLICY_DENIED", "edit", value{"path": "a", "patch": "@@ -1 +1 @@\n-one\n+1\n"})
	cut := p.text("bash", value{"cmd": "seq", "args": []string{"20000"}})
	found := keptHandle.FindStringSubmatch(cut)
	require.NotNil(t, found, cut[max(0, len(cut)-300):])
	require.Contains(t, p.text("read", value{"path": found[1] + ":10000"}), " 10000\t10000\n")
}

// TestFormats_AProgramThatTestsForError believes everything else.
func TestFormats_AProgramThatTestsForError(t *testing.T) {
	t.Parallel()
	p := newProgram(t, "files", "write_file")
	type value = map[string]any
	denied := p.options
	p.options = fleet.Call{}
	call := func(tool string, arguments value) (text string, failed bool) {
		t.Helper()
		text = p.text(tool, arguments)
		return text, strings.HasPrefix(text, "Error: ")
	}
	works := func(want, tool string, arguments value) {
		t.Helper()
		text, failed := call(tool, arguments)
		require.False(t, failed, text)
		require.Equal(t, want, text)
	}
	fails := func(want, tool string, arguments value) {
		t.Helper()
		text, failed := call(tool, arguments)
		require.True(t, failed, text)
		require.Contains(t, text, want)
	}
	works("Successfully wrote to 'd/a'", "write_file", value{"path": "d/a", "content": "x\nx\n"})
	works("Successfully edited 'd/a'", "edit_file", value{"path": "d/a", "search": "x", "replace": "y"})
	works("y\nx\n", "read_file", value{"path": "d/a"})
	works("No files found", "list_files", value{})
	works("d/a", "list_files", value{"pattern": "**"})
	works("d/a:2: x", "search_files", value{"pattern": "x"})
	works("No matches found", "search_files", value{"pattern": "z"})
	fails("Error: File not found 'none'", "read_file", value{"path": "none"})
	fails("Error: Invalid path '../a'", "read_file", value{"path": "../a"})
	fails("Error: Search string not found in 'd/a'", "edit_file", value{"path": "d/a", "search": "z", "replace": ""})
	fails("Error: Unknown tool 'nope'", "nope", value{})
	fails("content: is required", "write_file", value{"path": "d/a"})
	lines := slices.Repeat([]string{"long line"}, 20_000)
	works("Successfully wrote to 'long'", "write_file", value{"path": "long", "content": strings.Join(lines, "\n")})
	cut, failed := call("read_file", value{"path": "long"})
	require.False(t, failed)
	found := keptHandle.FindStringSubmatch(cut)
	require.NotNil(t, found, cut[max(0, len(cut)-300):])
	rest, failed := call("read_file", value{"path": found[1] + ":20000"})
	require.False(t, failed)
	require.Contains(t, rest, " 20000\tlong line\n")
	p.options = denied
	fails("is not allowed in this session", "write_file", value{"path": "d/a", "content": ""})
}

// asker is a model that makes two calls which come to nothing, and answers with what it reads.
type asker struct{}

func (asker) Reply(_ context.Context, request loop.Request, _ func(loop.Delta)) (loop.Reply, error) {
	var read []string
	for _, message := range request.Messages {
		if message.Role == loop.RoleTool {
			read = append(read, message.Text)
		}
	}
	if len(read) > 0 {
		return loop.Reply{Text: strings.Join(read, "\n")}, nil
	}
	return loop.Reply{ToolCalls: []loop.ToolCall{
		{ID: "1", Name: "nope", Arguments: `{}`},
		{ID: "2", Name: "write_file", Arguments: `{"path":"a","content":""}`},
	}}, nil
}

// TestFormats_WhatASessionRefuses is worded as what a worker answers.
func TestFormats_WhatASessionRefuses(t *testing.T) {
	t.Parallel()
	p := newProgram(t, "files", "write_file")
	runner, err := p.Runner(asker{}, p.table, &loop.Options{Policy: p.options.Policy})
	require.NoError(t, err)
	result, err := runner.Run(t.Context(), "s", loop.Input{Text: "Try."})
	require.NoError(t, err)
	require.Equal(t, "Error: Unknown tool 'nope'\nError: The tool write_file is not allowed in this session.", result.Text)
}
