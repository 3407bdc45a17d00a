package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/pkg/fleet/report"
)

// workers sums up why calls wait.
func TestWorkers_SayWhyCallsWait(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	printWaits(&out, &report.LaneList{LeftOut: 7, Lanes: []report.Lane{
		{WaitsFor: "limit account/*: rate 60/min", Waiting: 2},
		{WaitsFor: "a worker: none has claimed the lane", Waiting: 3},
		{WaitsFor: "its time", Delayed: 1},
		{WaitsFor: "limit account/*: rate 60/min", Waiting: 4},
		{Waiting: 1},
	}})
	require.Equal(t, `6 calls in 2 lanes waiting for: limit account/*: rate 60/min
3 calls in 1 lane waiting for: a worker: none has claimed the lane
1 call in 1 lane waiting for: its time
7 more lanes: lane ls --limit N shows them
`, out.String())
}
