package manifest_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
	"github.com/toolfleet/toolfleet/pkg/tools/manifest"
)

const whole = `# A comment.
name: word_count
description: |
  Count the words of a text file.
  Returns {"words": N}.
parameters:
  type: object
  properties:
    path: {type: string, description: The file.}
    at_least: {type: integer, default: 1, minimum: 0}
    since: {type: string, default: 2026-01-02}
  required: [path]
  additionalProperties: false
command: [python3, "{tools}/word_count.py", --json]
env: {PYTHONUTF8: "1"}
resources:
  - key: sandbox/{$sandbox}/{path...}
    access: shared
delivery: idempotent
timeout: 90s
pool: gpu
min_level: paths
`

var scope = tools.Scope{Session: "s", Sandbox: "box"}

func planOf(t *testing.T, tool tools.Tool, arguments string) tools.Plan {
	t.Helper()
	table, err := tools.NewTable(tool)
	require.NoError(t, err)
	_, plan, refusal := table.Plan(scope, tool.Name, arguments)
	require.Nil(t, refusal)
	return plan
}

func TestParse_EveryField(t *testing.T) {
	t.Parallel()
	tool, problems := manifest.Parse("word_count.yaml", []byte(whole))
	require.Empty(t, problems)
	require.Equal(t, "word_count", tool.Name)
	require.Equal(t, "Count the words of a text file.\nReturns {\"words\": N}.\n", tool.Description)
	inOrder := `{"type":"object","properties":{"path":{"type":"string","description":"The file."},` +
		`"at_least":{"type":"integer","default":1,"minimum":0},"since":{"type":"string","default":"2026-01-02"}},` +
		`"required":["path"],"additionalProperties":false}`
	require.Equal(t, []byte(inOrder), []byte(tool.Schema), "in the order in which they are written")
	require.Equal(t, tools.Plan{
		Payload: protocol.ToolRun{
			Argv: []string{"python3", "{tools}/word_count.py", "--json"}, Arguments: []byte(`{"path":"./a.txt","at_least":2}`),
			Env: map[string]string{"PYTHONUTF8": "1"},
		},
		Resources: []protocol.Use{{Key: "sandbox/box/a.txt", Access: protocol.Shared}},
		Delivery:  protocol.Idempotent, Timeout: 90 * time.Second, Pool: "gpu", MinLevel: "paths",
	}, planOf(t, tool, `{"path":"./a.txt","at_least":"2"}`))
}

func TestParse_Defaults(t *testing.T) {
	t.Parallel()
	tool, problems := manifest.Parse("now.json", []byte(`{"name": "now", "description": "The time.", "command": "date +%s", "output": "text"}`))
	require.Empty(t, problems)
	plan := planOf(t, tool, "")
	require.Equal(t, tools.Plan{Payload: protocol.ToolRun{Argv: []string{"sh", "-c", "date +%s"}, Arguments: []byte(`{}`), Text: true}}, plan)

	tool, problems = manifest.Parse("now.yaml", []byte("name: now\ndescription: The time.\ncommand: [date]\nresources: []\n"))
	require.Empty(t, problems)
	plan = planOf(t, tool, "")
	require.NotNil(t, plan.Resources, "nothing at all")
	require.Empty(t, plan.Resources)

	tool, problems = manifest.Parse("refund.yaml", []byte(`
name: refund
description: Pay back.
parameters: {type: object, properties: {account: {type: string}}, required: [account]}
handler: refund
resources: [{key: "account/{account}"}]
delivery: at_most_once
`))
	require.Empty(t, problems)
	plan = planOf(t, tool, `{"account":"acme"}`)
	require.Equal(t, protocol.Kind("refund"), wire.KindOf(plan.Payload))
	require.Equal(t, protocol.AtMostOnce, plan.Delivery)
	require.Equal(t, []protocol.Use{{Key: "account/acme", Access: protocol.Exclusive}}, plan.Resources)
}

