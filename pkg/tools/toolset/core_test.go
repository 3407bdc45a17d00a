package toolset_test

import (
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
	"github.com/toolfleet/toolfleet/pkg/tools/toolset"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// Every toolset's names, texts and schemas are pinned: they are what agents rely on.
func TestToolsets_Golden(t *testing.T) {
	t.Parallel()
	for _, name := range toolset.Names() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var out strings.Builder
			encoder := json.NewEncoder(&out)
			encoder.SetEscapeHTML(false)
			encoder.SetIndent("", "  ")
			require.NoError(t, encoder.Encode(setTable(t, name).Definitions()))
			got := out.String()
			file := filepath.Join("testdata", name+".json")
			if *update {
				require.NoError(t, os.MkdirAll("testdata", 0o755))
				require.NoError(t, os.WriteFile(file, []byte(got), 0o644))
			}
			want, err := os.ReadFile(file)
			require.NoError(t, err)
			require.Equal(t, string(want), got, "run the test with -update when the change is meant")
		})
	}
}

// setTable is the table of a built-in toolset.
func setTable(t require.TestingT, name string) *tools.Table {
	set, err := toolset.Named(name)
	require.NoError(t, err)
	table, err := tools.NewTable(set...)
	require.NoError(t, err)
	return table
}

func TestToolsets_DefinitionsSuitEveryProvider(t *testing.T) {
	t.Parallel()
	for _, set := range toolset.Names() {
		for _, definition := range setTable(t, set).Definitions() {
			require.LessOrEqual(t, utf8.RuneCountInString(definition.Description), 1024, definition.Name)
			var schema map[string]any
			require.NoError(t, json.Unmarshal(definition.Schema, &schema))
			require.Equal(t, false, schema["additionalProperties"], definition.Name)
			for _, combined := range []string{"oneOf", "anyOf", "allOf"} {
				require.NotContains(t, schema, combined, "some providers refuse it at the top")
			}
			properties, ok := schema["properties"].(map[string]any)
			require.True(t, ok)
			for name, property := range properties {
				require.Contains(t, property, "description", "%s.%s", definition.Name, name)
			}
		}
	}
}

