package fleet_test

import (
	"context"
	"fmt"

	"github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/worker"
)

// Each account takes one call at a time, and 60 a minute.
func ExampleClient_Limits() {
	ctx := context.Background()
	client, err := fleet.Connect(ctx, fleet.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = client.Close() }()
	if err := client.Limits().Set(ctx, fleet.Limit{Lane: "account/*", Concurrent: 1, Rate: "60/min"}); err != nil {
		fmt.Println(err)
		return
	}
	list, err := client.Limits().List(ctx)
	for _, limit := range list {
		fmt.Println(limit.Lane, limit.Concurrent, limit.Rate, err)
	}
	// Output: account/* 1 60/min <nil>
}

// A paused lane accepts calls, and starts none of them until it is resumed.
func ExampleClient_Lanes() {
	ctx := context.Background()
	client, err := fleet.Connect(ctx, fleet.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = client.Close() }()
	lanes, lane := client.Lanes(""), protocol.Lane("account/7")
	if _, err := lanes.Pause(ctx, lane); err != nil {
		fmt.Println(err)
		return
	}
	ref, err := client.Submit(ctx, fleet.Call{Handler: "pay", ID: "first", Resources: []protocol.Use{{Key: "account/7", Access: protocol.Exclusive}}})
	if err != nil {
		fmt.Println(err)
		return
	}
	shown, err := lanes.Show(ctx, lane, 0)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(shown.State, shown.Calls[0].CallID)
	fmt.Println(lanes.Cancel(ctx, lane, ref.ID))
	// Output:
	// paused first
	// <nil>
}

// The workers of a fleet say what they can do.
func ExampleClient_Workers() {
	ctx := context.Background()
	client, err := fleet.Connect(ctx, fleet.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = client.Close() }()
	pay := worker.Handle("pay", func(context.Context, *worker.Call, struct{}) (string, error) { return "", nil })
	if _, err := client.StartWorker(ctx, worker.Options{Driver: "none", Slots: 3, Handlers: []worker.Handler{pay}}); err != nil {
		fmt.Println(err)
		return
	}
	if _, err := client.Call(ctx, fleet.Call{Handler: "pay"}); err != nil {
		fmt.Println(err)
		return
	}
	workers, err := client.Workers(ctx, "", 0)
	for _, w := range workers {
		fmt.Println(w.Slots, w.Kinds, err)
	}
	// Output: 3 [pay] <nil>
}