// TestParse_ProblemsHaveTheirLine changes one line of a manifest that is fine, and
// expects it to be blamed.
func TestParse_ProblemsHaveTheirLine(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ old, new, want string }{
		{"name: word_count", "nam: word_count", `f.yaml:2: there is no field "nam"; the fields are name, description`},
		{"name: word_count", "name: word count", "f.yaml:2: name: character ' ' at 4"},
		{"name: word_count", "name: [a]", "f.yaml:2: a list is not what belongs here: it must be a text"},
		{"name: word_count", "\"name: word_count", "f.yaml:"},
		{"env: {PYTHONUTF8: \"1\"}", "env: {PYTHONUTF8: \"1\"", "f.yaml:15: did not find expected ',' or '}'"},
		{"required: [path]", "required: [path", "f.yaml:12: did not find expected ',' or ']'"},
		{"env: {PYTHONUTF8: \"1\"}", "env: {A=B: \"1\"}", `f.yaml:15: env "A=B": `},
		{"timeout: 90s", "timeout: 90", `f.yaml:20: timeout "90": must be a time such as 90s`},
		{"timeout: 90s", "timeout: 48h", `f.yaml:20: timeout 48h0m0s: must be 0 to 24h0m0s`},
		{"delivery: idempotent", "delivery: twice", `f.yaml:19: delivery "twice": must be`},
		{"pool: gpu", "pool: session", `f.yaml:21: pool "session": is that of the coordinators`},
		{"pool: gpu", "pool: GPU", `f.yaml:21: invalid name: pool "GPU"`},
		{"min_level: paths", "min_level: high", `f.yaml:22: min_level "high": must be one of none, paths, full, kernel`},
		{"access: shared", "acces: shared", `f.yaml:18: there is no field "acces"; the fields are key, access`},
		{"access: shared", "access: read", `f.yaml:18: invalid resource "sandbox/{$sandbox}/{path...}": access "read"`},
		{"{path...}", "{file...}", "f.yaml:17: invalid resource: {file}: the tool has no such argument"},
		{"key: sandbox/{$sandbox}/{path...}", "key: sandbox/{path}", "f.yaml:17: invalid resource"},
		{"resources:\n", "resources: {}\nx:\n", `f.yaml:17: there is no field "x"`},
		{"path: {type: string,", "path: {type: text,", `f.yaml:9: parameters: at "/properties/path/type": `},
		{"minimum: 0", "minimum: low", `f.yaml:10: parameters: at "/properties/at_least/minimum": `},
		{"  type: object", "  type: array", `f.yaml:6: parameters: must be a JSON object with "type": "object"`},
		{"required: [path]", "? [a]\n  : b", "f.yaml:12: parameters: names of properties must be plain texts"},
		{"default: 1,", "default: .inf,", `f.yaml:10: parameters: ".inf" is no value of JSON`},
		{"command: [python3, \"{tools}/word_count.py\", --json]", "command: {a: b}", "f.yaml:14: command: must be a list of texts"},
		{"command: [python3, \"{tools}/word_count.py\", --json]", "command: []", "f.yaml:14: command: must name a program"},
		{"command: [python3, \"{tools}/word_count.py\", --json]", "output: xml\ncommand: [a]", `f.yaml:14: output "xml": must be json or text`},
		{"command:", "handler: count\ncommand:", "f.yaml:14: exactly one of command (a program) and handler"},
		{"command: [python3, \"{tools}/word_count.py\", --json]\n", "handler: count\n", "f.yaml:14: output and env are of commands"},
		{"command: [python3, \"{tools}/word_count.py\", --json]\nenv: {PYTHONUTF8: \"1\"}", "handler: files_read", "f.yaml:14: invalid payload kind"},
		{"delivery: idempotent", "retry: {attempts: 3}", `delivery is "rollback", must be "idempotent": a call that is started again must have the same effect`},
		{"timeout: 90s", "retry: {attempts: 1}", "retry.attempts 1: must be 2 to 100"},
		{"timeout: 90s", "retry: {attempts: 2, wait: 5}", `retry "5": must be a time such as 90s or 2m`},
		{"timeout: 90s", "retry: {attempts: 2, tries: 5}", `there is no field "tries"`},
		{"pool: gpu", "background: perhaps", "f.yaml:21: `perhaps` is not what belongs here: it must be true or false"},
		{"env: {PYTHONUTF8: \"1\"}", "env: [a]", "f.yaml:15: a list is not what belongs here: it must be a mapping"},
		{"name: word_count", "name: word_count\nname: b", "f.yaml:3: mapping key \"name\" already defined at line 2"},
		{"min_level: paths\n", "min_level: paths\n---\nname: other\n", "f.yaml: has more than one document"},
	} {
		t.Run(test.new, func(t *testing.T) {
			t.Parallel()
			require.Contains(t, whole, test.old)
			_, problems := manifest.Parse("f.yaml", []byte(strings.Replace(whole, test.old, test.new, 1)))
			require.NotEmpty(t, problems)
			var all []string
			for _, p := range problems {
				all = append(all, p.Error())
			}
			require.Contains(t, strings.Join(all, "\n"), test.want)
		})
	}
}

