package toolset_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
	"github.com/toolfleet/toolfleet/pkg/tools/toolset"
)

// Tool calls that agents of other systems make become the same payloads as those of core.
func TestToolsets_Plans(t *testing.T) {
	t.Parallel()
	whole := use("sandbox/box", protocol.Exclusive)
	shared := func(path string) []protocol.Use { return use("sandbox/box"+path, protocol.Shared) }
	exclusive := func(path string) []protocol.Use { return use("sandbox/box"+path, protocol.Exclusive) }
	const second = time.Second
	for name, test := range map[string]struct {
		set, tool, raw string
		want           tools.Plan
	}{
		"openrath, a command": {"openrath", "run_shell_command", `{"cmd":"ls | wc"}`, tools.Plan{
			Payload: protocol.CommandRun{Command: "ls | wc"}, Resources: whole, Delivery: protocol.Rollback, Timeout: 120 * second,
		}},
		"openrath, the longest command": {"openrath", "run_shell_command", `{"cmd":"` + strings.Repeat("é", 2048) + `"}`, tools.Plan{
			Payload: protocol.CommandRun{Command: strings.Repeat("é", 2048)}, Resources: whole, Delivery: protocol.Rollback, Timeout: 120 * second,
		}},
		"openrath, a program": {"openrath", "run_code", `{"code":"1","timeout":2}`, tools.Plan{
			Payload: protocol.CodeRun{Code: "1", Language: "python"}, Resources: whole, Delivery: protocol.Rollback, Timeout: 2 * second,
		}},
		"openrath, a text": {"openrath", "read_workspace_file", `{"path":"/workspace/a"}`, tools.Plan{
			Payload: protocol.FilesRead{Path: "a"}, Resources: shared("/a"), Delivery: protocol.Idempotent, Timeout: 30 * second,
		}},
		"openrath, a text by its encoding": {"openrath", "read_workspace_file", `{"path":"a","encoding":"utf-8"}`, tools.Plan{
			Payload: protocol.FilesRead{Path: "a"}, Resources: shared("/a"), Delivery: protocol.Idempotent, Timeout: 30 * second,
		}},
		"openrath, another encoding": {"openrath", "read_workspace_file", `{"path":"a","encoding":"latin-1","more":1}`, tools.Plan{
			Payload: protocol.FilesRead{Path: "a", Encoding: "latin-1"}, Resources: shared("/a"), Delivery: protocol.Idempotent, Timeout: 30 * second,
		}},
		"openrath, bytes": {"openrath", "read_workspace_file", `{"path":"a","encoding":null}`, tools.Plan{
			Payload: protocol.FilesRead{Path: "a", Raw: true}, Resources: shared("/a"), Delivery: protocol.Idempotent, Timeout: 30 * second,
		}},
		"openrath, write": {"openrath", "write_workspace_file", `{"path":"a","content":"x"}`, tools.Plan{
			Payload: protocol.FilesWrite{Path: "a", Content: protocol.Bytes("x")}, Resources: exclusive("/a"), Delivery: protocol.Idempotent, Timeout: 30 * second,
		}},
		"openrath, list": {"openrath", "list_workspace_files", `{"path":"."}`, tools.Plan{
			Payload: protocol.FilesList{Follow: true}, Resources: shared(""), Delivery: protocol.Idempotent, Timeout: 30 * second,
		}},
		"openrath, exists": {"openrath", "workspace_path_exists", `{"path":"a"}`, tools.Plan{
			Payload: protocol.FilesExists{Path: "a", Follow: true}, Resources: shared("/a"), Delivery: protocol.Idempotent, Timeout: 30 * second,
		}},
		"smithers, read": {"smithers", "read", `{"path":"a"}`, tools.Plan{
			Payload: protocol.FilesRead{Path: "a", MaxBytes: 200_000}, Resources: shared("/a"), Delivery: protocol.Idempotent, Timeout: 60 * second,
		}},
		"smithers, write": {"smithers", "write", `{"path":"a","content":""}`, tools.Plan{
			Payload: protocol.FilesWrite{Path: "a", Content: protocol.Bytes{}}, Resources: exclusive("/a"), Delivery: protocol.Idempotent, Timeout: 60 * second,
		}},
		"smithers, edit": {"smithers", "edit", `{"path":"a","patch":"@@"}`, tools.Plan{
			Payload: protocol.FilesEdit{Path: "a", Patch: "@@", MaxBytes: 200_000}, Resources: exclusive("/a"), Delivery: protocol.Rollback, Timeout: 60 * second,
		}},
		"smithers, grep": {"smithers", "grep", `{"pattern":"x"}`, tools.Plan{
			Payload: protocol.FilesSearch{Pattern: "x", Limit: 500}, Resources: shared(""), Delivery: protocol.Idempotent, Timeout: 60 * second,
		}},
		"smithers, a program": {"smithers", "bash", `{"cmd":"ls","args":["-l","$HOME; x"],"opts":{"cwd":"./src"}}`, tools.Plan{
			Payload:   protocol.CommandRun{Argv: []string{"ls", "-l", "$HOME; x"}, Cwd: "src", Limits: protocol.Limits{Output: 200_000}},
			Resources: whole, Delivery: protocol.Rollback, Timeout: 60 * second,
		}},
		"web, a page": {"web", "web_fetch", `{"url":"https://example.com/a","method":"GET","headers":{"Accept":"text/plain"},"timeout":5}`, tools.Plan{
			Payload:   protocol.HTTPFetch{URL: "https://example.com/a", Headers: map[string]string{"Accept": "text/plain"}},
			Resources: []protocol.Use{}, Delivery: protocol.Idempotent, Timeout: 5 * second,
		}},
		"files, read": {"files", "read_file", `{"path":"a"}`, tools.Plan{
			Payload: protocol.FilesRead{Path: "a"}, Resources: shared("/a"), Delivery: protocol.Idempotent, Timeout: 30 * second,
		}},
		"files, write": {"files", "write_file", `{"path":"a","content":"x"}`, tools.Plan{
			Payload: protocol.FilesWrite{Path: "a", Content: protocol.Bytes("x")}, Resources: exclusive("/a"), Delivery: protocol.Idempotent, Timeout: 30 * second,
		}},
		"files, edit": {"files", "edit_file", `{"path":"a","search":"x","replace":""}`, tools.Plan{
			Payload: protocol.FilesEdit{Path: "a", Old: "x", First: true}, Resources: exclusive("/a"), Delivery: protocol.Rollback, Timeout: 30 * second,
		}},
		"files, list": {"files", "list_files", ``, tools.Plan{
			Payload: protocol.FilesGlob{Pattern: "*", NoIgnore: true, NoGenerated: true, Limit: 500}, Resources: shared(""), Delivery: protocol.Idempotent, Timeout: 30 * second,
		}},
		"files, search": {"files", "search_files", `{"pattern":"x","file_pattern":"*.go"}`, tools.Plan{
			Payload: protocol.FilesSearch{Pattern: "x", Glob: "*.go", Limit: 500}, Resources: shared(""), Delivery: protocol.Idempotent, Timeout: 30 * second,
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, plan, err := setTable(t, test.set).Plan(scope, test.tool, test.raw)
			require.Nil(t, err)
			require.Equal(t, test.want, plan)
			_, err = plan.Call(scope, tools.Place{Turn: 1, Step: 1}, "c1", test.tool, time.Now())
			require.Nil(t, err)
		})
	}
}

