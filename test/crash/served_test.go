package crash

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/calls/channel"
	"github.com/toolfleet/toolfleet/internal/calls/ports"
	internal "github.com/toolfleet/toolfleet/internal/fleet"
	"github.com/toolfleet/toolfleet/internal/session/schedule"
	"github.com/toolfleet/toolfleet/internal/session/serve"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// coordinate has the process serve turns, and start schedules, while do runs.
func (p *process) coordinate(ctx context.Context, do func(ctx context.Context) error) error {
	f := &internal.Fleet{Name: p.Name, NC: p.nc, Logger: p.Logger}
	err := f.Open(ctx, true)
	if err != nil {
		return err
	}
	defer f.Close()
	schedules, err := f.Schedules(ctx)
	if err != nil {
		return err
	}
	channels, err := channel.Open(ctx, f.JS, f.Name)
	if err != nil {
		return err
	}
	server, err := serve.New(ctx, p.nc, serve.Options{
		Fleet: f.Name, Holder: serve.Holder{ID: wire.NewWorkerID("crash"), AckWait: lease}, Dispatcher: f.Dispatcher, Journal: f.Journal,
		Served:  serve.Served{Models: map[string]loop.Model{"script": p.model}, Default: "script"},
		Toolbox: serve.Toolbox{Skills: p.table, Schedules: schedules}, Rules: serve.Rules{Policies: p.policies}, Logger: p.Logger,
	})
	if err != nil {
		return err
	}
	runner := &schedule.Runner{Store: schedules, Channels: channels, Send: f.Dispatcher.Submit, Logger: p.Logger}
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	drain, abort := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer abort()
	var both sync.WaitGroup
	both.Go(func() { runner.Run(running) })
	both.Go(func() { _ = server.Run(running, drain) }) // an error of a process whose connection is lost
	p.begin()
	err = do(ctx)
	stop()
	if ctx.Err() != nil {
		abort()
	}
	both.Wait()
	return err
}

// settled waits until no call of a turn of the session waits or runs.
func (p *process) settled(ctx context.Context) error {
	return until(ctx, func() bool {
		left, err := p.client.Sessions("").Unfinished(ctx, p.session)
		return err == nil && len(left) == 0
	})
}

// ended waits until so many turns of the session have ended, and their calls with them.
func (p *process) ended(ctx context.Context, turns int) error {
	err := until(ctx, func() bool {
		history, err := p.client.Sessions("").Log(ctx, p.session)
		ended := 0
		for i := range history.Events {
			if history.Events[i].Type == loop.EventTurnEnded {
				ended++
			}
		}
		return err == nil && ended >= turns
	})
	if err != nil {
		return err
	}
	return p.settled(ctx)
}

// served has what all operations of serving coordinators have in common.
func served(o *operation) *operation {
	o.apart, o.begins = true, true
	o.cancel = func(ctx context.Context, p *process) error {
		return p.coordinate(ctx, func(ctx context.Context) error {
			_, err := p.client.Sessions("").Cancel(ctx, p.session)
			return err
		})
	}
	return o
}

// submit runs a turn of the session by the coordinator that serves it.
func (p *process) submit(ctx context.Context, id string, toolsets ...string) error {
	result, err := p.client.Sessions("").Run(ctx, fleet.Turn{
		Session: p.session, Prompt: "go", Toolsets: toolsets, ID: protocol.CallID(id + "-" + string(p.session)),
	}, nil)
	if err != nil {
		return err
	}
	p.result = result
	return nil
}

// submittedTurn is a turn of two steps that the process submits and serves.
func submittedTurn() *operation {
	o := parallelTurn(false)
	o.name, o.act = "submitted", func(ctx context.Context, p *process) error {
		return p.coordinate(ctx, func(ctx context.Context) error { return p.submit(ctx, "turn") })
	}
	return served(o)
}

