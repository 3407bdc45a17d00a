package tools_test

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
	"github.com/toolfleet/toolfleet/pkg/tools/toolset"
)

// A tool of a Go function without side effects runs in the coordinator. Its schema is
// that of its arguments.
func ExampleNew() {
	type arguments struct {
		Text string `json:"text" jsonschema:"what to repeat"`
		N    int    `json:"n,omitempty" jsonschema:"how often; default 2"`
	}
	repeat := tools.New("repeat", "Repeat a text.", func(_ context.Context, args arguments) ([]string, error) {
		if args.N == 0 {
			args.N = 2
		}
		if args.N > 10 {
			return nil, fmt.Errorf("n is %d: ask for 10 or fewer", args.N)
		}
		var out []string
		for range args.N {
			out = append(out, args.Text)
		}
		return out, nil
	})

	table, err := tools.NewTable(append(toolset.Core(), repeat)...)
	if err != nil {
		fmt.Println(err)
		return
	}
	scope := tools.Scope{Session: "example", Sandbox: "example"}
	for _, arguments := range []string{`{"text":"ho","n":"3"}`, `{"text":"ho","n":11}`} {
		_, plan, refusal := table.Plan(scope, "repeat", arguments)
		if refusal != nil {
			fmt.Println(refusal)
			continue
		}
		text, failure := plan.RunInline(context.Background())
		if failure != nil {
			fmt.Println(failure)
			continue
		}
		fmt.Println(text)
	}
	// Output:
	// ["ho","ho","ho"]
	// tool_failed: n is 11: ask for 10 or fewer
}

// A tool that changes something runs on workers that have a handler for its kind.
// Calls for one account run one after another, whoever makes them.
func ExampleNewRemote() {
	type arguments struct {
		Account string  `json:"account"`
		Amount  float64 `json:"amount"`
	}
	refund := tools.NewRemote[arguments]("refund", "Pay money back.", tools.Remote{
		Kind:      "refund",
		Resources: []tools.Resource{{Key: "account/{account}"}},
		Delivery:  protocol.AtMostOnce, // never pay twice
		Timeout:   30 * time.Second,
		Pool:      "billing",
	})

	table, err := tools.NewTable(refund)
	if err != nil {
		fmt.Println(err)
		return
	}
	_, plan, _ := table.Plan(tools.Scope{Session: "example", Sandbox: "example"}, "refund", `{"account":"acme","amount":12.5}`)
	fmt.Println(plan.Resources[0].Key, plan.Resources[0].Access, plan.Delivery, plan.Pool)
	// Output: account/acme exclusive at_most_once billing
}

// A tool whose Plan is one's own says everything itself: what is run, on which resources, and
// what the model reads of the result.
func ExampleTool() {
	type arguments struct {
		Path string `json:"path"`
	}
	head := tools.Tool{
		Definition: tools.Definition{
			Name:        "head",
			Description: "Read the first lines of a file.",
			Schema:      json.RawMessage(`{"type":"object","properties":{"path":{"type":"string"}},"required":["path"],"additionalProperties":false}`),
		},
		Plan: tools.PlanOf(func(scope tools.Scope, args arguments) (tools.Plan, *protocol.Error) {
			key, err := protocol.SandboxKey(scope.Sandbox).Join(args.Path)
			if err != nil {
				return tools.Plan{}, protocol.Errorf(protocol.CodeNotFound, "%s is not in the workspace", args.Path)
			}
			return tools.Plan{
				Payload:   protocol.FilesRead{Path: args.Path, Limit: 10},
				Resources: []protocol.Use{{Key: key, Access: protocol.Shared}},
				Delivery:  protocol.Idempotent,
			}, nil
		}),
	}
	table, err := tools.NewTable(head)
	if err != nil {
		fmt.Println(err)
		return
	}
	scope := tools.Scope{Session: "example", Sandbox: "example"}
	_, plan, _ := table.Plan(scope, "head", `{"path":"a/b.txt"}`)
	fmt.Printf("%T %s\n", plan.Payload, plan.Resources[0].Key)

	// What a model gets wrong is an error that it can read, with every fault.
	for _, call := range [][2]string{{"head", `{"path":"../b"}`}, {"head", `{"file":"b"}`}, {"tail", `{}`}} {
		_, _, refusal := table.Plan(scope, call[0], call[1])
		fmt.Println(refusal)
	}
	// Output:
	// protocol.FilesRead sandbox/example/a/b.txt
	// not_found: ../b is not in the workspace
	// invalid_tool_arguments: The arguments of head were not accepted:
	// - file: there is no such property; allowed are path
	// - path: is required, but missing
	// Expected schema: {"type":"object","properties":{"path":{"type":"string"}},"required":["path"],"additionalProperties":false}
	// You sent: {"file":"b"}
	// Correct the arguments and call the tool again.
	// unknown_tool: There is no tool "tail". The tools are: head.
}
