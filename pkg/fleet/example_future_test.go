package fleet_test

import (
	"context"
	"fmt"

	"github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/worker"
)

// Two commands in different sandboxes run side by side; the output of one is read while it runs, and
// the other is cancelled.
func ExampleClient_Go() {
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
	// Output:
	// stdout: one
	// ok <nil>
	// cancelled <nil>
}

// A call outlives the program that submits it: any program that knows its reference waits for it.
func ExampleClient_Submit() {
	ctx := context.Background()
	client, err := fleet.Connect(ctx, fleet.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = client.Close() }()
	ref, err := client.Submit(ctx, fleet.Call{
		Session: "nightly", ID: "build-7", // so that submitting it again does not run it again
		Payload: protocol.CommandRun{Command: "exit 3"},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(ref) // to be stored or printed
	if err := attach(ctx, client, ref.String()); err != nil {
		fmt.Println(err)
	}
	// Output:
	// nightly/build-7
	// ok 3
}

// attach is another program, which is connected to the same servers, and has a worker.
func attach(ctx context.Context, client *fleet.Client, text string) error {
	if _, err := client.StartWorker(ctx, worker.Options{Driver: "process"}); err != nil {
		return err
	}
	ref, err := protocol.ParseCallRef(text)
	if err != nil {
		return err
	}
	future, err := client.Attach(ctx, ref)
	if err != nil {
		return err // it wraps fleet.ErrNotFound if there is no such call
	}
	result, err := future.Wait(ctx)
	ran, err := fleet.ValueOf[protocol.CommandRunResult](result, err)
	if err != nil {
		return err
	}
	fmt.Println(result.Status, ran.ExitCode)
	return nil
}
