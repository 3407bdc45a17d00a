package protocol_test

import (
	"errors"
	"fmt"
	"time"

	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// A call is checked before it is sent. The error has every fault.
func ExampleCall_Validate() {
	call := protocol.Call{
		ID:        "refund-7",
		SessionID: "demo",
		Pool:      protocol.DefaultPool,
		Resources: []protocol.Use{{Key: "account/acme", Access: protocol.Exclusive}},
		Delivery:  protocol.AtMostOnce,
		IssuedAt:  time.Date(2025, 1, 2, 3, 4, 5, 0, time.UTC),
		Payload:   protocol.CommandRun{Command: "make"},
	}
	fmt.Println(call.Validate(), call.Lane(), call.RunFor(), call.Attempts())

	call.Pool, call.Delivery = "Billing", ""
	err := call.Validate()
	fmt.Println(errors.Is(err, protocol.ErrInvalidCall), errors.Is(err, protocol.ErrInvalidName))
	fmt.Println(err)
	// Output:
	// <nil> account/acme 2m0s 5
	// true true
	// invalid call: invalid name: pool "Billing": must be 1 to 32 lower-case letters, digits and '-'
	// invalid call: delivery "": must be "idempotent", "at_most_once" or "rollback"
}

// Calls conflict when one of their keys contains the other and one of them is exclusive.
func ExampleUse_Conflicts() {
	sandbox := protocol.SandboxKey("demo")
	source, err := sandbox.Join("src/./a/../main.go")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(source, source.Lane())
	read := protocol.Use{Key: source, Access: protocol.Shared}
	list := protocol.Use{Key: sandbox, Access: protocol.Shared}
	write := protocol.Use{Key: source, Access: protocol.Exclusive}
	fmt.Println(read.Conflicts(list), write.Conflicts(list), write.Conflicts(read))
	_, err = sandbox.Join("../other")
	fmt.Println(errors.Is(err, protocol.ErrInvalidName))
	// Output:
	// sandbox/demo/src/main.go sandbox/demo
	// false true true
	// true
}
