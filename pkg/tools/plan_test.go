package tools_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/modeltext/argument"
	"github.com/toolfleet/toolfleet/internal/modeltext/prose"
	"github.com/toolfleet/toolfleet/internal/modeltext/render"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
	"github.com/toolfleet/toolfleet/pkg/tools/toolset"
)

var scope = tools.Scope{Session: "session-1", Sandbox: "box"}

func coreTable(tb testing.TB) *tools.Table {
	tb.Helper()
	table, err := tools.NewTable(toolset.Core()...)
	require.NoError(tb, err)
	return table
}

// echoing makes a tool that hands its arguments to got.
func echoing(schema string, got *json.RawMessage) tools.Tool {
	echo := tool("echo", schema)
	echo.Plan = func(_ tools.Scope, args json.RawMessage) (tools.Plan, *protocol.Error) {
		*got = args
		return tools.Plan{Payload: wire.Noop{}}, nil
	}
	return echo
}

func TestPlan_UnknownToolNamesTheToolsThereAre(t *testing.T) {
	t.Parallel()
	table := coreTable(t)
	for name, near := range map[string]string{
		"raed": "read", "Read": "read", "read_file": "read", "functions.grep": "grep", "runcode": "run_code",
		"lst": "list", "exist": "exists", "BASH": "bash", "code": "run_code",
		"teleport": "", "": "", "日本語": "", strings.Repeat("x", 5000): "", "a\xffb\x00": "",
	} {
		t.Run(fmt.Sprintf("%.20q", name), func(t *testing.T) {
			t.Parallel()
			got, _, err := table.Plan(scope, name, "{}")
			require.Nil(t, got)
			require.Equal(t, codes.UnknownTool, err.Code)
			require.Contains(t, err.Message, "The tools are: bash, edit, exists, glob, grep, json_read, json_write, list, multi_edit, process, read, run_code, tree, write.")
			require.True(t, utf8.ValidString(err.Message))
			require.Less(t, len(err.Message), 1000)
			if near == "" {
				require.NotContains(t, err.Message, "Did you mean")
			} else {
				require.Contains(t, err.Message, fmt.Sprintf("Did you mean %q?", near))
			}
		})
	}
}

func TestPlan_BlankArgumentsAreTheEmptyObject(t *testing.T) {
	t.Parallel()
	for _, raw := range []string{"", " ", "\n\t ", "{}", " {} \n"} {
		got, plan, err := coreTable(t).Plan(scope, "list", raw)
		require.Nil(t, err, "%q", raw)
		require.Equal(t, "list", got.Name)
		require.Equal(t, protocol.FilesList{}, plan.Payload)
	}
}

