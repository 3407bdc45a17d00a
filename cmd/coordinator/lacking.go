package main

import (
	"context"
	"fmt"
	"slices"

	"github.com/toolfleet/toolfleet/internal/dispatch"
	"github.com/toolfleet/toolfleet/internal/fleet"
	"github.com/toolfleet/toolfleet/internal/lane/operator"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Bounds of the waiting calls that [untaken] looks at.
const (
	maxIdleLanes = 32
	maxIdleCalls = 16
)

// lacking sets what calls wait for that no worker of their pool has, if workers answer.
func lacking(ctx context.Context, fl *fleet.Fleet, pool protocol.Pool, calls []operator.CallStatus) {
	if !slices.ContainsFunc(calls, func(c operator.CallStatus) bool { return c.Needs != nil }) {
		return
	}
	lacks := dispatch.Lacking(ctx, fl.Conn(pool), fl.Name, pool)
	for i := range calls {
		if lacks != nil && calls[i].Needs != nil {
			calls[i].WaitsFor = lacks(*calls[i].Needs)
		}
	}
}

// untaken returns a sentence about each call of a pool that none of its workers may take. It looks
// at the lanes that have waited longest. The error wraps [natsio.ErrRights] without the rights to
// look.
func untaken(ctx context.Context, fl *fleet.Fleet, pool protocol.Pool) ([]string, error) {
	if err := fl.CheckRights(ctx, natsio.LaneRights(fl.Name, pool)); err != nil {
		return nil, err
	}
	desk, err := operator.New(ctx, fl.Conn(pool), fl.Name)
	if err != nil {
		return nil, err
	}
	list, err := desk.List(ctx, pool, maxIdleLanes)
	if err != nil {
		return nil, err
	}
	var calls []operator.CallStatus
	for _, status := range list.Lanes {
		if status.Lane == "" || status.Waiting == 0 || len(status.Running) > 0 || status.State == operator.StatePaused {
			continue
		}
		if view, err := desk.Show(ctx, pool, status.Lane, maxIdleCalls); err == nil { // else it has nothing any more
			calls = append(calls, view.Calls...)
		}
	}
	lacking(ctx, fl, pool, calls)
	var sentences []string
	for i := range calls {
		if c := &calls[i]; c.WaitsFor != "" {
			sentences = append(sentences, fmt.Sprintf("session %s: %s", c.SessionID, waitsFor(c)))
		}
	}
	return sentences, nil
}

// waitsFor is a sentence about a call that waits for a worker that has what it needs.
func waitsFor(c *operator.CallStatus) string {
	return fmt.Sprintf("%s, call %s, waits for: %s", printableName(c.Tool), c.CallID, printableName(c.WaitsFor))
}
