package tools_test

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
)

type convertArguments struct {
	Amount float64  `json:"amount" jsonschema:"how much"`
	To     []string `json:"to,omitempty"`
	Deep   *struct {
		N int `json:"n"`
	} `json:"deep,omitempty"`
}

func runFunction(t *testing.T, tool tools.Tool, arguments string) (string, *protocol.Error) {
	t.Helper()
	table, err := tools.NewTable(tool)
	require.NoError(t, err)
	_, plan, refusal := table.Plan(tools.Scope{Session: "s", Sandbox: "s"}, tool.Name, arguments)
	if refusal != nil {
		return "", refusal
	}
	require.NotNil(t, plan.Inline)
	return plan.RunInline(t.Context())
}

func TestNew_SchemaIsThatOfTheArguments(t *testing.T) {
	t.Parallel()
	tool := tools.New("convert", "Convert.", func(context.Context, convertArguments) (string, error) { return "", nil })
	require.JSONEq(t, `{
		"type": "object",
		"properties": {
			"amount": {"type": "number", "description": "how much"},
			"to": {"type": ["null", "array"], "items": {"type": "string"}},
			"deep": {"type": ["null", "object"], "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": false}
		},
		"required": ["amount"],
		"additionalProperties": false
	}`, string(tool.Schema))
}

func TestNew_Output(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		tool tools.Tool
		text string
		code protocol.Code
	}{
		"text as it is": {
			tool: tools.New("t", "T.", func(_ context.Context, a convertArguments) (string, error) { return strings.Join(a.To, " <&> "), nil }),
			text: "EUR <&> USD",
		},
		"a struct as JSON": {
			tool: tools.New("t", "T.", func(_ context.Context, a convertArguments) (any, error) {
				return map[string]any{"n": a.Deep.N, "s": "<"}, nil
			}),
			text: `{"n":3,"s":"<"}`,
		},
		"an error": {
			tool: tools.New("t", "T.", func(context.Context, convertArguments) (int, error) { return 0, errors.New("no rate: try EUR") }),
			code: protocol.CodeToolFailed,
		},
		"an error of the fleet's": {
			tool: tools.New("t", "T.", func(context.Context, convertArguments) (int, error) {
				return 0, protocol.Errorf(protocol.CodeNotFound, "gone")
			}),
			code: protocol.CodeNotFound,
		},
		"no JSON": {
			tool: tools.New("t", "T.", func(context.Context, convertArguments) (float64, error) { return math.NaN(), nil }),
			code: protocol.CodeInternal,
		},
		"a panic": {
			tool: tools.New("t", "T.", func(context.Context, convertArguments) (float64, error) { panic("oh") }),
			code: protocol.CodePanic,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			text, failure := runFunction(t, test.tool, `{"amount":"2.5","to":["EUR","USD"],"deep":{"n":3.0}}`)
			require.Equal(t, test.text, text)
			if test.code != "" {
				require.Equal(t, test.code, failure.Code)
			} else {
				require.Nil(t, failure)
			}
		})
	}
}

func TestNew_EveryFaultOfTheArgumentsIsTold(t *testing.T) {
	t.Parallel()
	tool := tools.New("convert", "Convert.", func(context.Context, convertArguments) (string, error) { return "", nil })
	_, failure := runFunction(t, tool, `{"to":"EUR","from":"USD"}`)
	require.Equal(t, protocol.CodeInvalidArguments, failure.Code)
	for _, fault := range []string{"amount: is required", "from: there is no such property", "to: must be null or array"} {
		require.Contains(t, failure.Message, fault)
	}
}

func TestNewTable_TellsWhatCannotBeATool(t *testing.T) {
	t.Parallel()
	for want, tool := range map[string]tools.Tool{
		"arguments: string: must be a struct": tools.New("t", "T.", func(context.Context, string) (string, error) { return "", nil }),
		"is unsupported":                      tools.New("t", "T.", func(context.Context, struct{ F func() }) (string, error) { return "", nil }),
		"function: missing":                   tools.New[struct{}, string]("t", "T.", nil),
		"description: missing": tools.New("t", "", func(context.Context, struct{}) (string, error) {
			return "", nil
		}),
		"arguments: []int: must be a struct": tools.NewRemote[[]int]("t", "T.", tools.Remote{Kind: "k"}),
	} {
		_, err := tools.NewTable(tool)
		require.ErrorContains(t, err, "invalid tool ", want)
		require.ErrorContains(t, err, want)
	}
}

func TestNew_ErrorsThatAreNil(t *testing.T) {
	t.Parallel()
	text, failure := runFunction(t, tools.New("t", "T.", func(context.Context, struct{}) (string, error) {
		var none *protocol.Error
		return "said", none
	}), "{}")
	require.Nil(t, failure)
	require.Equal(t, "said", text)
	_, failure = runFunction(t, tools.New("t", "T.", func(context.Context, struct{}) (string, error) {
		return "", &protocol.Error{Message: "no code"}
	}), "{}")
	require.Equal(t, protocol.CodeToolFailed, failure.Code)
	require.Equal(t, "no code", failure.Message)
}
