package fleet_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/worker"
)

// A tool call returns what a model would read. A command is a payload: its result is a value, also
// if the command fails. A tool or payload that cannot run has an Error in its result; an error of
// Call means that the input is wrong, or that the fleet failed.
func ExampleClient_Call() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
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
	result, err := client.Call(ctx, fleet.Call{Session: "s", Tool: "write", Arguments: `{"path": "a.txt", "content": "hello\n"}`})
	fmt.Println(strings.HasPrefix(result.Text, "Created a.txt"), err)
	result, err = client.Call(ctx, fleet.Call{Session: "s", Payload: protocol.CommandRun{Command: "wc -c < a.txt; exit 2"}})
	ran, err := fleet.ValueOf[protocol.CommandRunResult](result, err)
	fmt.Printf("%d %s%v\n", ran.ExitCode, ran.Stdout, err)
	result, err = client.Call(ctx, fleet.Call{Session: "s", Payload: protocol.FilesRead{Path: "b.txt"}})
	fmt.Println(result.Status, result.Error.Code, err)
	_, err = client.Call(ctx, fleet.Call{Session: "no session"})
	fmt.Println(errors.Is(err, protocol.ErrInvalidCall))
	// Output:
	// true <nil>
	// 2 6
	// <nil>
	// failed not_found <nil>
	// true
}

// A program takes part in a fleet as a worker with a handler of its own, until it is drained.
func ExampleClient_StartWorker() {
	ctx := context.Background()
	client, err := fleet.Connect(ctx, fleet.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = client.Close() }()
	double := worker.Handle("double", func(_ context.Context, _ *worker.Call, n int) (int, error) { return 2 * n, nil })
	w, err := client.StartWorker(ctx, worker.Options{Driver: "none", Slots: 2, Handlers: []worker.Handler{double}})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(fleet.ValueOf[int](client.Call(ctx, fleet.Call{Handler: "double", Args: 21})))
	limited, cancel := context.WithTimeout(ctx, time.Minute) // for the calls that run
	defer cancel()
	fmt.Println(w.Drain(limited))
	<-w.Done()
	fmt.Println(w.Err())
	// Output:
	// 42 <nil>
	// <nil>
	// <nil>
}

// A schedule submits a turn at each of its times, to any coordinator that serves sessions.
func ExampleClient_Schedules() {
	ctx := context.Background()
	client, err := fleet.Connect(ctx, fleet.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = client.Close() }()
	schedules := client.Schedules()
	added, err := schedules.Add(ctx, fleet.Schedule{Name: "report", Cron: "0 7 * * 1", TimeZone: "Europe/Berlin"},
		fleet.Turn{Prompt: "Write the report of last week."})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(added.Next[0].Weekday(), added.Next[0].Hour())
	_, err = schedules.Add(ctx, fleet.Schedule{Name: "report", Cron: "@daily"}, fleet.Turn{Prompt: "Again."})
	fmt.Println(errors.Is(err, fleet.ErrExists))
	fmt.Println(schedules.Remove(ctx, "report"))
	// Output:
	// Monday 7
	// true
	// <nil>
}

// A schedule starts a call of a handler at each of its times, without a model. [Schedules.Ref]
// names the call of a time, for [Client.Attach].
func ExampleSchedules_AddCall() {
	ctx := context.Background()
	client, err := fleet.Connect(ctx, fleet.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = client.Close() }()
	schedules := client.Schedules()
	added, err := schedules.AddCall(ctx, fleet.Schedule{Name: "backup", Cron: "30 2 * * *", Missed: "skip"},
		fleet.Call{Handler: "backup", Args: map[string]string{"database": "orders"}, Timeout: time.Hour})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(added.Tool, added.Next[0].Hour(), added.Next[0].Minute())
	fmt.Println(schedules.Remove(ctx, "backup"))
	// Output:
	// backup 2 30
	// <nil>
}
