package main

import (
	"context"

	"github.com/toolfleet/toolfleet/internal/fleet"
	"github.com/toolfleet/toolfleet/internal/inplace"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// inOrder changes a directory while no call that uses it in place runs in any process. Without a
// state folder there is no such order.
func inOrder(ctx context.Context, dir, program string, session protocol.SessionID, warn func(string), change func() error) error {
	queue, err := fleet.InPlace()
	if dir == "" || err != nil {
		return change()
	}
	use := inplace.Use{Directory: dir, Owner: string(session) + " " + program, Program: program, Session: session}
	leave, err := queue.Lock(ctx, use, func(holder string) { warn(program + " waits for: " + holder) })
	if err != nil {
		return err
	}
	defer leave()
	return change()
}
