package fleet_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/worker"
)

// A handler is called with a value of Go, and returns one, also to a future: see [ValueOf]. Calls
// of one account run one after another.
func ExampleCall() {
	ctx := context.Background()
	client, err := fleet.Connect(ctx, fleet.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = client.Close() }()
	type transfer struct{ Account, Cents int }
	balance := 0
	pay := worker.Handle("pay", func(_ context.Context, _ *worker.Call, t transfer) (int, error) {
		if t.Cents <= 0 {
			return 0, errors.New("cents: must be more than 0")
		}
		balance += t.Cents
		return balance, nil
	})
	if _, err := client.StartWorker(ctx, worker.Options{Driver: "none", Handlers: []worker.Handler{pay}}); err != nil {
		fmt.Println(err)
		return
	}
	call := func(cents int) fleet.Call {
		return fleet.Call{
			Handler: "pay", Args: transfer{Account: 7, Cents: cents},
			Resources: []protocol.Use{{Key: "account/7", Access: protocol.Exclusive}},
		}
	}
	first, second := client.Go(ctx, call(500)), client.Go(ctx, call(250))
	fmt.Println(fleet.ValueOf[int](first.Wait(ctx)))
	fmt.Println(fleet.ValueOf[int](second.Wait(ctx)))
	_, err = fleet.ValueOf[int](client.Call(ctx, call(0)))
	var failed *protocol.Error
	fmt.Println(errors.As(err, &failed) && failed.Code == protocol.CodeToolFailed)
	// Output:
	// 500 <nil>
	// 750 <nil>
	// true
}
