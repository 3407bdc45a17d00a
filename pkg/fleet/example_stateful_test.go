package fleet_test

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
	"github.com/toolfleet/toolfleet/pkg/worker"
)

// shopper is a model that begins an order, adds two things to it, and ends it.
type shopper struct{}

var handle = regexp.MustCompile(`h-[0-9a-f]{12}`)

func (shopper) Reply(_ context.Context, request loop.Request, _ func(loop.Delta)) (loop.Reply, error) {
	step, opened := 0, ""
	for _, message := range request.Messages {
		if message.Role == loop.RoleAssistant {
			step++
		}
		if found := handle.FindString(message.Text); found != "" && opened == "" {
			opened = found
		}
	}
	goOn := func(input string) loop.ToolCall {
		return loop.ToolCall{ID: fmt.Sprint(step), Name: "tool_continue", Arguments: fmt.Sprintf(`{"handle":%q,"input":%s}`, opened, input)}
	}
	switch step {
	case 0:
		return loop.Reply{ToolCalls: []loop.ToolCall{{ID: "0", Name: "order", Arguments: `{"customer":"Ada"}`}}}, nil
	case 1:
		return loop.Reply{ToolCalls: []loop.ToolCall{goOn(`{"item":"tea"}`)}}, nil
	case 2:
		return loop.Reply{ToolCalls: []loop.ToolCall{goOn(`{"done":true}`)}}, nil
	default:
		return loop.Reply{Text: "The order is in."}, nil
	}
}

// orderOf is what opens an order, and nextItem what each further call brings.
type orderOf struct {
	Customer string `json:"customer"`
}

type nextItem struct {
	Item string `json:"item,omitempty"`
	Done bool   `json:"done,omitempty"`
}

// order is a stateful tool: it keeps what it knows in variables, from call to call.
func order(_ context.Context, dialog *worker.Dialog[nextItem, string], args orderOf) (string, error) {
	var items []string
	answer := "order of " + args.Customer
	for {
		next, err := dialog.Yield(answer)
		switch {
		case errors.Is(err, worker.ErrOver):
			return "nothing was ordered", nil
		case err != nil:
			return "", err
		case next.Done:
			return fmt.Sprintf("%s ordered %v", args.Customer, items), nil
		}
		items = append(items, next.Item)
		answer = fmt.Sprintf("%d so far", len(items))
	}
}

// A tool that answers several calls, and keeps its state in the worker between them.
func Example_stateful() {
	ctx := context.Background()
	f, err := fleet.Connect(ctx, fleet.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = f.Close() }()
	_, err = f.StartWorker(ctx, worker.Options{
		Driver: "process", Handlers: []worker.Handler{worker.HandleStateful("order", order, nil)},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	table, err := tools.NewTable(tools.NewStateful[orderOf, nextItem]("order", "Collect an order.", tools.Remote{
		Kind: "order", Resources: []tools.Resource{{Key: "customer/{customer}"}},
	}))
	if err != nil {
		fmt.Println(err)
		return
	}
	runner, err := f.Runner(shopper{}, table, &loop.Options{Observe: func(e loop.Event) {
		if e.Type == loop.EventToolResult {
			said, _, _ := strings.Cut(e.Content, "\n") // the handle is told on lines of its own
			fmt.Printf("%s %s: %s\n", e.Name, e.Status, said)
		}
	}})
	if err != nil {
		fmt.Println(err)
		return
	}
	result, err := runner.Run(ctx, protocol.NewSessionID(), loop.Input{Text: "Order tea."})
	fmt.Println(result.Text, err)
	// Output:
	// order ok: order of Ada
	// tool_continue ok: 1 so far
	// tool_continue ok: Ada ordered [tea]
	// The order is in. <nil>
}
