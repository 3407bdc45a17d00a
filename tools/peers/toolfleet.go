package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/nats-io/nats.go"

	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/internal/natsio/embedded"
	"github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
	"github.com/toolfleet/toolfleet/pkg/worker"
)

// toolfleetPeer is an embedded server and a worker with a handler, as a Go program has them.
type toolfleetPeer struct {
	*work

	server    *embedded.Server
	nc        *nats.Conn
	fleet     *fleet.Client
	publisher *lane.Publisher
	table     *tools.Table
	session   protocol.SessionID
}

func (p *toolfleetPeer) Start(ctx context.Context, dir string, slots int) (err error) {
	p.session = protocol.NewSessionID()
	if p.server, err = embedded.Start(ctx, embedded.Options{Data: filepath.Join(dir, "nats"), Listen: "127.0.0.1:0"}); err != nil {
		return err
	}
	if p.nc, err = nats.Connect(p.server.URL(), p.server.Options()...); err != nil {
		return err
	}
	if p.fleet, err = fleet.Connect(ctx, fleet.Options{URL: p.nc.ConnectedUrl(), Creds: p.server.CredentialFile(), Data: filepath.Join(dir, "worker")}); err != nil {
		return err
	}
	if p.publisher, err = lane.NewPublisher(ctx, p.nc, protocol.DefaultFleet); err != nil {
		return err
	}
	run := worker.Handle("task", func(ctx context.Context, _ *worker.Call, t task) (string, error) { return p.run(ctx, t) })
	if _, err := p.fleet.StartWorker(ctx, worker.Options{Driver: "none", Slots: slots, Handlers: []worker.Handler{run}}); err != nil {
		return err
	}
	p.table, err = tools.NewTable(
		tools.NewRemote[task]("keyed", "A task with a key.", tools.Remote{
			Kind: "task", Delivery: protocol.Idempotent, Resources: []tools.Resource{{Key: "key/{key}"}},
		}),
		tools.NewRemote[task]("free", "A task without a key.", tools.Remote{
			Kind: "task", Delivery: protocol.Idempotent, Resources: []tools.Resource{},
		}))
	return err
}

func (p *toolfleetPeer) Do(ctx context.Context, t task) error {
	arguments, err := json.Marshal(t)
	if err != nil {
		return err
	}
	name := "keyed"
	if t.Key == "" {
		name = "free"
	}
	outcome, err := p.fleet.Call(ctx, fleet.Call{Table: p.table, Session: p.session, Tool: name, Arguments: string(arguments)})
	if err == nil && outcome.Error != nil {
		err = fmt.Errorf("task: %w", outcome.Error)
	}
	return err
}

// Submit implements [peer] by the publisher that the fleet has inside.
func (p *toolfleetPeer) Submit(ctx context.Context, tasks []task) error {
	byLane := map[protocol.Lane][]*protocol.Call{} // those of a lane in their order, and all lanes at the same time
	for _, t := range tasks {
		arguments, err := json.Marshal(t)
		if err != nil {
			return err
		}
		single := loop.PlanSingle(ctx, p.table, p.session, "keyed", string(arguments), nil)
		if single.Call == nil {
			return fmt.Errorf("plan: %w", single.Error)
		}
		byLane[single.Call.Lane()] = append(byLane[single.Call.Lane()], single.Call)
	}
	faults := make(chan error, len(byLane))
	for _, calls := range byLane {
		go func() {
			var err error
			for i := 0; i < len(calls) && err == nil; i++ {
				err = p.publisher.Enqueue(ctx, lane.Outgoing{Call: calls[i]})
			}
			faults <- err
		}()
	}
	var err error
	for range byLane {
		err = errors.Join(err, <-faults)
	}
	return err
}

func (p *toolfleetPeer) Close() (err error) {
	if p.fleet != nil {
		err = p.fleet.Close()
	}
	if p.nc != nil {
		p.nc.Close()
	}
	if p.server != nil {
		p.server.Close()
	}
	return err
}
