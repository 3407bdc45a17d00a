package tools_test

import (
	"context"
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
		text, failure := tools.RunInline(context.Background(), plan)
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