// Every fault of a manifest has the line of its own field, and says all that it is about.
func TestParse_EveryFaultHasItsOwnLine(t *testing.T) {
	t.Parallel()
	_, problems := manifest.Parse("f.yaml", []byte(`name: count
description: Count.
command: [count]
min_level: some
env: {"": a}
pool: "a b"
timeout: 30h
`))
	var all []string
	for _, p := range problems {
		all = append(all, p.Error())
	}
	require.Equal(t, []string{
		`f.yaml:4: min_level "some": must be one of none, paths, full, kernel`,
		`f.yaml:5: env "": a name must not be empty or contain "=", and nothing may contain a NUL byte`,
		`f.yaml:6: invalid name: pool "a b": must be 1 to 32 lower-case letters, digits and '-'`,
		`f.yaml:7: timeout 30h0m0s: must be 0 to 24h0m0s`,
	}, all)
}

// A fault inside of a field has the line of its own place, whatever else is wrong.
func TestParse_FaultsHaveTheLineOfTheirPlace(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		content string
		want    []string
	}{
		"a stateful tool": {`name: a
description: A.
handler: a
input:
  type: object
  properties:
    x:
      type: intege
resources:
  - key: a/b
  - key: a/{nope}
  - key: b/c
    access: shared
  - key: a/b/{gone...}
`, []string{
			`f:8: input: at "/properties/x/type": value must be one of 'array', 'boolean', 'integer', 'null', 'number', 'object', 'string'`,
			`f:8: input: at "/properties/x/type": got string, want array`,
			`f:11: invalid resource "a/{nope}": the first two segments must be "a/b", as in the first resource`,
			`f:12: invalid resource "b/c": the first two segments must be "a/b", as in the first resource`,
			`f:13: resources: b/c: a stateful tool uses its resources exclusively`,
		}},
		"a command": {`name: b
description: B.
command:
  - x
env:
  A: "1"
  "B=": "1"
resources:
  - key: sandbox/x
    access: reed
  - key: "{"
`, []string{
			`f:7: env "B=": a name must not be empty or contain "=", and nothing may contain a NUL byte`,
			`f:10: invalid resource "sandbox/x": access "reed": must be "shared" or "exclusive"`,
			`f:11: invalid resource "{": a key needs two segments or more, as in account/{account}`,
		}},
		"an argument that is missing": {`name: b
description: B.
command: [b]
resources:
  - key: account/b
  - key: account/b/{who}
  - key: account/b/{what...}
`, []string{
			`f:6: invalid resource: {who}: the tool has no such argument`,
			`f:7: invalid resource: {what}: the tool has no such argument`,
		}},
		"a native tool": {`name: c
description: C.
native:
  openai:
    type: x
  other:
    kind: y
`, []string{`f:6: native.other: must be a JSON object with a "type"`}},
		"all sorts": {`name: d
description: D.
command: [a]
parameters:
  properties:
    a:
      required: a
    b:
      type: texts
  type: array
timeout: 5
output: x
colour: red
background: perhaps
pool: session
`, []string{
			`f:4: parameters: must be a JSON object with "type": "object"`,
			`f:7: parameters: at "/properties/a/required": got string, want array`,
			`f:9: parameters: at "/properties/b/type": value must be one of 'array', 'boolean', 'integer', 'null', 'number', 'object', 'string'`,
			`f:9: parameters: at "/properties/b/type": got string, want array`,
			`f:11: timeout "5": must be a time such as 90s or 2m`,
			`f:12: output "x": must be json or text`,
			`f:13: there is no field "colour"; the fields are name, description, parameters, command, handler, input, output, env, resources, delivery, retry, revert, timeout, pool, min_level, background, help, hint, native, kind`,
			"f:14: `perhaps` is not what belongs here: it must be true or false",
			`f:15: pool "session": is that of the coordinators`,
		}},
		"a field of another name": {"name: e\ndescription: E.\ncomand: [a]\n", []string{
			`f:3: there is no field "comand"; the fields are name, description, parameters, command, handler, input, output, env, resources, delivery, retry, revert, timeout, pool, min_level, background, help, hint, native, kind`,
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, problems := manifest.Parse("f", []byte(test.content))
			all := make([]string, 0, len(problems))
			for _, p := range problems {
				all = append(all, p.Error())
			}
			require.Equal(t, test.want, all)
		})
	}
}

