package fleet_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/worker"
)

// submit stores a call, and waits while its lane, its pool or the quota of its tenant is full.
func submit(ctx context.Context, client *fleet.Client, call fleet.Call) (protocol.CallRef, error) {
	for {
		ref, err := client.Submit(ctx, call)
		var full *protocol.Error
		if !errors.Is(err, fleet.ErrBusy) && !errors.Is(err, fleet.ErrQuota) || !errors.As(err, &full) {
			return ref, err
		}
		select {
		case <-time.After(full.RetryAfter.Duration()):
		case <-ctx.Done():
			return ref, context.Cause(ctx)
		}
	}
}

// A lane takes one call that waits, and refuses more: the program sends them again, when
// [protocol.Error].RetryAfter is over. [Client.Call] and [Client.Go] do that by themselves.
func ExampleClient_Submit_busy() {
	ctx := context.Background()
	client, err := fleet.Connect(ctx, fleet.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = client.Close() }()
	if err := client.Limits().Set(ctx, fleet.Limit{Lane: "account/7", Waiting: 1}); err != nil {
		fmt.Println(err)
		return
	}
	pay := worker.Handle("pay", func(_ context.Context, _ *worker.Call, cents int) (int, error) { return cents, nil })
	if _, err := client.StartWorker(ctx, worker.Options{Driver: "none", Handlers: []worker.Handler{pay}}); err != nil {
		fmt.Println(err)
		return
	}
	var refs []protocol.CallRef
	for cents := range 3 {
		ref, err := submit(ctx, client, fleet.Call{
			Handler: "pay", Args: cents, Resources: []protocol.Use{{Key: "account/7", Access: protocol.Exclusive}},
		})
		if err != nil {
			fmt.Println(err)
			return
		}
		refs = append(refs, ref)
	}
	for _, ref := range refs {
		future, err := client.Attach(ctx, ref)
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(fleet.ValueOf[int](future.Wait(ctx)))
	}
	// Output:
	// 0 <nil>
	// 1 <nil>
	// 2 <nil>
}