func TestCore_Plans(t *testing.T) {
	t.Parallel()
	table := coreTable(t)
	whole := use("sandbox/box", protocol.Exclusive)
	for name, test := range map[string]struct {
		tool, raw string
		want      tools.Plan
	}{
		"bash": {"bash", `{"command":"ls *.go | grep '^a'"}`, tools.Plan{
			Payload: protocol.CommandRun{Command: "ls *.go | grep '^a'"}, Resources: whole, Delivery: protocol.Rollback, Timeout: 2 * time.Minute,
		}},
		"bash in a directory for a while": {"bash", `{"command":"a","cwd":"/workspace/x/../y/","timeout":1.5}`, tools.Plan{
			Payload: protocol.CommandRun{Command: "a", Cwd: "y"}, Resources: whole, Delivery: protocol.Rollback, Timeout: 1500 * time.Millisecond,
		}},
		"bash for as long as can be": {"bash", `{"command":"a","timeout":"3600"}`, tools.Plan{
			Payload: protocol.CommandRun{Command: "a"}, Resources: whole, Delivery: protocol.Rollback, Timeout: toolset.MaxTimeout,
		}},
		"bash for next to no time": {"bash", `{"command":"a","timeout":1e-300}`, tools.Plan{
			Payload: protocol.CommandRun{Command: "a"}, Resources: whole, Delivery: protocol.Rollback, Timeout: time.Millisecond,
		}},
		"bash that changes nothing": {"bash", `{"command":"a","read_only":"true","env":{"PORT":8080,"A":"b c","ON":true}}`, tools.Plan{
			Payload:   protocol.CommandRun{Command: "a", ReadOnly: true, Env: map[string]string{"PORT": "8080", "A": "b c", "ON": "true"}},
			Resources: use("sandbox/box", protocol.Shared), Delivery: protocol.Idempotent, Timeout: 2 * time.Minute,
		}},
		"bash without variables": {"bash", `{"command":"a","env":{}}`, tools.Plan{
			Payload: protocol.CommandRun{Command: "a"}, Resources: whole, Delivery: protocol.Rollback, Timeout: 2 * time.Minute,
		}},
		"bash in the background": {"bash", `{"command":"serve","background":true}`, tools.Plan{
			Payload:   protocol.CommandRun{Command: "serve", Background: true, Limits: protocol.Limits{Wall: 3_600_000}},
			Resources: whole, Delivery: protocol.Rollback, Timeout: 30 * time.Second,
		}},
		"bash in the background for a while": {"bash", `{"command":"serve","background":true,"timeout":90,"read_only":true}`, tools.Plan{
			Payload:   protocol.CommandRun{Command: "serve", Background: true, ReadOnly: true, Limits: protocol.Limits{Wall: 90_000}},
			Resources: use("sandbox/box", protocol.Shared), Delivery: protocol.Idempotent, Timeout: 30 * time.Second,
		}},
		"processes": {"process", `{"action":"list"}`, tools.Plan{
			Payload: wire.ProcessList{}, Resources: use("sandbox/box", protocol.Shared), Delivery: protocol.Idempotent, Timeout: 30 * time.Second,
		}},
		"the end of a process's output": {"process", `{"action":"read","process":"p-1"}`, tools.Plan{
			Payload:   wire.ProcessRead{Process: "p-1", Offset: -8000, Limit: 40_000},
			Resources: use("sandbox/box", protocol.Shared), Delivery: protocol.Idempotent, Timeout: 30 * time.Second,
		}},
		"a process's output from a place on": {"process", `{"action":"read","process":"p-1","offset":0,"limit":"10","wait":2.5}`, tools.Plan{
			Payload:   wire.ProcessRead{Process: "p-1", Limit: 10, Wait: 2500},
			Resources: use("sandbox/box", protocol.Shared), Delivery: protocol.Idempotent, Timeout: 32500 * time.Millisecond,
		}},
		"the end of a process": {"process", `{"action":"kill","process":"p-1"}`, tools.Plan{
			Payload: wire.ProcessKill{Process: "p-1"}, Resources: whole, Delivery: protocol.Idempotent, Timeout: 30 * time.Second,
		}},
		"a program that changes nothing": {"run_code", `{"code":"1","read_only":true}`, tools.Plan{
			Payload:   protocol.CodeRun{Code: "1", Language: "python", ReadOnly: true},
			Resources: use("sandbox/box", protocol.Shared), Delivery: protocol.Idempotent, Timeout: time.Minute,
		}},
		"python by default": {"run_code", `{"code":"print(1)"}`, tools.Plan{
			Payload: protocol.CodeRun{Code: "print(1)", Language: "python"}, Resources: whole, Delivery: protocol.Rollback, Timeout: time.Minute,
		}},
		"go for a while": {"run_code", `{"code":"package main","language":"go","timeout":5}`, tools.Plan{
			Payload: protocol.CodeRun{Code: "package main", Language: "go"}, Resources: whole, Delivery: protocol.Rollback, Timeout: 5 * time.Second,
		}},
		"read": {"read", `{"path":"./a//b.txt"}`, tools.Plan{
			Payload:   protocol.FilesRead{Path: "a/b.txt"},
			Resources: use("sandbox/box/a/b.txt", protocol.Shared), Delivery: protocol.Idempotent, Timeout: 30 * time.Second,
		}},
		"read some lines": {"read", `{"path":"a","offset":3,"limit":"2"}`, tools.Plan{
			Payload:   protocol.FilesRead{Path: "a", Offset: 3, Limit: 2},
			Resources: use("sandbox/box/a", protocol.Shared), Delivery: protocol.Idempotent, Timeout: 30 * time.Second,
		}},
		"write": {"write", `{"path":"new/x","content":"é\u0000\n"}`, tools.Plan{
			Payload:   protocol.FilesWrite{Path: "new/x", Content: protocol.Bytes("é\x00\n")},
			Resources: use("sandbox/box/new/x", protocol.Exclusive), Delivery: protocol.Idempotent, Timeout: 30 * time.Second,
		}},
		"edit": {"edit", `{"path":"a","old":"b","new":""}`, tools.Plan{
			Payload:   protocol.FilesEdit{Path: "a", Old: "b"},
			Resources: use("sandbox/box/a", protocol.Exclusive), Delivery: protocol.Rollback, Timeout: 30 * time.Second,
		}},
		"edit everywhere": {"edit", `{"path":"a","old":"b","new":"c","replace_all":"true"}`, tools.Plan{
			Payload:   protocol.FilesEdit{Path: "a", Old: "b", New: "c", ReplaceAll: true},
			Resources: use("sandbox/box/a", protocol.Exclusive), Delivery: protocol.Rollback, Timeout: 30 * time.Second,
		}},
		"list the workspace": {"list", ``, tools.Plan{
			Payload:   protocol.FilesList{},
			Resources: use("sandbox/box", protocol.Shared), Delivery: protocol.Idempotent, Timeout: 30 * time.Second,
		}},
		"list a directory": {"list", `{"path":"a/b/"}`, tools.Plan{
			Payload:   protocol.FilesList{Path: "a/b"},
			Resources: use("sandbox/box/a/b", protocol.Shared), Delivery: protocol.Idempotent, Timeout: 30 * time.Second,
		}},
		"exists": {"exists", `{"path":"a"}`, tools.Plan{
			Payload:   protocol.FilesExists{Path: "a"},
			Resources: use("sandbox/box/a", protocol.Shared), Delivery: protocol.Idempotent, Timeout: 30 * time.Second,
		}},
		"the workspace exists": {"exists", `{"path":"."}`, tools.Plan{
			Payload:   protocol.FilesExists{},
			Resources: use("sandbox/box", protocol.Shared), Delivery: protocol.Idempotent, Timeout: 30 * time.Second,
		}},
		"write what is expected": {"write", `{"path":"a","content":"","expect_sha256":"` + strings.Repeat("AB", 32) + `"}`, tools.Plan{
			Payload:   protocol.FilesWrite{Path: "a", Content: protocol.Bytes{}, ExpectSHA256: strings.Repeat("ab", 32)},
			Resources: use("sandbox/box/a", protocol.Exclusive), Delivery: protocol.Rollback, Timeout: 30 * time.Second,
		}},
		"edit by patch": {"edit", `{"path":"a","patch":"@@ -1 +1 @@\n-a\n+b\n"}`, tools.Plan{
			Payload:   protocol.FilesEdit{Path: "a", Patch: "@@ -1 +1 @@\n-a\n+b\n"},
			Resources: use("sandbox/box/a", protocol.Exclusive), Delivery: protocol.Rollback, Timeout: 30 * time.Second,
		}},
		"several edits": {"multi_edit", `{"path":"a","edits":[{"old":"a","new":""},{"old":"b","new":"c","replace_all":true}],"best_effort":true}`, tools.Plan{
			Payload: protocol.FilesEdit{Path: "a", BestEffort: true, Edits: []protocol.FileEdit{
				{Old: "a"}, {Old: "b", New: "c", ReplaceAll: true},
			}},
			Resources: use("sandbox/box/a", protocol.Exclusive), Delivery: protocol.Rollback, Timeout: 30 * time.Second,
		}},
		"glob": {"glob", `{"pattern":"**/*.go","path":"src","gitignore":"false","limit":7}`, tools.Plan{
			Payload:   protocol.FilesGlob{Pattern: "**/*.go", Path: "src", NoIgnore: true, Limit: 7},
			Resources: use("sandbox/box/src", protocol.Shared), Delivery: protocol.Idempotent, Timeout: 30 * time.Second,
		}},
		"glob everywhere": {"glob", `{"pattern":"*"}`, tools.Plan{
			Payload:   protocol.FilesGlob{Pattern: "*", Limit: 500},
			Resources: use("sandbox/box", protocol.Shared), Delivery: protocol.Idempotent, Timeout: 30 * time.Second,
		}},
		"tree": {"tree", `{"path":"src/","depth":2,"limit":5}`, tools.Plan{
			Payload:   protocol.FilesTree{Path: "src", Depth: 2, Limit: 5},
			Resources: use("sandbox/box/src", protocol.Shared), Delivery: protocol.Idempotent, Timeout: 30 * time.Second,
		}},
		"json_read": {"json_read", `{"path":"a.json","query":"/x/0"}`, tools.Plan{
			Payload:   protocol.FilesJSONRead{Path: "a.json", Query: "/x/0"},
			Resources: use("sandbox/box/a.json", protocol.Shared), Delivery: protocol.Idempotent, Timeout: 30 * time.Second,
		}},
		"json_write": {"json_write", `{"path":"a.json","content":{"z":1.50,"a":[null,{"y":0,"b":1}]}}`, tools.Plan{
			Payload:   protocol.FilesJSONWrite{Path: "a.json", Content: json.RawMessage(`{"z":1.50,"a":[null,{"y":0,"b":1}]}`)},
			Resources: use("sandbox/box/a.json", protocol.Exclusive), Delivery: protocol.Idempotent, Timeout: 30 * time.Second,
		}},
		"json_write of a place": {"json_write", `{"path":"a.json","content":"x","query":"/-"}`, tools.Plan{
			Payload:   protocol.FilesJSONWrite{Path: "a.json", Query: "/-", Content: json.RawMessage(`"x"`)},
			Resources: use("sandbox/box/a.json", protocol.Exclusive), Delivery: protocol.Rollback, Timeout: 30 * time.Second,
		}},
		"json_write of a string that holds an object": {"json_write", `{"path":"a.json","content":" {\"b\":1} "}`, tools.Plan{
			Payload:   protocol.FilesJSONWrite{Path: "a.json", Content: json.RawMessage(`{"b":1}`)},
			Resources: use("sandbox/box/a.json", protocol.Exclusive), Delivery: protocol.Idempotent, Timeout: 30 * time.Second,
		}},
		"null where nothing is meant": {"read", `{"path":"a","offset":null,"limit":null}`, tools.Plan{
			Payload:   protocol.FilesRead{Path: "a"},
			Resources: use("sandbox/box/a", protocol.Shared), Delivery: protocol.Idempotent, Timeout: 30 * time.Second,
		}},
		"a list in a string": {"multi_edit", `{"path":"a","edits":"[{\"old\":\"a\",\"new\":\"b\",\"replace_all\":\"true\"}]"}`, tools.Plan{
			Payload:   protocol.FilesEdit{Path: "a", Edits: []protocol.FileEdit{{Old: "a", New: "b", ReplaceAll: true}}},
			Resources: use("sandbox/box/a", protocol.Exclusive), Delivery: protocol.Rollback, Timeout: 30 * time.Second,
		}},
		"grep": {"grep", `{"pattern":"(?i)a[","path":"src","glob":"../*.{go,c}","ignore_case":true,"gitignore":false,"limit":"9"}`, tools.Plan{
			Payload:   protocol.FilesSearch{Pattern: "(?i)a[", Path: "src", Glob: "../*.{go,c}", IgnoreCase: true, NoIgnore: true, Limit: 9},
			Resources: use("sandbox/box/src", protocol.Shared), Delivery: protocol.Idempotent, Timeout: 30 * time.Second,
		}},
		"grep everywhere": {"grep", `{"pattern":"a"}`, tools.Plan{
			Payload:   protocol.FilesSearch{Pattern: "a", Limit: 500},
			Resources: use("sandbox/box", protocol.Shared), Delivery: protocol.Idempotent, Timeout: 30 * time.Second,
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, plan, err := table.Plan(scope, test.tool, test.raw)
			require.Nil(t, err)
			require.Equal(t, test.tool, got.Name)
			require.Equal(t, test.want, plan)
			_, err = plan.Call(scope, tools.Place{Turn: 1, Step: 1}, "c1", test.tool, time.Now())
			require.Nil(t, err)
		})
	}
}

