package fleet_test

import (
	"context"
	"fmt"

	"github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/worker"
)

// Two streams of one sandbox run side by side; the test waits for the build.
func ExampleClient_Stream() {
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
	command := func(text string) fleet.Call {
		return fleet.Call{Payload: protocol.CommandRun{Command: text}}
	}
	builds, tests := client.Stream("project", "builds"), client.Stream("project", "tests")
	builds.Go(ctx, command("sleep 0.1"))
	builds.Go(ctx, command("echo binary > out"))
	tests.Wait(builds.Record())
	tested := tests.Go(ctx, command("cat out"))
	for output := range tested.Output(ctx) {
		fmt.Printf("%s", output.Data)
	}
	result, err := tested.Wait(ctx)
	fmt.Println(result.Status, err)
	// Output:
	// binary
	// ok <nil>
}
