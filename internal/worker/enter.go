package worker

import (
	"context"
	"strings"

	"github.com/toolfleet/toolfleet/internal/inplace"
	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Admit implements [lane.Host]: it waits until no process of this machine runs a call that
// conflicts with this one in a directory that is used in place. Those who follow the call are told
// what it waits for.
func (w *Worker) Admit(ctx context.Context, run *lane.Run) (leave func(), refusal *protocol.Result) {
	dir, is := w.sandboxes.InPlace(run.Call.Lane())
	if !is || w.options.InPlace == nil || w.noFiles(wire.KindOf(run.Call.Payload)) {
		return func() {}, nil
	}
	var last string
	leave, err := w.options.InPlace.Lock(ctx, inplace.Use{
		Directory: dir, Owner: w.sandboxes.Owner(run.Call.Lane()), Program: strings.TrimSuffix(w.nc.Opts.Name, " "+string(run.Call.SessionID)), Session: run.Call.SessionID, Uses: run.Call.Resources,
	}, func(holder string) {
		last = holder
		(&frames{worker: w, run: run}).frame(wire.FrameWaiting, []byte(holder))
	})
	if err == nil {
		return leave, nil
	}
	if status, fault, is := lane.Interrupted(ctx); is {
		if last == "" {
			last = "its turn in " + dir
		}
		r := wire.NewResult(run.Call, status, protocol.Errorf(fault.Code, "the call ended while it waited for %s; nothing was run", last))
		return nil, &r
	}
	r := w.failed(ctx, run.Call, nil, protocol.Errorf(protocol.CodeSandboxUnavailable, "%v; nothing was run", err))
	return nil, &r
}

// noFiles reports whether payloads of a kind touch no file of the workspace. Background processes
// do, in no order with calls, in this process or another.
func (w *Worker) noFiles(name protocol.Kind) bool {
	k := w.kinds[name]
	return k != nil && k.noFiles
}