func TestCore_RefusesPathsBeforeAnythingIsSent(t *testing.T) {
	t.Parallel()
	table := coreTable(t)
	long := strings.Repeat("d/", 2048) + "f"
	for name, test := range map[string]struct {
		path  string
		code  protocol.Code
		tools string // all that take a path when ""
	}{
		"up":                            {"..", codes.PathEscape, ""},
		"up and over":                   {"../other/a", codes.PathEscape, ""},
		"down and further up":           {"a/../../b", codes.PathEscape, ""},
		"absolute":                      {"/etc/passwd", codes.PathEscape, ""},
		"the root":                      {"/", codes.PathEscape, ""},
		"beside the workspace":          {"/workspace2/a", codes.PathEscape, ""},
		"out of the absolute workspace": {"/workspace/../etc/passwd", codes.PathEscape, ""},
		"NUL":                           {"a\x00b", codes.InvalidPath, ""},
		"too long":                      {long, codes.InvalidPath, ""},
		"nothing":                       {"", codes.InvalidPath, "read write edit multi_edit json_read json_write exists"},
		"the workspace as a file":       {".", codes.IsDirectory, "read write edit multi_edit json_read json_write"},
		"the workspace, absolutely":     {"/workspace/", codes.IsDirectory, "read write edit multi_edit json_read json_write"},
		"there and back":                {"a/..", codes.IsDirectory, "read write edit multi_edit json_read json_write"},
		"a new directory":               {"a/", codes.InvalidPath, "write json_write"},
	} {
		names := strings.Fields(test.tools)
		if test.tools == "" {
			names = []string{
				"read", "write", "edit", "multi_edit", "json_read", "json_write", "list", "tree", "glob", "exists", "grep", "bash",
			}
		}
		for _, toolName := range names {
			t.Run(name+", "+toolName, func(t *testing.T) {
				t.Parallel()
				_, plan, err := table.Plan(scope, toolName, argumentsFor(t, toolName, test.path))
				require.NotNil(t, err)
				require.Equal(t, test.code, err.Code, err.Message)
				require.Equal(t, tools.Plan{}, plan)
				require.Less(t, len(err.Message), 500)
				if test.code == codes.PathEscape {
					require.Contains(t, err.Message, "relative to the workspace")
				}
			})
		}
	}
}

