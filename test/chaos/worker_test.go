//go:build linux

package chaos

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/system/pause"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// workerRole is a worker whose executions do nothing but write down that they happened.
type workerRole struct {
	lane.DefaultHost

	URL, Creds, Log string
	Worker          protocol.WorkerID
	Slots           int

	journal *journal
}

func (w *workerRole) run(ctx context.Context) error {
	var err error
	if w.journal, err = openJournal(w.Log); err != nil {
		return err
	}
	defer func() { _ = w.journal.file.Close() }()
	w.journal.worker = w.Worker
	var watcher sync.WaitGroup
	defer watcher.Wait()
	watching, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	watcher.Go(func() { w.journal.watch(watching) })
	logger := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	nc, err := dial(ctx, w.URL, natsio.ConnectOptions{Name: string(w.Worker), Creds: w.Creds, Logger: logger})
	if err != nil {
		return err
	}
	defer nc.Close()
	var holder *lane.Holder
	for { // its servers may be in trouble at this very moment
		holder, err = lane.NewHolder(ctx, nc, w, lane.Options{Worker: w.Worker, Slots: w.Slots, Logger: logger})
		if err == nil {
			break
		}
		if !pause.For(ctx, 50*time.Millisecond) {
			return nil
		}
	}
	drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
	defer cancel()
	return holder.Run(ctx, drain)
}

// Execute implements [lane.Executor].
func (w *workerRole) Execute(ctx context.Context, run *lane.Run) protocol.Result {
	record := Record{
		Kind: KindStart, At: now(),
		CallID: run.Call.ID, Worker: w.Worker, Sequence: run.Sequence, Attempt: run.Attempt,
	}
	w.journal.write(&record)
	work, _ := run.Call.Payload.(wire.Noop)
	pause.For(ctx, work.WorkMS.Duration())
	result := wire.NewResult(run.Call, protocol.StatusOK, nil)
	result.Value = wire.NoopResult{}
	if status, fault, interrupted := lane.Interrupted(ctx); interrupted {
		result = wire.NewResult(run.Call, status, fault)
	}
	record.Kind, record.At, record.Status = KindEnd, now(), result.Status
	if cause := context.Cause(ctx); errors.Is(cause, lane.ErrLost) || errors.Is(cause, lane.ErrDraining) {
		record.Status = StatusLost
	}
	w.journal.write(&record)
	return result
}

// Release implements [lane.Executor].
func (w *workerRole) Release(protocol.Lane) {}

// dial connects, again and again: the servers may be in trouble at this very moment.
func dial(ctx context.Context, url string, o natsio.ConnectOptions) (*nats.Conn, error) {
	for {
		nc, err := natsio.Connect(ctx, url, o)
		if err == nil || ctx.Err() != nil {
			return nc, err
		}
		pause.For(ctx, 50*time.Millisecond)
	}
}
