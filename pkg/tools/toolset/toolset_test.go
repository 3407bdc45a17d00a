package toolset_test

import (
	"bytes"
	"encoding/json"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/wire"
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
		"several lines":     {"openrath", "run_shell_command", map[string]any{"cmd": "a\nb"}, protocol.CodeInvalidArguments, "multiline commands are rejected"},
		"a carriage return": {"openrath", "run_shell_command", map[string]any{"cmd": "a\rb"}, protocol.CodeInvalidArguments, "multiline commands are rejected"},
		"a long command":    {"openrath", "run_shell_command", map[string]any{"cmd": strings.Repeat("x", 2049)}, protocol.CodeInvalidArguments, "command too long"},
		"another encoding":  {"openrath", "read_workspace_file", map[string]any{"path": "a", "encoding": 5}, protocol.CodeInvalidArguments, "encoding"},
		"a file":            {"web", "web_fetch", map[string]any{"url": "file:///etc/passwd"}, protocol.CodeInvalidArguments, "must begin with http:// or https://"},
		"a header": {
			"web", "web_fetch",
			map[string]any{"url": "http://a.test", "headers": map[string]any{"Cookie": "a"}},
			protocol.CodeInvalidArguments, `"Cookie" cannot be sent`,
		},
		"a large content": {"smithers", "write", map[string]any{"path": "a", "content": large}, codes.TooLarge, "200001 bytes; at most 200000"},
		"a large patch":   {"smithers", "edit", map[string]any{"path": "a", "patch": large}, codes.TooLarge, "at most 200000"},
		"a blank program": {"smithers", "bash", map[string]any{"cmd": " \t"}, protocol.CodeInvalidArguments, "cmd: is blank"},
		"a long directory": {
			"smithers", "bash",
			map[string]any{"cmd": "a", "opts": map[string]any{"cwd": strings.Repeat("x", 1025)}},
			protocol.CodeInvalidArguments, "opts.cwd: has 1025 characters",
		},
		"a content that is none": {
			"openrath", "write_workspace_file",
			map[string]any{"path": "a", "content": []int{1}},
			protocol.CodeInvalidArguments, "content must be text for write_workspace_file",
		},
		"too many arguments": {
			"smithers", "bash", map[string]any{"cmd": "a", "args": make([]string, 129)}, protocol.CodeInvalidArguments, "has 129 items, must have 128 or fewer",
		},
		"a long argument": {
			"smithers", "bash",
			map[string]any{"cmd": "a", "args": []string{strings.Repeat("x", 8193)}},
			protocol.CodeInvalidArguments, "must have 8192 or fewer",
		},
		"a long program":      {"smithers", "bash", map[string]any{"cmd": strings.Repeat("x", 8193)}, protocol.CodeInvalidArguments, "must have 8192 or fewer"},
		"a directory outside": {"smithers", "bash", map[string]any{"cmd": "a", "opts": map[string]any{"cwd": ".."}}, codes.PathEscape, "outside"},
		"an unknown option":   {"smithers", "bash", map[string]any{"cmd": "a", "opts": map[string]any{"shell": true}}, protocol.CodeInvalidArguments, "opts.shell"},
		"a path outside":      {"files", "read_file", map[string]any{"path": "../a"}, codes.PathEscape, "outside"},
		"nothing to search for": {
			"files", "edit_file", map[string]any{"path": "a", "search": "", "replace": "x"}, protocol.CodeInvalidArguments, "search: has 0 characters",
		},
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
	require.EqualError(t, err, `unknown toolset "Core": must be one of agents, ask, channels, code_execution, core, core-shell, files, help, image_generation, jobs, memory, openrath, scratchpad, sessions, smithers, triggers, web, web_search; did you mean "core"?`)
	_, err = toolset.Named("x", "core", "y")
	require.ErrorContains(t, err, `"x"`)
	require.ErrorContains(t, err, `"y"`)
}

func TestJobs_Plans(t *testing.T) {
	t.Parallel()
	table := newTable(t, named("jobs")...)
	for _, test := range []struct {
		tool, arguments string
		want            wire.JobRequest
	}{
		{"job_status", `{}`, wire.JobRequest{Verb: wire.JobStatus, Timeout: time.Minute}},
		{"job_wait", `{"job":"j","timeout":"2.5"}`, wire.JobRequest{Verb: wire.JobWait, Job: "j", Timeout: 2500 * time.Millisecond}},
		{"job_cancel", `{"job":"j"}`, wire.JobRequest{Verb: wire.JobCancel, Job: "j", Timeout: time.Minute}},
	} {
		_, plan, refusal := table.Plan(tools.Scope{Session: "s", Sandbox: "s"}, test.tool, test.arguments)
		require.Nil(t, refusal, test.tool)
		require.Equal(t, test.want, plan.Session)
		_, refusal = plan.Call(tools.Scope{Session: "s", Sandbox: "s"}, tools.Place{}, "", test.tool, time.Now())
		require.Equal(t, protocol.CodeInternal, refusal.Code, "it is nothing for a worker")
	}
	for _, arguments := range []string{`{}`, `{"job":""}`, `{"job":"j","timeout":0}`, `{"job":"j","timeout":601}`} {
		_, _, refusal := table.Plan(tools.Scope{}, "job_wait", arguments)
		require.NotNil(t, refusal, arguments)
	}
}