// argumentsFor returns valid arguments of a tool of the core toolset for a path.
func argumentsFor(t require.TestingT, toolName, path string) string {
	arguments := map[string]any{"path": path}
	switch toolName {
	case "write":
		arguments["content"] = "x"
	case "edit":
		arguments["old"], arguments["new"] = "a", "b"
	case "multi_edit":
		arguments["edits"] = []any{map[string]any{"old": "a", "new": "b"}}
	case "json_write":
		arguments["content"] = 1
	case "grep", "glob":
		arguments["pattern"] = "x"
	case "bash":
		arguments = map[string]any{"command": "true", "cwd": path}
	case "run_code":
		arguments = map[string]any{"code": "1"}
	case "process":
		arguments = map[string]any{"action": "list"}
	}
	encoded, err := json.Marshal(arguments)
	require.NoError(t, err)
	return string(encoded)
}

func TestCore_RefusesVariablesThatNoEnvironmentCanHave(t *testing.T) {
	t.Parallel()
	for _, env := range []string{`{"A=B":"1"}`, `{"":"1"}`, `{"A":"a\u0000"}`, `{"A\u0000":""}`} {
		_, _, err := coreTable(t).Plan(scope, "bash", `{"command":"a","env":`+env+`}`)
		require.NotNil(t, err, env)
		require.Equal(t, protocol.CodeInvalidArguments, err.Code)
		require.Contains(t, err.Message, "- env.")
	}
	_, _, err := coreTable(t).Plan(scope, "bash", `{"command":1,"env":{"A":[1],"B":{},"C":2}}`)
	require.NotNil(t, err)
	require.Contains(t, err.Message, "\n- command: must be string, not number\n- env.A: must be boolean or number or string, not array\n- env.B: ")
	require.NotContains(t, err.Message, "env.C: ")
}