func TestPlan_RefusesArgumentsInWords(t *testing.T) {
	t.Parallel()
	table := coreTable(t)
	for name, test := range map[string]struct {
		tool, raw string
		says      []string
	}{
		"cut off":                {"read", `{"path":"a`, []string{"not JSON", "cut off"}},
		"one brace":              {"read", `{`, []string{"not JSON", "cut off"}},
		"no JSON at all":         {"read", `path=a`, []string{"not JSON", "byte 1"}},
		"an unquoted key":        {"read", `{path: "a"}`, []string{"not JSON", "byte 2"}},
		"single quotes":          {"read", `{'path': 'a'}`, []string{"not JSON"}},
		"a trailing comma":       {"read", `{"path":"a",}`, []string{"not JSON"}},
		"a raw line feed":        {"read", "{\"path\":\"a\nb\"}", []string{"not JSON"}},
		"two objects":            {"read", `{"path":"a"}{"path":"b"}`, []string{"one JSON object and nothing else", "byte 13"}},
		"trailing text":          {"read", `{"path":"a"} please`, []string{"one JSON object and nothing else"}},
		"an array":               {"read", `["a"]`, []string{"must be one JSON object, not an array"}},
		"a string":               {"read", `"{\"path\":\"a\"}"`, []string{"not a string (do not encode the object a second time)"}},
		"a number":               {"read", `-7`, []string{"not a number"}},
		"a boolean":              {"read", `true`, []string{"not a boolean"}},
		"null":                   {"list", `null`, []string{"not null"}},
		"a key twice":            {"read", `{"path":"a","path":"b"}`, []string{"path: is there more than once"}},
		"a key twice, escaped":   {"read", `{"path":"a","p\u0061th":"a"}`, []string{"path: is there more than once"}},
		"two keys twice":         {"write", `{"path":"a","content":"","path":"b","content":""}`, []string{"- path: is there", "- content: is there"}},
		"a key twice, and more":  {"read", `{"offset":0,"offset":1,"file":1}`, []string{"- offset: is there more", "- file: there is no such", "- path: is required"}},
		"not UTF-8":              {"read", "{\"path\":\"a\xff\"}", []string{"not valid UTF-8"}},
		"half a surrogate pair":  {"write", `{"path":"a","content":"x\ud83dy"}`, []string{"surrogate"}},
		"the wrong half":         {"write", `{"path":"a","content":"\ude00"}`, []string{"surrogate"}},
		"missing":                {"read", `{}`, []string{"path: is required, but missing"}},
		"blank and required":     {"read", ``, []string{"path: is required, but missing", "You sent no arguments."}},
		"an extra property":      {"read", `{"path":"a","file":"b"}`, []string{"file: there is no such property; allowed are limit, offset, path"}},
		"a property in capitals": {"read", `{"path":"a","Path":"b"}`, []string{"Path: there is no such property"}},
		"a wrong type":           {"read", `{"path":5}`, []string{"path: must be string, not number"}},
		"null for required":      {"read", `{"path":null}`, []string{"path: must be string, not null"}},
		"a fraction":             {"read", `{"path":"a","limit":1.5}`, []string{"limit: must be integer, not number"}},
		"a spelled fraction":     {"read", `{"path":"a","limit":"1.5"}`, []string{"limit: must be integer, not number"}},
		"too small":              {"read", `{"path":"a","offset":0}`, []string{"offset: is 0, must be 1 or more"}},
		"too big":                {"bash", `{"command":"a","timeout":3600.5}`, []string{"timeout: is 3600.5, must be 3600 or less"}},
		"not positive":           {"bash", `{"command":"a","timeout":0}`, []string{"timeout: is 0, must be more than 0"}},
		"a huge exponent":        {"bash", `{"command":"a","timeout":1e999999999}`, []string{"timeout: the number 1e999999999 is out of range"}},
		"a tiny exponent":        {"bash", `{"command":"a","timeout":1e-999999999}`, []string{"timeout: the number 1e-999999999 is out of range"}},
		"a spelled huge number":  {"read", `{"path":"a","limit":"1e9999999999"}`, []string{"limit: must be integer, not string"}},
		"very many digits":       {"read", `{"path":"a","limit":` + strings.Repeat("9", 500) + `}`, []string{"limit: the number 999", "out of range"}},
		"an empty command":       {"bash", `{"command":""}`, []string{"command: has 0 characters, must have 1 or more"}},
		"not in the list":        {"run_code", `{"code":"a","language":"perl"}`, []string{`language: is "perl", must be one of "python", "sh", "node", "go"`}},
		"too deep":               {"list", strings.Repeat(`{"path":`, 200) + "1" + strings.Repeat("}", 200), []string{"128 levels"}},
		"an empty edit":          {"edit", `{"path":"a","old":"","new":"b"}`, []string{"old: has 0 characters"}},
		"everything at once": {
			"read", `{"offset":0,"limit":"many","file":1,"name":2}`,
			[]string{"path: is required", "offset: is 0", "limit: must be integer, not string", "file: there is no such", "name: there is no such"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, plan, err := table.Plan(scope, test.tool, test.raw)
			require.NotNil(t, err)
			require.Equal(t, protocol.CodeInvalidArguments, err.Code, err.Message)
			require.Equal(t, test.tool, got.Name)
			require.Equal(t, tools.Plan{}, plan)
			for _, word := range test.says {
				require.Contains(t, err.Message, word)
			}
			require.Contains(t, err.Message, `Expected schema: {"type":"object","properties":{`)
			require.True(t, utf8.ValidString(err.Message))
		})
	}
}

func TestPlan_TheMessageAboutArgumentsIsWhole(t *testing.T) {
	t.Parallel()
	_, _, err := coreTable(t).Plan(scope, "exists", `{"file":"a"}`)
	require.Equal(t, `The arguments of exists were not accepted:
- file: there is no such property; allowed are path
- path: is required, but missing
Expected schema: {"type":"object","properties":{"path":{"type":"string","description":"The path, relative to the workspace."}},"required":["path"],"additionalProperties":false}
You sent: {"file":"a"}
Correct the arguments and call the tool again.`, err.Message)
}

