package fleet_test

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
	"github.com/toolfleet/toolfleet/pkg/tools/policy"
	"github.com/toolfleet/toolfleet/pkg/tools/toolset"
	"github.com/toolfleet/toolfleet/pkg/worker"
)

// A policy wants a person to approve commands. The program that makes the call waits, and any
// program of the fleet that knows the ids of the call approves it. [loop.Options] has the same Policy
// and Approve for sessions, whose calls that wait are in [Sessions.Approvals].
func ExampleClient_AwaitApproval() {
	ctx := context.Background()
	client, err := fleet.Connect(ctx, fleet.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = client.Close() }()
	if _, err := client.StartWorker(ctx, worker.Options{Driver: "process"}); err != nil {
		fmt.Println(err)
		return
	}
	judge, err := policy.New(policy.Policy{Approval: policy.Approval{Tools: []string{"@execute"}}})
	if err != nil {
		fmt.Println(err)
		return
	}
	approved := make(chan error, 1)
	result, err := client.Call(ctx, fleet.Call{
		Tool: "bash", Arguments: `{"command": "echo hello"}`, Policy: judge,
		Approve: func(waiting context.Context, asked loop.ApprovalRequest) (protocol.Approval, error) {
			fmt.Println(asked.Tool, asked.Arguments)
			go func() { // another program
				yes := protocol.Approval{Granted: true, By: "ada"}
				approved <- client.Sessions("").Approve(ctx, asked.SessionID, asked.CallID, yes)
			}()
			return client.AwaitApproval(waiting, asked)
		},
	})
	fmt.Println(<-approved, result.Status, err)
	// Output:
	// bash {"command": "echo hello"}
	// <nil> ok <nil>
}

// curious is a model that asks the user, and says what they answered.
type curious struct{}

func (curious) Reply(_ context.Context, request loop.Request, _ func(loop.Delta)) (loop.Reply, error) {
	if last := request.Messages[len(request.Messages)-1]; last.Role == loop.RoleTool {
		return loop.Reply{Text: last.Text}, nil
	}
	return loop.Reply{ToolCalls: []loop.ToolCall{{ID: "1", Name: "ask_user", Arguments: `{"question": "Which branch?"}`}}}, nil
}

// A session asks the user. A program answers, this one or another. The session waits for Observe, so
// the answer is sent in another goroutine.
func ExampleSessions_Answer() {
	ctx := context.Background()
	client, err := fleet.Connect(ctx, fleet.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = client.Close() }()
	set, err := toolset.Named("ask")
	if err != nil {
		fmt.Println(err)
		return
	}
	table, err := tools.NewTable(set...)
	if err != nil {
		fmt.Println(err)
		return
	}
	answered := make(chan error, 1)
	observe := func(e loop.Event) {
		if e.Type == loop.EventQuestionAsked {
			fmt.Println(e.Question.Message)
			answer := protocol.Answer{Question: e.Question.ID, Action: protocol.ActionAccept, Content: json.RawMessage(`{"answer": "main"}`)}
			go func() { answered <- client.Sessions("").Answer(ctx, e.SessionID, e.CallID, answer) }()
		}
	}
	runner, err := client.Runner(curious{}, table, &loop.Options{Observe: observe})
	if err != nil {
		fmt.Println(err)
		return
	}
	turn, err := runner.Run(ctx, "release", loop.Input{Text: "Make a release."})
	fmt.Println(<-answered, turn.Text, err)
	// Output:
	// Which branch?
	// <nil> main <nil>
}