func TestCore_PlansCheckArgumentsThatNoTableChecked(t *testing.T) {
	t.Parallel()
	read, ok := coreTable(t).Lookup("read")
	require.True(t, ok)
	_, err := read.Plan(scope, json.RawMessage(`{"path":1}`))
	require.Equal(t, protocol.CodeInvalidArguments, err.Code)
	_, err = read.Plan(scope, json.RawMessage(`{"path":"a","more":1}`))
	require.Equal(t, protocol.CodeInvalidArguments, err.Code)
}

func TestCore_RefusesAScopeWithoutASandbox(t *testing.T) {
	t.Parallel()
	table := coreTable(t)
	for _, sandbox := range []string{"", "a/b", "..", ".", "a\x00", "\xff"} {
		for _, name := range table.Names() {
			_, _, err := table.Plan(tools.Scope{Session: "s", Sandbox: sandbox}, name, argumentsFor(t, name, "a"))
			require.NotNil(t, err, "%q %s", sandbox, name)
			require.Equal(t, protocol.CodeInternal, err.Code)
			require.True(t, utf8.ValidString(err.Message))
		}
	}
}

// Without oneOf, which some providers refuse, the tool itself says what goes together.
func TestCore_EditTakesTextsOrAPatch(t *testing.T) {
	t.Parallel()
	for raw, want := range map[string]string{
		`{"path":"a"}`:                                 "old and new, or patch, are required",
		`{"path":"a","old":"x"}`:                       "new: is required beside old",
		`{"path":"a","new":"x"}`:                       "old: is required beside new",
		`{"path":"a","old":"x","new":"y","patch":"z"}`: "patch: must not be beside old and new",
		`{"path":"a","new":"y","patch":"z"}`:           "patch: must not be beside old and new",
		`{"path":"a","patch":""}`:                      "patch: has 0 characters, must have 1 or more",
	} {
		_, _, err := coreTable(t).Plan(scope, "edit", raw)
		require.NotNil(t, err, raw)
		require.Equal(t, protocol.CodeInvalidArguments, err.Code)
		require.Contains(t, err.Message, want)
	}
}

func TestCore_GuardsOfTheSessionAreInThePayloads(t *testing.T) {
	t.Parallel()
	guarded := scope
	guarded.Guard = protocol.GuardRead
	for _, name := range []string{"read", "write", "edit", "multi_edit", "json_read", "json_write"} {
		_, plan, err := coreTable(t).Plan(guarded, name, argumentsFor(t, name, "a"))
		require.Nil(t, err)
		encoded, fault := wire.EncodePayload(plan.Payload)
		require.NoError(t, fault)
		require.Contains(t, string(encoded), `"guard":"read"`, name)
	}
}