func TestPlan_EchoesAtMostTwoThousandCharactersAndSplitsNone(t *testing.T) {
	t.Parallel()
	table := coreTable(t)
	const prefix = `{"file":"`
	for _, extra := range []int{-1, 0, 1, 5000} {
		raw := prefix + strings.Repeat("é", argument.MaxEcho-len(prefix)-2+extra) + `"}`
		_, _, err := table.Plan(scope, "read", raw)
		require.True(t, utf8.ValidString(err.Message))
		_, echo, found := strings.Cut(err.Message, "You sent: ")
		require.True(t, found)
		echo, _, _ = strings.Cut(echo, "\n")
		if extra <= 0 {
			require.Equal(t, raw, echo)
			continue
		}
		echo, mark, found := strings.Cut(echo, " [")
		require.True(t, found)
		require.Equal(t, argument.MaxEcho, utf8.RuneCountInString(echo))
		require.True(t, strings.HasPrefix(raw, echo))
		require.Equal(t, fmt.Sprintf("... and %d more characters]", extra), mark)
	}
}

func TestPlan_ManyFaultsAreCounted(t *testing.T) {
	t.Parallel()
	table := newTable(t, tool("sum", `{"type":"object","properties":{"numbers":{"type":"array","items":{"type":"number"}}}}`))
	_, _, err := table.Plan(scope, "sum", `{"numbers":[`+strings.Repeat(`"x",`, 69)+`"x"]}`)
	require.Equal(t, 51, strings.Count(err.Message, "\n- "))
	require.Contains(t, err.Message, "numbers.19: must be number, not string")
	require.Contains(t, err.Message, "and 20 more")
}

func TestPlan_FaultsOfEverySort(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ schema, raw, says string }{
		"const":            {`"properties":{"a":{"const":"x"}}`, `{"a":"y"}`, `a: is "y", must be "x"`},
		"pattern":          {`"properties":{"a":{"pattern":"^x"}}`, `{"a":"y"}`, `a: is "y", must match the pattern ^x`},
		"maxLength":        {`"properties":{"a":{"maxLength":1}}`, `{"a":"éé"}`, `a: has 2 characters, must have 1 or fewer`},
		"minItems":         {`"properties":{"a":{"minItems":2}}`, `{"a":[1]}`, `a: has 1 items, must have 2 or more`},
		"maxItems":         {`"properties":{"a":{"maxItems":0}}`, `{"a":[1]}`, `a: has 1 items, must have 0 or fewer`},
		"exclusiveMaximum": {`"properties":{"a":{"exclusiveMaximum":1}}`, `{"a":1}`, `a: is 1, must be less than 1`},
		"uniqueItems":      {`"properties":{"a":{"uniqueItems":true}}`, `{"a":[1,1]}`, `a: items at 0 and 1 are equal`},
		"minProperties":    {`"minProperties":1`, `{}`, `minProperties: got 0, want 1`},
		"nested":           {`"properties":{"a":{"type":"array","items":{"type":"object","required":["b"]}}}`, `{"a":[{"b":1},{}]}`, `a.1.b: is required, but missing`},
		"by reference": {
			`"properties":{"a":{"$ref":"#/$defs/d~1e"}},"$defs":{"d/e":{"type":"object","properties":{"x":{}},"additionalProperties":false}}`,
			`{"a":{"y":1}}`, `a.y: there is no such property; allowed are x`,
		},
		"nothing allowed": {`"additionalProperties":false`, `{"a":1}`, `a: there is no such property; none are allowed`},
		"any of": {
			`"properties":{"a":{"anyOf":[{"type":"integer"},{"type":"null"}]}}`, `{"a":"x"}`,
			`a: fits none of the allowed forms (a: must be integer, not string; or a: must be null, not string)`,
		},
		"one of, two fit":    {`"properties":{"a":{"oneOf":[{"type":"integer"},{"type":"number"}]}}`, `{"a":1}`, `a: fits more than one of the allowed forms`},
		"all of":             {`"allOf":[{"required":["a"]},{"required":["b"]}]`, `{}`, "- a: is required, but missing\n- b: is required, but missing"},
		"dependent required": {`"dependentRequired":{"a":["b"]}`, `{"a":1}`, `'b'`},
		"not":                {`"not":{"required":["a"]}`, `{"a":1}`, `'not' failed`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			table := newTable(t, tool("x", `{"type":"object",`+test.schema+`}`))
			_, _, err := table.Plan(scope, "x", test.raw)
			require.NotNil(t, err)
			require.Contains(t, err.Message, test.says)
		})
	}
}