func TestToolsets_Refusals(t *testing.T) {
	t.Parallel()
	arguments := func(values map[string]any) string {
		encoded, err := json.Marshal(values)
		require.NoError(t, err)
		return string(encoded)
	}
	large := strings.Repeat("x", 200_001)
	for name, test := range map[string]struct {
		set, tool string
		arguments map[string]any
		code      protocol.Code
		says      string
	}{
		"several lines":            {"openrath", "run_shell_command", map[string]any{"cmd": "a\nb"}, protocol.CodeInvalidArguments, "multiline commands are rejected"},
		"a carriage return":        {"openrath", "run_shell_command", map[string]any{"cmd": "a\rb"}, protocol.CodeInvalidArguments, "multiline commands are rejected"},
		"a long command":           {"openrath", "run_shell_command", map[string]any{"cmd": strings.Repeat("x", 2049)}, protocol.CodeInvalidArguments, "command too long"},
		"another encoding":         {"openrath", "read_workspace_file", map[string]any{"path": "a", "encoding": 5}, protocol.CodeInvalidArguments, "encoding"},
		"a file":                   {"web", "web_fetch", map[string]any{"url": "file:///etc/passwd"}, protocol.CodeInvalidArguments, "must begin with http:// or https://"},
		"a header":                 {"web", "web_fetch", map[string]any{"url": "http://a.test", "headers": map[string]any{"Cookie": "a"}}, protocol.CodeInvalidArguments, `"Cookie" cannot be sent`},
		"a large content":          {"smithers", "write", map[string]any{"path": "a", "content": large}, codes.TooLarge, "200001 bytes; at most 200000"},
		"a large patch":            {"smithers", "edit", map[string]any{"path": "a", "patch": large}, codes.TooLarge, "at most 200000"},
		"a blank program":          {"smithers", "bash", map[string]any{"cmd": " \t"}, protocol.CodeInvalidArguments, "cmd: is blank"},
		"a long directory":         {"smithers", "bash", map[string]any{"cmd": "a", "opts": map[string]any{"cwd": strings.Repeat("x", 1025)}}, protocol.CodeInvalidArguments, "opts.cwd: has 1025 characters"},
		"a content that is none":   {"openrath", "write_workspace_file", map[string]any{"path": "a", "content": []int{1}}, protocol.CodeInvalidArguments, "content must be text for write_workspace_file"},
		"too many arguments":       {"smithers", "bash", map[string]any{"cmd": "a", "args": make([]string, 129)}, protocol.CodeInvalidArguments, "has 129 items, must have 128 or fewer"},
		"a long argument":          {"smithers", "bash", map[string]any{"cmd": "a", "args": []string{strings.Repeat("x", 8193)}}, protocol.CodeInvalidArguments, "must have 8192 or fewer"},
		"a long program":           {"smithers", "bash", map[string]any{"cmd": strings.Repeat("x", 8193)}, protocol.CodeInvalidArguments, "must have 8192 or fewer"},
		"a directory outside":      {"smithers", "bash", map[string]any{"cmd": "a", "opts": map[string]any{"cwd": ".."}}, codes.PathEscape, "outside"},
		"an unknown option":        {"smithers", "bash", map[string]any{"cmd": "a", "opts": map[string]any{"shell": true}}, protocol.CodeInvalidArguments, "opts.shell"},
		"a path outside":           {"files", "read_file", map[string]any{"path": "../a"}, codes.PathEscape, "outside"},
		"nothing to search for":    {"files", "edit_file", map[string]any{"path": "a", "search": "", "replace": "x"}, protocol.CodeInvalidArguments, "search: has 0 characters"},
		"a directory to be edited": {"files", "edit_file", map[string]any{"path": ".", "search": "a", "replace": "x"}, codes.IsDirectory, "directory"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, _, err := setTable(t, test.set).Plan(scope, test.tool, arguments(test.arguments))
			require.NotNil(t, err)
			require.Equal(t, test.code, err.Code)
			require.Contains(t, err.Message, test.says)
		})
	}
}

