package worker

import (
	"context"
	"log/slog"

	"github.com/nats-io/nats.go"

	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// Info is what the worker says about itself.
func (w *Worker) Info() protocol.WorkerInfo {
	o := w.options
	network := w.sandboxes.network.Mode
	if network == "" {
		network = sandbox.NetworkNone
	}
	if !o.Caps.Enforces(network) { // what is not kept away is reached
		network = sandbox.NetworkAll
	}
	l := o.Limits
	return protocol.WorkerInfo{
		WorkerID: o.ID, Pool: o.Pool, Build: o.Build, Slots: o.Slots, HeldLanes: w.holder.Held(),
		Driver: o.Caps.Driver, Launcher: o.Caps.Launcher, Level: o.Caps.Level.String(), Network: string(network), ReadOnly: o.Caps.ReadOnly,
		LimitKinds: w.limitKinds, Languages: append([]string{}, w.Languages()...), Kinds: o.Handlers.kinds(),
		Limits: protocol.Limits{
			Wall: protocol.MillisOf(l.Wall), CPU: protocol.MillisOf(l.CPU), Memory: l.Memory, Processes: l.Processes,
			OpenFiles: l.OpenFiles, FileSize: l.FileSize, Disk: l.Disk, Output: l.Output,
		},
	}
}

// tell answers those who ask which workers there are, until stop is called.
func (w *Worker) tell(ctx context.Context) (stop func()) {
	asked, err := w.nc.Subscribe(w.options.Fleet.WhoSubject(w.options.Pool), func(question *nats.Msg) {
		info := w.Info()
		body, err := protocol.EncodeWorkerInfo(&info)
		if err == nil {
			err = question.Respond(body)
		}
		if err != nil {
			w.options.Logger.DebugContext(ctx, "question cannot be answered", slog.Any("error", err))
		}
	})
	if err != nil { // the worker works all the same
		w.options.Logger.WarnContext(ctx, "questions about this worker are not heard", slog.Any("error", err))
		return func() {}
	}
	return func() { _ = asked.Unsubscribe() } // fails only when the connection is closed
}
