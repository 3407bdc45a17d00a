package fleettest_test

import (
	"context"
	"testing"

	"github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/fleet/fleettest"
	"github.com/toolfleet/toolfleet/pkg/tools"
	"github.com/toolfleet/toolfleet/pkg/worker"
)

// A test of a handler, through a whole fleet.
func ExampleStart() {
	testDouble := func(t *testing.T) { // func TestDouble(t *testing.T) in a file of yours
		t.Helper()
		type arguments struct {
			Number int `json:"number"`
		}
		double := func(_ context.Context, _ *worker.Call, a arguments) (int, error) { return 2 * a.Number, nil }
		table, err := tools.NewTable(tools.NewRemote[arguments]("double", "Double a number.", tools.Remote{Kind: "double", Resources: []tools.Resource{}}))
		if err != nil {
			t.Fatal(err)
		}

		client := fleettest.Start(t, worker.Handle("double", double))
		result, err := client.Call(t.Context(), fleet.Call{Table: table, Tool: "double", Arguments: `{"number": 21}`})
		if err != nil || result.Text != "42" {
			t.Errorf("double of 21: %q, %v", result.Text, err)
		}
	}
	_ = testDouble
}
