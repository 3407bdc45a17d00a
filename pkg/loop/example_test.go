package loop_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/loop/looptest"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
	"github.com/toolfleet/toolfleet/pkg/tools/policy"
)

// clerk is a model: any type with a Reply. A real one sends the messages and the tools of the
// request to a provider, and passes on what comes back.
type clerk struct{}

func (clerk) Reply(ctx context.Context, request loop.Request, delta func(loop.Delta)) (loop.Reply, error) {
	if err := ctx.Err(); err != nil {
		return loop.Reply{}, err
	}
	last := request.Messages[len(request.Messages)-1]
	if last.Role == loop.RoleTool {
		text := "It is " + last.Text + "."
		delta(loop.Delta{Text: text})
		return loop.Reply{Text: text, Usage: protocol.Usage{InputTokens: 20, OutputTokens: 5}}, nil
	}
	return loop.Reply{
		ToolCalls: []loop.ToolCall{{ID: "1", Name: "add", Arguments: `{"a":2,"b":"2"}`}},
		Usage:     protocol.Usage{InputTokens: 10, OutputTokens: 5},
	}, nil
}

// nowhere is a dispatcher for sessions whose tools all run in place. Client.Runner of package fleet
// uses the one that carries calls to workers.
type nowhere struct{}

func (nowhere) Send(context.Context, []protocol.Call, func(loop.Update), ...loop.Handle) []loop.Handle {
	panic("no tool of these sessions runs on a worker")
}

// calculator is a table of one tool, which runs in place.
func calculator() (*tools.Table, error) {
	return tools.NewTable(tools.New("add", "Add two numbers.", func(_ context.Context, args struct {
		A int `json:"a"`
		B int `json:"b"`
	},
	) (int, error) {
		return args.A + args.B, nil
	}))
}

// A session with a model, a journal and tools of one's own, without a fleet. The Runner keeps
// nothing: another one, with the same journal, goes on where this one was.
func Example() {
	table, err := calculator()
	if err != nil {
		fmt.Println(err)
		return
	}
	runner, err := loop.New(clerk{}, nowhere{}, &looptest.Journal{}, table, &loop.Options{
		MaxSteps: 10,
		Observe: func(e loop.Event) {
			if e.Type == loop.EventToolResult {
				fmt.Println(e.Name, e.Status, e.Content)
			}
		},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	result, err := runner.Run(context.Background(), protocol.NewSessionID(), loop.Input{Text: "What is 2 + 2?"})
	switch {
	case errors.Is(err, loop.ErrJournalConflict):
		fmt.Println("another process extends it")
	case err != nil:
		fmt.Println("the turn is open, run it again:", err)
	default:
		fmt.Println(result.Outcome, result.Text, result.Steps, result.Usage.Total())
	}
	// Output:
	// add ok 4
	// answered It is 4. 2 40
}

// A policy decides which calls may be made, and a person about those for which it asks.
func Example_approval() {
	table, err := calculator()
	if err != nil {
		fmt.Println(err)
		return
	}
	rules, err := policy.New(policy.Policy{Approval: policy.Approval{Tools: []string{"add"}}})
	if err != nil {
		fmt.Println(err)
		return
	}
	runner, err := loop.New(clerk{}, nowhere{}, &looptest.Journal{}, table, &loop.Options{
		Policy: rules,
		Observe: func(e loop.Event) {
			if e.Type == loop.EventPolicyDecision {
				fmt.Println(e.Name, e.Status, e.By, e.Note)
			}
		},
		Approve: func(_ context.Context, asked loop.ApprovalRequest) (protocol.Approval, error) {
			fmt.Println(asked.Tool, asked.Arguments, "-", asked.Reason)
			return protocol.Approval{Granted: false, By: "Ada", Note: "Do it in your head."}, nil
		},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	result, err := runner.Run(context.Background(), protocol.NewSessionID(), loop.Input{Text: "What is 2 + 2?"})
	fmt.Println(result.Outcome, err)
	// Output:
	// add {"a":2,"b":"2"} - calls of add need approval
	// add refused Ada Do it in your head.
	// answered <nil>
}

// Hooks see, change and refuse: here one changes what the model reads of a result, and one refuses
// requests to the model that contain a word.
func ExampleHook() {
	table, err := calculator()
	if err != nil {
		fmt.Println(err)
		return
	}
	rounds := loop.Hook{
		Event: loop.HookAfter, Matches: func(tool string) bool { return tool == "add" }, Timeout: time.Second,
		Run: func(_ context.Context, asked loop.HookRequest) (loop.HookAnswer, error) {
			about := "about " + asked.Result.Content
			return loop.HookAnswer{Output: &about}, nil
		},
	}
	secrets := loop.Hook{Event: loop.HookBeforeModel, Run: func(_ context.Context, asked loop.HookRequest) (loop.HookAnswer, error) {
		for _, message := range asked.Request.Messages {
			if strings.Contains(message.Content, "password") {
				return loop.HookAnswer{Decision: policy.Denied, Reason: "passwords stay here"}, nil
			}
		}
		return loop.HookAnswer{}, nil
	}}
	runner, err := loop.New(clerk{}, nowhere{}, &looptest.Journal{}, table, &loop.Options{Hooks: []loop.Hook{rounds, secrets}})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, text := range []string{"What is 2 + 2?", "My password is 2 + 2."} {
		result, err := runner.Run(context.Background(), protocol.NewSessionID(), loop.Input{Text: text})
		fmt.Println(result.Outcome, result.Text, result.Error, err)
	}
	// Output:
	// answered It is about 4. <nil> <nil>
	// failed  policy_denied: a hook refused the turn (BeforeModel): passwords stay here <nil>
}
