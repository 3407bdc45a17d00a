package fleet_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/tools"
	"github.com/toolfleet/toolfleet/pkg/tools/toolset"
	"github.com/toolfleet/toolfleet/pkg/worker"
)

// writer is a model that writes a file, and answers.
type writer struct{}

func (writer) Reply(_ context.Context, request loop.Request, _ func(loop.Delta)) (loop.Reply, error) {
	if request.Messages[len(request.Messages)-1].Role == loop.RoleTool {
		return loop.Reply{Text: "It is written."}, nil
	}
	return loop.Reply{ToolCalls: []loop.ToolCall{{ID: "1", Name: "write", Arguments: `{"path":"plan.txt","content":"first\n"}`}}}, nil
}

// A session runs with a model and the built-in tools. Later, any process reads what it did, and
// begins another session with its files and its conversation.
func ExampleClient_Sessions() {
	if err := runWriter(context.Background()); err != nil {
		fmt.Println(err)
	}
	// Output:
	// It is written.
	// answered after 2 steps
	// created plan.txt
	// a fork of 1 turn has "first\n"
	// not found: true
}

func runWriter(ctx context.Context) error {
	client, err := fleet.Connect(ctx, fleet.Options{})
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()
	if _, err := client.StartWorker(ctx, worker.Options{Driver: "process"}); err != nil {
		return err
	}
	table, err := tools.NewTable(toolset.Core()...)
	if err != nil {
		return err
	}
	runner, err := client.Runner(writer{}, table, nil)
	if err != nil {
		return err
	}
	answer, err := runner.Run(ctx, "plan", loop.Input{Text: "Write a plan."})
	if err != nil {
		return err
	}
	fmt.Println(answer.Text)

	sessions := client.Sessions("")
	shown, err := sessions.Show(ctx, "plan")
	if err != nil {
		return err
	}
	fmt.Printf("%s after %d steps\n", shown.State, shown.Steps)
	changed, err := sessions.ChangedFiles(ctx, "plan")
	if err != nil {
		return err
	}
	for _, file := range changed {
		fmt.Println(file.Change, file.Path)
	}
	turns, err := sessions.Fork(ctx, "plan", fleet.At{}, "plan-b")
	if err != nil {
		return err
	}
	content, err := sessions.ReadFile(ctx, "plan-b", "plan.txt", "")
	if err != nil {
		return err
	}
	fmt.Printf("a fork of %d turn has %q\n", turns, content)
	if _, err := sessions.Remove(ctx, "plan", false); err != nil {
		return err
	}
	_, err = sessions.Show(ctx, "plan")
	fmt.Println("not found:", errors.Is(err, fleet.ErrNotFound))
	return nil
}

// A coordinator (coordinator serve) runs the turn, whatever becomes of the program that submits it.
// Another program follows it by the session, and prints what the model says.
func ExampleSessions_Submit() {
	ctx := context.Background()
	client, err := fleet.Connect(ctx, fleet.Options{URL: "nats://127.0.0.1:4222"})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = client.Close() }()
	ref, err := client.Sessions("").Submit(ctx, fleet.Turn{Session: "release-7", ID: "first", Prompt: "Make a release."})
	if err != nil {
		fmt.Println(err)
		return
	}

	// In another program, with a client of its own:
	turn, err := client.Sessions("").Follow(ctx, ref.SessionID, func(e loop.Event) {
		if e.Type == loop.EventTextDelta {
			fmt.Print(e.Text)
		}
	}, nil)
	fmt.Println(turn.Outcome, err)
}
