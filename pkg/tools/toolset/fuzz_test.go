package toolset_test

import (
	"encoding/json"
	"slices"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/modeltext/prose"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
	"github.com/toolfleet/toolfleet/pkg/tools/toolset"
)

// FuzzPlan gives the table whatever a model could write: the outcome is a plan
// that makes a valid call inside the workspace, or an error that can be read.
func FuzzPlan(f *testing.F) {
	for _, seed := range [][2]string{
		{"read", `{"path":"a/../b","offset":"1","limit":2}`},
		{"read", `{"path":"/workspace/a"}`},
		{"read", `{"path":"../a","path":1e9}`},
		{"write", `{"path":"a","content":"\ud83d\ude00\u0000"}`},
		{"edit", `{"path":"a","old":"b","new":"c","replace_all":"true"}`},
		{"bash", `{"command":"true","timeout":1e-9,"cwd":"."}`},
		{"run_code", `{"code":"x","language":"go"}`},
		{"grep", `{"pattern":"[","glob":"**"}`},
		{"multi_edit", `{"path":"a","edits":"[{\"old\":\"a\",\"new\":\"b\"}]","best_effort":null}`},
		{"json_write", `{"path":"a","content":{"z":[1e400,"{}"],"a":null}}`},
		{"json_write", `{"path":"a","content":"[1]","query":"/-"}`},
		{"glob", `{"pattern":"../**","limit":"3","gitignore":"False"}`},
		{"tree", `{"depth":1.0}`},
		{"run_shell_command", `{"cmd":"a\nb"}`},
		{"read_workspace_file", `{"path":"a","encoding":null}`},
		{"search_files", `{"pattern":"a","file_pattern":null}`},
		{"list", ``},
		{"exists", `[{"a":[[[]]]}]`},
		{"loose", `{"tree":{"tree":{}},"n":"1e400","b":"False","l":["1","x"]}`},
		{"", "\xff"},
	} {
		f.Add(seed[0], seed[1])
	}
	sets, err := toolset.Named("core", "files")
	require.NoError(f, err)
	rath := slices.DeleteFunc(named("openrath"), func(t tools.Tool) bool { return t.Name == "run_code" })
	table, err := tools.NewTable(append(slices.Concat(sets, rath), tool("loose", `{
		"type": "object",
		"properties": {
			"tree": {"$ref": "#"}, "n": {"type": "integer", "multipleOf": 3}, "b": {"type": ["boolean", "null"]},
			"l": {"type": "array", "items": {"anyOf": [{"type": "number", "maximum": 9}, {"enum": ["x", 1.5]}]}, "uniqueItems": true}
		},
		"patternProperties": {"^x": {"type": "string", "pattern": "^y"}},
		"dependentRequired": {"n": ["b"]}
	}`))...)
	require.NoError(f, err)
	f.Fuzz(func(t *testing.T, name, raw string) {
		got, plan, refusal := table.Plan(scope, name, raw)
		if refusal != nil {
			require.Equal(t, tools.Plan{}, plan)
			require.True(t, utf8.ValidString(refusal.Message))
			require.LessOrEqual(t, utf8.RuneCountInString((*tools.Tool)(nil).Failure(&protocol.Result{Status: protocol.StatusRejected, Error: refusal})), prose.MaxText)
			require.NotEqual(t, protocol.CodePanic, refusal.Code, refusal.Message)
			require.NotEqual(t, protocol.CodeInternal, refusal.Code, refusal.Message)
			return
		}
		require.Equal(t, name, got.Name)
		call, refusal := plan.Call(scope, tools.Place{Turn: 1, Step: 1}, "c", name, time.Unix(0, 0).UTC())
		require.Nil(t, refusal)
		require.NoError(t, call.Validate())
		require.Equal(t, protocol.Lane("sandbox/box"), call.Lane())
		require.NotContains(t, "/"+string(call.Resources[0].Key)+"/", "/../")

		encoded, err := wire.EncodeCall(&call)
		require.NoError(t, err)
		decoded, err := wire.DecodeCall(encoded)
		require.NoError(t, err)
		require.Equal(t, &call, decoded, "nothing of the arguments is changed on the way")

		_, again, refusal := table.Plan(scope, name, raw)
		require.Nil(t, refusal)
		require.Equal(t, plan, again, "a plan is a function of scope and arguments")
	})
}

