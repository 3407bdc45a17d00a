package argument_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/modeltext/argument"
)

func TestCompile_PatternsOfJavaScript(t *testing.T) {
	t.Parallel()
	for pattern, c := range map[string]struct {
		good, bad string // bad is "" when nothing is checked
	}{
		`^(?!\\.\\.)[a-z.]+$`:  {good: "a.b"},
		`(?<=x)y`:              {good: "nothing of it"},
		`^(a)\\1$`:             {good: "aa"},
		`^[\\u0041-\\u005A]+$`: {good: "AZ", bad: "az"},
		`^\\u{1F600}$`:         {good: "\U0001F600", bad: "x"},
		`^\\u0041\\u0042$`:     {good: "AB", bad: "A"},
		`^a{1,2000}$`:          {good: "a"},
		`^[^]+$`:               {good: "any\ntext"},
		`^[a-z]\\/\\-$`:        {good: "a/-", bad: "a"},
		`^\\\\u0041$`:          {good: `\u0041`, bad: "A"},
	} {
		schema, err := argument.Compile(json.RawMessage(`{"type": "object", "properties": {"p": {"type": "string", "pattern": "` + pattern + `"}, "n": {"type": "integer"}}}`))
		require.NoError(t, err, pattern)
		read := func(p string, n any) bool {
			body, err := json.Marshal(map[string]any{"p": p, "n": n})
			require.NoError(t, err)
			_, problem := schema.Read("tool", string(body), nil)
			return problem == nil
		}
		require.True(t, read(c.good, 1), pattern)
		require.False(t, read(c.good, "many"), "%s: the rest is checked", pattern)
		if c.bad != "" {
			require.False(t, read(c.bad, 1), pattern)
		}
	}
}

func TestCompile_PatternsOfPropertyNames(t *testing.T) {
	t.Parallel()
	schema, err := argument.Compile(json.RawMessage(`{"type": "object", "patternProperties": {"^(?!x)": {"type": "string"}, "^i_": {"type": "integer"}}, "additionalProperties": false}`))
	require.NoError(t, err)
	_, problem := schema.Read("tool", `{"a": 1.5, "i_a": 2}`, nil)
	require.Nil(t, problem)
	_, problem = schema.Read("tool", `{"i_a": "many"}`, nil)
	require.NotNil(t, problem)
}

func TestCompile_NoPatternAnywhere(t *testing.T) {
	t.Parallel()
	for _, pattern := range []string{`[a`, `(a`, `a)`} {
		_, err := argument.Compile(json.RawMessage(`{"type": "object", "properties": {"p": {"pattern": "` + pattern + `"}}}`))
		require.Error(t, err, pattern)
	}
}
