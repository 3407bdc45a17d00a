// Package fleettest starts a whole fleet inside a test: a server, its streams, and a worker.
//
//	func TestGreet(t *testing.T) {
//		client := fleettest.Start(t, worker.Handle("greet", greet))
//		result, err := client.Call(t.Context(), fleet.Call{Table: table, Tool: "greet", Arguments: `{"name": "Ada"}`})
//		...
//	}
//
// Each test has a fleet of its own, so tests run in parallel. It needs no rights, no other program
// and no network, and starts in a fraction of a second.
package fleettest

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"testing"

	"github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
	"github.com/toolfleet/toolfleet/pkg/worker"
)

// Start returns the client of a fleet that has one worker with the handlers, and ends with the
// test. Workspaces are temporary. Warnings go to the test's log. The test fails when the fleet does
// not start.
//
// Commands run in the best sandbox of this host. If no driver isolates here, they run as plain
// processes of the test's user, and the test's log says so. A test of isolation itself starts its
// worker by [fleet.Client.StartWorker], which is an error then.
func Start(tb testing.TB, handlers ...worker.Handler) *fleet.Client {
	tb.Helper()
	log := &output{w: tb.Output()}
	client, err := fleet.Connect(tb.Context(), fleet.Options{Logger: slog.New(slog.NewTextHandler(log, nil))})
	if err != nil {
		tb.Fatalf("fleettest: %v", err)
	}
	tb.Cleanup(func() {
		if err := client.Close(); err != nil {
			tb.Errorf("fleettest: close the fleet: %v", err)
		}
		log.end()
	})
	_, err = client.StartWorker(tb.Context(), worker.Options{Handlers: handlers})
	if errors.Is(err, sandbox.ErrLevel) {
		_, _ = fmt.Fprintf(log, "WARNING: fleettest: NOTHING ISOLATES COMMANDS ON THIS HOST: they can change every file of yours (%v)\n", err)
		_, err = client.StartWorker(tb.Context(), worker.Options{Handlers: handlers, Driver: "process"})
	}
	if err != nil {
		tb.Fatalf("fleettest: start a worker: %v", err)
	}
	return client
}

// output writes to the log of a test until the test ends: a later write would panic.
type output struct {
	mu sync.Mutex
	w  io.Writer
}

// Write implements [io.Writer].
func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.w == nil {
		return len(p), nil
	}
	return o.w.Write(p)
}

func (o *output) end() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.w = nil
}