func TestParse_WhatIsNoManifestAtAll(t *testing.T) {
	t.Parallel()
	for content, want := range map[string]string{
		"":                               "f:1: must be a mapping with the fields name",
		"- a\n":                          "f:1: must be a mapping",
		"name: x\n":                      "f:1: exactly one of command",
		"name: x\ndescription: y\n}\n":   "f:3: did not find expected",
		"{\n\"a\": 1\n\"b\": 2}\n":       "f:3: did not find expected ',' or '}'",
		"\tname: x":                      "f:1: found character that cannot start any token",
		"name: x\n  description: y\n":    "f:2: mapping values are not allowed",
		strings.Repeat("#", 256<<10+1):   "f: has 262145 bytes, at most 262144",
		"name: &a [*a]\ncommand: [a]\n":  "f:1: a list is not what belongs here: it must be a text",
		"name: x\ndescription: &d y\n<<": "f:",
	} {
		_, problems := manifest.Parse("f", []byte(content))
		require.NotEmpty(t, problems)
		var all []string
		for _, p := range problems {
			all = append(all, p.Error())
		}
		require.Contains(t, strings.Join(all, "\n"), want)
	}
}

func TestParse_SchemasThatUnfoldAreBounded(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	b.WriteString("name: bomb\ndescription: Boom.\ncommand: [a]\nparameters:\n  type: object\n  a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n")
	for i := range 9 {
		b.WriteString("  a" + string(rune('1'+i)) + ": &a" + string(rune('1'+i)) + " [" +
			strings.TrimSuffix(strings.Repeat("*a"+string(rune('0'+i))+", ", 10), ", ") + "]\n")
	}
	_, problems := manifest.Parse("f", []byte(b.String()))
	require.NotEmpty(t, problems)
}

// Few values that are long, and names of properties, unfold, too.
func TestParse_LongTextsThatUnfoldAreBounded(t *testing.T) {
	t.Parallel()
	const head = "name: bomb\ndescription: Boom.\ncommand: [a]\nparameters:\n  type: object\n"
	long := strings.Repeat("x", 100_000)
	for document, line := range map[string]int{
		"  a: &a " + long + "\n  b: [" + strings.Repeat("*a,", 10_000) + "]\n":        7,
		"  a: &a {? " + long + " : x}\n  b: [" + strings.Repeat("*a,", 9_000) + "]\n": 6,
	} {
		_, problems := manifest.Parse("f", []byte(head+document))
		require.Equal(t, []manifest.Problem{{File: "f", Line: line, Message: "parameters: more than 2097152 bytes as JSON"}}, problems)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(whole))
	f.Add([]byte(`{"name":"a","description":"b","command":"c"}`))
	f.Add([]byte("name: a\nparameters: &a {type: object, x: *a}\n"))
	f.Add([]byte("kind: mcp\nname: a\ncommand: a\ntools: &a {x: {resources: [{key: sandbox/x}], timeout: 1}, y/~z: *a}\n"))
	f.Fuzz(func(t *testing.T, content []byte) {
		server, ofServer := manifest.ParseServer("f", content)
		if len(ofServer) == 0 {
			require.NoError(t, server.Validate())
		}
		tool, problems := manifest.Parse("f", content)
		for _, p := range slices.Concat(problems, ofServer) {
			require.NotEmpty(t, p.Message)
			require.LessOrEqual(t, p.Line, 2+strings.Count(string(content), "\n")+strings.Count(string(content), "\r"))
		}
		if len(problems) == 0 {
			_, err := tools.NewTable(tool)
			require.NoError(t, err, "what has no problems is a tool")
		}
	})
}