// scheduledTurn is a turn that a schedule begins, whose time has come.
func scheduledTurn() *operation {
	return served(&operation{
		name: "scheduled", once: []string{"a"},
		set: func(p *process) { p.replies(calls(labelled(p, "once", "a")), says("done")) },
		before: func(ctx context.Context, tb testing.TB, p *process) {
			tb.Helper()
			_, err := p.client.Schedules().Add(ctx, fleet.Schedule{Name: string(p.session), Cron: "@every 1h"}, fleet.Turn{Session: p.session, Prompt: "go"})
			require.NoError(tb, err)
			bucket, err := p.JS.KeyValue(ctx, wire.SchedulesBucket(p.Name))
			require.NoError(tb, err)
			entry, err := bucket.Get(ctx, string(p.session))
			require.NoError(tb, err)
			var record map[string]any
			require.NoError(tb, json.Unmarshal(entry.Value(), &record))
			record["created"] = time.Now().Add(-time.Hour).UTC().Truncate(time.Second)
			body, err := json.Marshal(record)
			require.NoError(tb, err)
			_, err = bucket.Update(ctx, string(p.session), body, entry.Revision())
			require.NoError(tb, err)
		},
		act: func(ctx context.Context, p *process) error {
			return p.coordinate(ctx, func(ctx context.Context) error {
				if err := p.ended(ctx, 1); err != nil {
					return err
				}
				return until(ctx, func() bool { // the time is noted behind the start of its turn
					stored, err := p.schedules.Get(ctx, string(p.session))
					return err == nil && !stored.Last.IsZero()
				})
			})
		},
	})
}

// triggeredTurn is a turn that a message in a channel begins.
func triggeredTurn() *operation {
	return served(&operation{
		name: "triggered", once: []string{"a"},
		set: func(p *process) {
			p.replies(calls(call{"watch_channel", fmt.Sprintf(`{"channel":%q}`, p.session)}), says("I wait"), calls(labelled(p, "once", "a")), says("done"))
		},
		before: func(ctx context.Context, tb testing.TB, p *process) {
			tb.Helper()
			require.NoError(tb, p.coordinate(ctx, func(ctx context.Context) error { return p.submit(ctx, "first", "triggers") }))
			channels, err := channel.Open(ctx, p.JS, p.Name)
			require.NoError(tb, err)
			require.NoError(tb, channels.Send(ctx, wire.ChannelName(ctx, string(p.session)), ports.ChannelMessage{From: "another", Call: "m", Text: "hello"}))
		},
		act: func(ctx context.Context, p *process) error {
			return p.coordinate(ctx, func(ctx context.Context) error { return p.ended(ctx, 2) })
		},
		done: requireTriggers(0),
	})
}

// requireTriggers checks how many triggers a session has.
func requireTriggers(n int) func(tb testing.TB, p *process) {
	return func(tb testing.TB, p *process) {
		tb.Helper()
		requireSoon(tb, func() bool {
			triggers, err := p.schedules.Triggers(tb.Context(), p.session)
			return err == nil && len(triggers) == n
		}, "the session has not %d triggers", n)
	}
}

const timer = `{"seconds":3000000,"prompt":"go"}`

// addedTrigger is a turn that sets a timer.
func addedTrigger() *operation {
	return served(&operation{
		name: "add_trigger",
		set:  func(p *process) { p.replies(calls(call{"add_timer", timer}), says("done")) },
		act: func(ctx context.Context, p *process) error {
			return p.coordinate(ctx, func(ctx context.Context) error { return p.submit(ctx, "turn", "triggers") })
		},
		done: requireTriggers(1),
	})
}

// removedTrigger is a turn that removes the timer of the turn before.
func removedTrigger() *operation {
	return served(&operation{
		name: "remove_trigger",
		set: func(p *process) {
			name := "" // of the first turn, which does not need it
			if triggers, err := p.schedules.Triggers(p.t.Context(), p.session); err == nil && len(triggers) > 0 {
				name = triggers[0].Name
			}
			p.replies(calls(call{"add_timer", timer}), says("done"), calls(call{"remove_trigger", fmt.Sprintf(`{"trigger":%q}`, name)}), says("done"))
		},
		before: func(ctx context.Context, tb testing.TB, p *process) {
			tb.Helper()
			require.NoError(tb, p.coordinate(ctx, func(ctx context.Context) error { return p.submit(ctx, "first", "triggers") }))
		},
		act: func(ctx context.Context, p *process) error {
			return p.coordinate(ctx, func(ctx context.Context) error { return p.submit(ctx, "turn", "triggers") })
		},
		done: requireTriggers(0),
	})
}