func TestPlan_TakesStringsThatCanMeanOnlyOneThing(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ schema, raw, want string }{
		"an integer":                    {`{"type":"integer"}`, `"12"`, `12`},
		"a negative integer":            {`{"type":"integer"}`, `"-12"`, `-12`},
		"an integer with a fraction":    {`{"type":"integer"}`, `3.0`, `3`},
		"an integer with an exponent":   {`{"type":"integer"}`, `"2e3"`, `2000`},
		"a big integer":                 {`{"type":"integer"}`, `12345678901234567890`, `12345678901234567890`},
		"a number":                      {`{"type":"number"}`, `"1.50"`, `1.50`},
		"true":                          {`{"type":"boolean"}`, `"true"`, `true`},
		"False":                         {`{"type":"boolean"}`, `"False"`, `false`},
		"True":                          {`{"type":"boolean"}`, `"True"`, `true`},
		"a number or null":              {`{"type":["number","null"]}`, `"4"`, `4`},
		"a number or boolean":           {`{"type":["number","boolean"]}`, `"true"`, `true`},
		"a string stays":                {`{"type":"string"}`, `"12"`, `"12"`},
		"a string or number stays":      {`{"type":["string","number"]}`, `"12"`, `"12"`},
		"without a type it stays":       {`{}`, `"true"`, `"true"`},
		"in an array":                   {`{"type":"array","items":{"type":"integer"}}`, `["1",2]`, `[1,2]`},
		"in a tuple":                    {`{"type":"array","prefixItems":[{"type":"boolean"}],"items":{"type":"integer"}}`, `["true","2"]`, `[true,2]`},
		"in an object":                  {`{"type":"object","properties":{"b":{"type":"integer"}}}`, `{"b":"1","c":"1"}`, `{"b":1,"c":"1"}`},
		"behind a reference":            {`{"$ref":"#/$defs/n"}`, `"5"`, `5`},
		"html in a string is untouched": {`{"type":"string"}`, `"<a>&amp;\u2028"`, `"<a>&amp;\u2028"`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var got json.RawMessage
			table := newTable(t, echoing(`{"type":"object","properties":{"a":`+test.schema+`},"$defs":{"n":{"type":"integer"}}}`, &got))
			_, _, err := table.Plan(scope, "echo", `{"a":`+test.raw+`}`)
			require.Nil(t, err)
			require.JSONEq(t, `{"a":`+test.want+`}`, string(got))
			if test.want[0] >= '0' && test.want[0] <= '9' {
				require.Equal(t, `{"a":`+test.want+`}`, string(got), "numbers keep every digit")
			}
		})
	}
}

func TestPlan_TakesNoStringThatCouldMeanSomethingElse(t *testing.T) {
	t.Parallel()
	for _, test := range [][2]string{
		{"integer", `""`},
		{"integer", `" 1"`},
		{"integer", `"1 "`},
		{"integer", `"0x10"`},
		{"integer", `"01"`},
		{"integer", `"+1"`},
		{"integer", `"1,000"`},
		{"integer", `"ten"`},
		{"integer", `true`},
		{"number", `"NaN"`},
		{"number", `"Infinity"`},
		{"number", `"1."`},
		{"number", `"١"`},
		{"boolean", `"yes"`},
		{"boolean", `"1"`},
		{"boolean", `1`},
		{"boolean", `""`},
		{"null", `"null"`},
	} {
		var got json.RawMessage
		table := newTable(t, echoing(`{"type":"object","properties":{"a":{"type":"`+test[0]+`"}}}`, &got))
		_, _, err := table.Plan(scope, "echo", `{"a":`+test[1]+`}`)
		require.NotNil(t, err, test)
		require.Equal(t, protocol.CodeInvalidArguments, err.Code)
		require.Nil(t, got)
	}
}

func TestPlan_RecursiveSchemasEnd(t *testing.T) {
	t.Parallel()
	table := newTable(t,
		tool("tree", `{"type":"object","properties":{"left":{"$ref":"#"},"loop":{"$ref":"#/$defs/a"}},"$defs":{"a":{"$ref":"#/$defs/b"},"b":{"$ref":"#/$defs/a"}}}`))
	_, _, err := table.Plan(scope, "tree", `{"left":{"left":{"left":{}}}}`)
	require.Nil(t, err)
	_, _, err = table.Plan(scope, "tree", `{"loop":"1"}`)
	require.NotNil(t, err)
}