func TestParse_Documentation(t *testing.T) {
	t.Parallel()
	tool, problems := manifest.Parse("f", []byte("name: a\ndescription: A.\ncommand: [a]\nhelp: |\n  More.\nhint: Use it.\n"))
	require.Empty(t, problems)
	require.Equal(t, "More.\n", tool.Help)
	require.Equal(t, "Use it.", tool.Hint)

	tool, problems = manifest.Parse("f", []byte("name: web\ndescription: Search.\nnative: {openai: {type: web_search, search_context_size: low}}\n"))
	require.Empty(t, problems)
	require.JSONEq(t, `{"type":"web_search","search_context_size":"low"}`, string(tool.Native["openai"]))
	for content, want := range map[string]string{
		"native: [a]":                            "f:3: native: must be declarations by provider",
		"native: {openai: {kind: x}}":            `f:3: native.openai: must be a JSON object with a "type"`,
		"native: {openai: {type: x}}\npool: gpu": "f:4: pool: a native tool is run by the model's provider",
	} {
		_, problems = manifest.Parse("f", []byte("name: web\ndescription: Search.\n"+content))
		require.Len(t, problems, 1)
		require.Contains(t, problems[0].Error(), want)
	}
}

func TestParse_StatefulTools(t *testing.T) {
	t.Parallel()
	const head = "name: a\ndescription: A.\n"
	tool, problems := manifest.Parse("f", []byte(head+"handler: a\ninput: {$ref: \"#/$defs/n\", $defs: {n: {type: integer}}}\nresources: [{key: a/b}]\n"))
	require.Empty(t, problems)
	table, err := tools.NewTable(tool)
	require.NoError(t, err)
	require.Equal(t, []string{"a", "tool_continue", "tool_end"}, table.Names())
	opened := tools.Opened{Tool: "a", Arguments: "{}", Place: tools.Place{ID: "opened", Turn: 1, Step: 1}}
	_, plan, fault := table.Continue(tools.Scope{Session: "s", Sandbox: "s"}, opened, false, `{"handle":"h","input":3}`)
	require.Nil(t, fault)
	require.Equal(t, wire.DialogContinue{Dialog: "opened", Input: []byte("3")}, plan.Payload)
	_, _, fault = table.Continue(tools.Scope{Session: "s", Sandbox: "s"}, opened, false, `{"handle":"h"}`)
	require.Equal(t, protocol.CodeInvalidArguments, fault.Code)

	for content, want := range map[string]string{
		"command: [a]\ninput: {type: integer}":                                        "f:4: input is of handlers",
		"handler: a\ninput: {type: intege}":                                           "f:4: input: ",
		"handler: a\ninput: {type: integer}\nbackground: true":                        "f:5: background: a stateful tool cannot be a job",
		"handler: a\ninput: {type: integer}\nresources: [{key: a/b, access: shared}]": "f:5: ",
		"native: {openai: {type: x}}\ninput: {type: integer}":                         "f:4: input: a native tool",
	} {
		_, problems = manifest.Parse("f", []byte(head+content))
		require.NotEmpty(t, problems, content)
		require.Contains(t, problems[0].Error(), want)
	}
	_, problems = manifest.Parse("f", []byte("name: tool_continue\ndescription: A.\nhandler: a\n"))
	require.Contains(t, problems[0].Error(), "tool about handles")
}