// FuzzRender gives every built-in tool whatever results a worker could send: the
// text is UTF-8, within its bounds, and never empty.
func FuzzRender(f *testing.F) {
	for _, seed := range []string{
		`{"type":"result","call_id":"c","status":"ok","value":{"type":"command_run","stdout":"a\u001b[0m","stderr":{"base64":"/w=="},"exit_code":3}}`,
		`{"type":"result","call_id":"c","status":"ok","value":{"type":"files_read","path":"a","content":"x\ny","first_line":-3,"total_lines":1}}`,
		`{"type":"result","call_id":"c","status":"ok","value":{"type":"files_list","entries":[{"name":"\n"}],"total":-1}}`,
		`{"type":"result","call_id":"c","status":"ok","value":{"type":"files_search","matches":[{"path":"","line":0,"text":""}]}}`,
		`{"type":"result","call_id":"c","status":"ok","value":{"type":"files_edit","diff":"x"}}`,
		`{"type":"result","call_id":"c","status":"ok","value":{"type":"files_write"}}`,
		`{"type":"result","call_id":"c","status":"ok","value":{"type":"files_exists","exists":true}}`,
		`{"type":"result","call_id":"c","status":"ok","value":{"type":"brand_new","x":1}}`,
		`{"type":"result","call_id":"c","status":"ok","value":{"type":"files_tree","entries":[{"path":"a/b","hidden":-1}],"total":-1}}`,
		`{"type":"result","call_id":"c","status":"ok","value":{"type":"files_glob","paths":["a"],"total":0}}`,
		`{"type":"result","call_id":"c","status":"ok","value":{"type":"files_json_read","value":"not json"}}`,
		`{"type":"result","call_id":"c","status":"ok","value":{"type":"files_read","raw":true,"content":"x","bytes":-1}}`,
		`{"type":"result","call_id":"c","status":"ok","kept":{"lines":9},"value":{"type":"files_glob","paths":["a"],"total":20}}`,
		`{"type":"result","call_id":"c","status":"ok","kept":{},"value":{"type":"files_search","matches":[{"path":"a","line":1,"text":"x","cut":-1}],"total":-2,"stopped":true}}`,
		`{"type":"result","call_id":"c","status":"ok","kept":{"lines":-1},"value":{"type":"files_read","content":"xx\ny","line_bytes":9,"first_line":2,"total_lines":9,"truncated":true}}`,
		`{"type":"result","call_id":"c","status":"ok","kept":{},"value":{"type":"command_run","stdout":"a\n[... x","stderr":"e","truncated":true,"reason":"timeout"}}`,
		`{"type":"result","call_id":"c","status":"ok","value":{"type":"result_read","call_id":"d","part":"text","content":"x\n\u0001y","first_line":2,"first_column":-7,"line_bytes":900,"lines":2,"total_lines":1}}`,
		`{"type":"result","call_id":"c","status":"timeout","error":{"code":"x","message":"\n"},"value":{"type":"code_run","reason":"timeout"}}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		result, err := wire.DecodeResult(body)
		if err != nil {
			t.Skip()
		}
		for _, tool := range slices.Concat(toolset.Core(), named("openrath"), named("smithers"), named("files")) {
			if tool.Format == nil {
				require.NotPanics(t, func() { tool.Render(result) }, "Text would hide a panic")
			} else {
				require.NotPanics(t, func() { tool.Format.Text(tools.Answer{Tool: tool.Name, Arguments: `{"path":"a"}`, Result: result}) })
			}
			out := tool.Text(result)
			switch {
			case tool.Format == nil:
				require.NotEmpty(t, out)
			case tool.Format.Note != nil:
				require.True(t, json.Valid([]byte(out)), out)
			}
			require.True(t, utf8.ValidString(out))
			require.LessOrEqual(t, utf8.RuneCountInString(out), prose.MaxText)
		}
	})
}