func TestPlan_ThePanicOfAToolIsItsResult(t *testing.T) {
	t.Parallel()
	for name, cause := range map[string]any{
		"a string": "boom", "an error": errors.New("boom"), "a long text with controls": "boom\x00" + strings.Repeat("é", 10_000),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bad := tool("bad", noArguments)
			bad.Plan = func(tools.Scope, json.RawMessage) (tools.Plan, *protocol.Error) { panic(cause) }
			got, plan, err := newTable(t, bad).Plan(scope, "bad", "")
			require.Equal(t, "bad", got.Name)
			require.Equal(t, tools.Plan{}, plan)
			require.Equal(t, protocol.CodePanic, err.Code)
			require.Contains(t, err.Message, "The tool bad is broken, it panicked: boom")
			require.Less(t, len(err.Message), 1500)
		})
	}
}

func TestPlan_ToolsThatPlanNothingAreBroken(t *testing.T) {
	t.Parallel()
	inline := func(context.Context) (string, *protocol.Error) { return "", nil }
	for name, plan := range map[string]tools.Plan{
		"nothing": {}, "both": {Inline: inline, Payload: wire.Noop{}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bad := tool("bad", noArguments)
			bad.Plan = func(tools.Scope, json.RawMessage) (tools.Plan, *protocol.Error) { return plan, nil }
			_, got, err := newTable(t, bad).Plan(scope, "bad", "")
			require.Equal(t, tools.Plan{}, got)
			require.Equal(t, protocol.CodeInternal, err.Code)
		})
	}
}

func TestPlan_RefusalsOfAToolPassThrough(t *testing.T) {
	t.Parallel()
	refusal := protocol.Errorf(protocol.CodePermission, "No.")
	strict := tool("strict", noArguments)
	strict.Plan = func(tools.Scope, json.RawMessage) (tools.Plan, *protocol.Error) {
		return tools.Plan{Payload: wire.Noop{}}, refusal
	}
	_, plan, err := newTable(t, strict).Plan(scope, "strict", "")
	require.Same(t, refusal, err)
	require.Equal(t, tools.Plan{}, plan)
}

func TestShown(t *testing.T) {
	t.Parallel()
	require.Equal(t, "x", render.Shown("x", "c-1", &protocol.Kept{}))
	fits := strings.Repeat("é", prose.MaxText)
	require.True(t, render.Fits(fits))
	require.Equal(t, fits, render.Shown(fits, "c-1", nil))
	for _, kept := range []*protocol.Kept{nil, {}} {
		text := render.Shown(fits+"x", "c-1", kept)
		require.LessOrEqual(t, utf8.RuneCountInString(text), prose.MaxText)
		require.Contains(t, text, " characters left out ...]")
		require.Equal(t, kept != nil, strings.HasSuffix(text, "\n[it was cut; all of it: read with path=\"result:c-1\"]"))
	}
}

func TestPlan_RunInline(t *testing.T) {
	t.Parallel()
	run := func(inline func(context.Context) (string, *protocol.Error)) (string, *protocol.Error) {
		return tools.Plan{Inline: inline}.RunInline(t.Context())
	}
	t.Run("returns the text", func(t *testing.T) {
		t.Parallel()
		type key struct{}
		ctx := context.WithValue(t.Context(), key{}, "given")
		text, err := tools.Plan{Inline: func(ctx context.Context) (string, *protocol.Error) {
			return fmt.Sprint(ctx.Value(key{})), nil
		}}.RunInline(ctx)
		require.Nil(t, err)
		require.Equal(t, "given", text)
	})
	t.Run("returns all of the text, and valid", func(t *testing.T) {
		t.Parallel()
		text, err := run(func(context.Context) (string, *protocol.Error) { return strings.Repeat("é", 100_000) + "\xff", nil })
		require.Nil(t, err)
		require.Equal(t, strings.Repeat("é", 100_000)+"\uFFFD", text)
	})
	t.Run("passes a failure on, with its text", func(t *testing.T) {
		t.Parallel()
		failure := protocol.Errorf(protocol.CodeToolFailed, "No.")
		text, err := run(func(context.Context) (string, *protocol.Error) { return "part", failure })
		require.Same(t, failure, err)
		require.Equal(t, "part", text)
	})
	t.Run("survives a panic", func(t *testing.T) {
		t.Parallel()
		text, err := run(func(context.Context) (string, *protocol.Error) { panic("boom") })
		require.Empty(t, text)
		require.Equal(t, protocol.CodePanic, err.Code)
		require.Contains(t, err.Message, "boom")
	})
	t.Run("refuses the plan of a call", func(t *testing.T) {
		t.Parallel()
		_, err := tools.Plan{Payload: wire.Noop{}}.RunInline(t.Context())
		require.Equal(t, protocol.CodeInternal, err.Code)
	})
}
