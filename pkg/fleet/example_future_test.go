package fleet_test

import (
	"context"
	"fmt"

	"github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/worker"
)

// Two commands in different sandboxes run side by side; a third one is stored, and followed by its
// reference, as another process would.
func ExampleClient_Go() {
	ctx := context.Background()
	client, err := fleet.Connect(ctx, fleet.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = client.Close() }()
	if _, err := client.StartWorker(ctx, worker.Options{Sandbox: "process"}); err != nil {
		fmt.Println(err)
		return
	}
	command := func(sandbox, text string) fleet.Call {
		return fleet.Call{Sandbox: sandbox, Payload: protocol.CommandRun{Command: text}}
	}
	first, second := client.Go(ctx, command("one", "echo one")), client.Go(ctx, command("two", "sleep 600"))
	for output := range first.Output(ctx) {
		fmt.Printf("%s: %s", output.Stream, output.Data)
	}
	_ = second.Cancel(ctx)
	for _, future := range []*fleet.Future{first, second} {
		result, err := future.Wait(ctx)
		fmt.Println(result.Status, err)
	}

	ref, err := client.Submit(ctx, command("one", "exit 3"))
	if err != nil {
		fmt.Println(err)
		return
	}
	attached, err := client.Attach(ctx, ref)
	if err != nil {
		fmt.Println(err)
		return
	}
	result, err := attached.Wait(ctx)
	if ran, ok := result.Value.(protocol.CommandRunResult); ok {
		fmt.Println(ran.ExitCode, err)
	}
	// Output:
	// stdout: one
	// ok <nil>
	// cancelled <nil>
	// 3 <nil>
}