// The page about the tools has a row for each, with every argument.
func TestDocs_EveryToolAndArgument(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../../docs/tools.md")
	require.NoError(t, err)
	core, others, found := strings.Cut(string(page), "## Toolsets of other systems")
	require.True(t, found)
	for _, set := range toolset.Names() {
		require.Contains(t, string(page), "`"+set+"`")
		section := others
		if strings.HasPrefix(set, "core") {
			section = core
		}
		for _, definition := range setTable(t, set).Definitions() {
			var schema struct {
				Properties map[string]any `json:"properties"`
			}
			require.NoError(t, json.Unmarshal(definition.Schema, &schema))
			rows := ""
			for line := range strings.Lines(section) {
				if strings.HasPrefix(line, "|") && strings.Contains(line, "| `"+definition.Name+"` |") {
					rows += line
				}
			}
			require.NotEmpty(t, rows, "no row for %s of %s", definition.Name, set)
			for property := range schema.Properties {
				require.Contains(t, rows, "`"+property+"`", "%s of %s", definition.Name, set)
			}
		}
	}
}

// functionName is what OpenAI's API takes as the name of a function.
var functionName = regexp.MustCompile(`^[a-zA-Z0-9_-]{1,64}$`)

// The schemas are valid under draft 2020-12, and keep to what OpenAI's API asks of the
// parameters of a function.
func TestToolsets_SchemasAreValid(t *testing.T) {
	t.Parallel()
	meta := jsonschema.NewCompiler().MustCompile("https://json-schema.org/draft/2020-12/schema")
	for _, set := range toolset.Names() {
		for _, definition := range setTable(t, set).Definitions() {
			t.Run(set+"/"+definition.Name, func(t *testing.T) {
				t.Parallel()
				require.Regexp(t, functionName, definition.Name)
				require.LessOrEqual(t, utf8.RuneCountInString(definition.Description), 1024)
				document, err := jsonschema.UnmarshalJSON(bytes.NewReader(definition.Schema))
				require.NoError(t, err)
				require.NoError(t, meta.Validate(document))
				checkObject(t, document, 1)
			})
		}
	}
}

// checkObject checks the schema of an object, and of those in it.
func checkObject(t *testing.T, schema any, depth int) {
	t.Helper()
	object, ok := schema.(map[string]any)
	require.True(t, ok)
	require.Equal(t, "object", object["type"])
	require.LessOrEqual(t, depth, 5, "levels of nesting")
	properties, _ := object["properties"].(map[string]any)
	require.LessOrEqual(t, len(properties), 100)
	required, _ := object["required"].([]any)
	for _, name := range required {
		require.Contains(t, properties, name)
	}
	for name, property := range properties {
		checkProperty(t, name, property, depth)
	}
}

func checkProperty(t *testing.T, name string, property any, depth int) {
	t.Helper()
	fields, ok := property.(map[string]any)
	require.True(t, ok, name)
	for _, unknown := range []string{"$ref", "oneOf", "anyOf", "allOf", "not", "if", "patternProperties", "dependentRequired"} {
		require.NotContains(t, fields, unknown, name)
	}
	if standard, has := fields["default"]; has {
		compiler := jsonschema.NewCompiler()
		require.NoError(t, compiler.AddResource("tool:///x", property))
		require.NoError(t, compiler.MustCompile("tool:///x").Validate(standard), "the default of %s", name)
	}
	switch fields["type"] {
	case "array":
		items, ok := fields["items"].(map[string]any)
		require.True(t, ok, "%s: an array says of what", name)
		if items["type"] == "object" {
			checkObject(t, items, depth+1)
		}
	case "object":
		if _, has := fields["properties"]; has {
			checkObject(t, property, depth+1)
		}
	case nil:
		require.Equal(t, "content", name, "only JSON content may be of any type")
	}
}

// What a tool says of its defaults and bounds in words is what its schema says.
func TestToolsets_DefaultsAreInWords(t *testing.T) {
	t.Parallel()
	for _, set := range toolset.Names() {
		for _, definition := range setTable(t, set).Definitions() {
			var schema struct {
				Required   []string `json:"required"`
				Properties map[string]struct {
					Default     any    `json:"default"`
					Description string `json:"description"`
				} `json:"properties"`
			}
			require.NoError(t, json.Unmarshal(definition.Schema, &schema))
			for name, property := range schema.Properties {
				if property.Default != nil {
					require.Contains(t, property.Description, "Default: ", "%s.%s", definition.Name, name)
					require.NotContains(t, schema.Required, name)
				}
			}
		}
	}
}

var scope = tools.Scope{Session: "session-1", Sandbox: "box"}

func newTable(tb testing.TB, all ...tools.Tool) *tools.Table {
	tb.Helper()
	table, err := tools.NewTable(all...)
	require.NoError(tb, err)
	return table
}

func coreTable(tb testing.TB) *tools.Table {
	tb.Helper()
	return newTable(tb, toolset.Core()...)
}

// named returns the tools of a built-in toolset.
func named(name string) []tools.Tool {
	set, err := toolset.Named(name)
	if err != nil {
		panic(err)
	}
	return set
}

// tool is one that plans nothing to do.
func tool(name, schema string) tools.Tool {
	return tools.Tool{
		Definition: tools.Definition{Name: name, Description: "Does something.", Schema: json.RawMessage(schema)},
		Plan: func(tools.Scope, json.RawMessage) (tools.Plan, *protocol.Error) {
			return tools.Plan{Payload: wire.Noop{}}, nil
		},
	}
}

func use(key string, access protocol.Access) []protocol.Use {
	return []protocol.Use{{Key: protocol.ResourceKey(key), Access: access}}
}