// TestToolsets_LongTexts: where a text as it is ends, and what follows it.
func TestToolsets_LongTexts(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("0123456789\n", 10_000)
	for set, name := range map[string]string{"files": "read_file", "smithers": "read"} {
		tool, found := setTable(t, set).Lookup(name)
		require.True(t, found)
		result := ok(protocol.FilesReadResult{Path: "a", Content: protocol.Bytes(long), Lines: 10_000, TotalLines: 10_000, Bytes: 110_000})
		out := tool.Text(&result)
		require.True(t, strings.HasPrefix(out, long[:40_000]))
		require.Contains(t, out, "\n[cut here: these are the first 4000 of 10000 lines, 110000 bytes in all; ")
		result = ok(protocol.FilesReadResult{Path: "a", Content: protocol.Bytes(strings.Repeat("é", 50_000)), Lines: 1, TotalLines: 1, Bytes: 100_000})
		require.Contains(t, tool.Text(&result), "\n[cut here: these are the first 44000 characters of 1 line, 100000 bytes in all; ")
	}
}

func TestToolsets(t *testing.T) {
	t.Parallel()
	core, err := toolset.Named("core")
	require.NoError(t, err)
	require.Len(t, core, len(toolset.Core()))

	once, err := toolset.Named("core", "core")
	require.NoError(t, err)
	require.Equal(t, []string{
		"bash", "edit", "exists", "glob", "grep", "json_read", "json_write", "list", "multi_edit", "process", "read", "run_code", "tree", "write",
	}, newTable(t, once...).Names())
	for name, want := range map[string][]string{
		"files": {"edit_file", "list_files", "read_file", "search_files", "write_file"},
		"openrath": {
			"list_workspace_files", "read_workspace_file", "run_code", "run_shell_command", "workspace_path_exists", "write_workspace_file",
		},
		"smithers": {"bash", "edit", "grep", "read", "write"},
	} {
		set, err := toolset.Named(name)
		require.NoError(t, err)
		require.Equal(t, want, newTable(t, set...).Names())
	}
	both, err := toolset.Named("openrath", "files")
	require.NoError(t, err)
	require.Len(t, newTable(t, both...).Names(), 11)
	clash, err := toolset.Named("core", "smithers")
	require.NoError(t, err)
	_, err = tools.NewTable(clash...)
	require.ErrorContains(t, err, "invalid tool ")

	none, err := toolset.Named()
	require.NoError(t, err)
	require.Empty(t, none)

	_, err = toolset.Named("Core")
	require.EqualError(t, err, `unknown toolset "Core": must be one of agents, ask, channels, code_execution, core, core-shell, files, help, image_generation, jobs, memory, openrath, scratchpad, smithers, triggers, web, web_search; did you mean "core"?`)
	_, err = toolset.Named("x", "core", "y")
	require.ErrorContains(t, err, `"x"`)
	require.ErrorContains(t, err, `"y"`)
}
