package fleet_test

import (
	"context"
	"fmt"
	"sync"

	"github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
	"github.com/toolfleet/toolfleet/pkg/tools/toolset"
	"github.com/toolfleet/toolfleet/pkg/worker"
)

// payment is what the tool below takes, and its handler gets.
type payment struct {
	Account string `json:"account" jsonschema:"whose account"`
	Cents   int    `json:"cents"`
}

// cashier is a model that pays twice into one account, in one step, and answers.
type cashier struct{}

func (cashier) Reply(_ context.Context, request loop.Request, _ func(loop.Delta)) (loop.Reply, error) {
	last := request.Messages[len(request.Messages)-1]
	if last.Role == loop.RoleTool {
		return loop.Reply{Text: last.Text}, nil
	}
	return loop.Reply{ToolCalls: []loop.ToolCall{
		{ID: "1", Name: "pay_in", Arguments: `{"account":"acme","cents":500}`},
		{ID: "2", Name: "pay_in", Arguments: `{"account":"acme","cents":250}`},
	}}, nil
}

// A whole fleet in one program: an embedded server, a worker with a handler, and a
// session whose tool it executes. The resource key makes calls for one account run one
// after another, on however many workers.
func Example() {
	ctx := context.Background()
	f, err := fleet.Connect(ctx, fleet.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = f.Close() }()

	var mu sync.Mutex // two accounts may be paid into at once
	balance := map[string]int{}
	_, err = f.StartWorker(ctx, worker.Options{
		Driver: "process",
		Handlers: []worker.Handler{
			worker.Handle("pay_in", func(_ context.Context, _ *worker.Call, p payment) (string, error) {
				mu.Lock()
				defer mu.Unlock()
				if p.Cents <= 0 {
					return "", fmt.Errorf("%d cents: must be more than 0", p.Cents)
				}
				balance[p.Account] += p.Cents
				return fmt.Sprintf("%s has %d cents", p.Account, balance[p.Account]), nil
			}),
		},
	})
	if err != nil {
		fmt.Println(err)
		return
	}

	table, err := tools.NewTable(append(toolset.Core(), tools.NewRemote[payment]("pay_in", "Pay into an account.", tools.Remote{
		Kind:      "pay_in",
		Resources: []tools.Resource{{Key: "account/{account}"}},
		Delivery:  protocol.AtMostOnce,
	}))...)
	if err != nil {
		fmt.Println(err)
		return
	}
	runner, err := f.Runner(cashier{}, table, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	session := protocol.NewSessionID()
	result, err := runner.Run(ctx, session, loop.Input{Text: "Pay in what came."})
	fmt.Println(result.Text, err)

	outcome, err := f.Call(ctx, fleet.Call{Table: table, Session: session, Tool: "pay_in", Arguments: `{"account":"acme","cents":0}`})
	fmt.Println(outcome.Status, outcome.Error, err)
	// Output:
	// acme has 750 cents <nil>
	// failed tool_failed: 0 cents: must be more than 0 <nil>
}
