//go:build linux

package chaos

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolfleet/toolfleet/internal/calls"
	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/system/pause"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// callerRole is a coordinator without a model: callers that put their steps one
// after the other. Killed and started again it puts what has no result again.
type callerRole struct {
	workload

	URL, Creds, Log string
	Callers         int
	Calls           int           // in all, at least
	Until           string        // a file; while it is missing more calls are made
	Deadline        time.Time     // from when on these are enough, however many they are; zero: never
	Think           time.Duration // longest pause of a caller between two steps
	Patience        time.Duration // longest wait for a result

	nc        *nats.Conn
	publisher *lane.Publisher
	results   *calls.Results
	journal   *journal
	put, told map[protocol.CallID]bool // by an earlier life; read only
	made      atomic.Int64
}

func (c *callerRole) run(ctx context.Context) error {
	var err error
	if c.journal, err = openJournal(c.Log); err != nil {
		return err
	}
	defer func() { _ = c.journal.file.Close() }()
	if err := c.remember(); err != nil {
		return err
	}
	c.nc, err = dial(ctx, c.URL, natsio.ConnectOptions{Name: "caller", Creds: c.Creds})
	if err != nil {
		return err
	}
	defer c.nc.Close()
	for {
		if c.publisher, err = lane.NewPublisher(ctx, c.nc, protocol.DefaultFleet); err == nil {
			break
		}
		if !pause.For(ctx, 50*time.Millisecond) {
			return err
		}
	}
	c.results = calls.NewResults(c.nc, protocol.DefaultFleet, func(err error) { c.journal.trouble(err.Error()) })
	var group sync.WaitGroup
	for i := range c.Callers {
		group.Go(func() { c.caller(ctx, i) })
	}
	group.Wait()
	return nil
}

// remember reads what an earlier life of this process wrote down.
func (c *callerRole) remember() error {
	c.put, c.told = map[protocol.CallID]bool{}, map[protocol.CallID]bool{}
	log, err := os.Open(c.Log)
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()
	for lines := bufio.NewScanner(log); lines.Scan(); {
		var r Record
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			return fmt.Errorf("record %q: %w", lines.Bytes(), err)
		}
		c.put[r.CallID] = c.put[r.CallID] || r.Kind == KindPut
		if r.Kind == KindTold && !c.told[r.CallID] {
			c.told[r.CallID] = true
			c.made.Add(1)
		}
	}
	return nil
}

func (c *callerRole) enough() bool {
	if c.made.Load() < int64(c.Calls) && (c.Deadline.IsZero() || time.Now().Before(c.Deadline)) {
		return false
	}
	_, err := os.Stat(c.Until)
	return err == nil
}

// caller makes steps, the first ones for the second time if it lived before.
func (c *callerRole) caller(ctx context.Context, index int) {
	news := make(chan *protocol.Result, 2*burst)
	watch, err := c.watch(ctx, index, news)
	if err != nil {
		c.journal.trouble(err.Error())
		return
	}
	defer watch.Stop()
	for n := 0; ctx.Err() == nil; n++ {
		open := map[protocol.CallID]*planned{}
		var step []*planned
		old := false
		for _, p := range c.step(index, n) {
			old = old || c.put[p.ID]
			if !c.told[p.ID] {
				step = append(step, &p)
				open[p.ID] = &p
			}
		}
		if !old && c.enough() {
			return
		}
		if len(step) > 0 {
			c.dispatch(ctx, step, open, news)
			if c.Think > 0 {
				pause.For(ctx, rand.N(c.Think))
			}
		}
	}
}

func (c *callerRole) watch(ctx context.Context, index int, news chan<- *protocol.Result) (*calls.Watch, error) {
	for {
		watch, err := c.results.Watch(ctx, c.session(index), func(r *protocol.Result) {
			select {
			case news <- r:
			default: // found by looking
			}
		}, nil)
		if err == nil || !pause.For(ctx, 100*time.Millisecond) {
			return watch, err
		}
	}
}

// dispatch puts a step and waits for its results.
func (c *callerRole) dispatch(ctx context.Context, step []*planned, open map[protocol.CallID]*planned, news <-chan *protocol.Result) {
	ctx, cancel := context.WithTimeout(ctx, c.Patience)
	defer cancel()
	issued := time.Now()
	for _, p := range step {
		p.Again = c.put[p.ID]
		if p.IssuedAt = issued; !p.Deadline.IsZero() {
			p.Deadline = issued.Add(p.Deadline.Sub(time.Unix(0, 0)))
		}
		bare := p.Call
		bare.Payload = nil
		c.journal.write(&Record{Kind: KindPut, CallID: p.ID, Call: &bare})
	}
	c.putAll(ctx, step)
	var cancels sync.WaitGroup
	for _, p := range step {
		if p.cancelAfter >= 0 {
			cancels.Go(func() { c.cancelLater(ctx, p) })
		}
	}
	c.follow(ctx, open, news)
	cancels.Wait()
	for _, p := range open {
		c.journal.write(&Record{Kind: KindGaveUp, CallID: p.ID})
	}
}

// putAll puts until everything is accepted, as a coordinator would.
func (c *callerRole) putAll(ctx context.Context, step []*planned) {
	for len(step) > 0 && ctx.Err() == nil {
		var refused []*planned
		for _, p := range step {
			err := c.publisher.Enqueue(ctx, lane.Outgoing{Call: &p.Call})
			if err == nil {
				c.journal.write(&Record{Kind: KindAccepted, CallID: p.ID})
				continue
			}
			c.journal.write(&Record{Kind: KindRefused, CallID: p.ID, Message: err.Error()})
			p.Again = true
			refused = append(refused, p)
		}
		if step = refused; len(step) > 0 {
			pause.For(ctx, 100*time.Millisecond)
		}
	}
}

func (c *callerRole) cancelLater(ctx context.Context, p *planned) {
	pause.For(ctx, p.cancelAfter)
	c.journal.write(&Record{Kind: KindCancel, CallID: p.ID})
	for c.publisher.Cancel(ctx, &p.Call) != nil {
		if !pause.For(ctx, 100*time.Millisecond) {
			return
		}
	}
	c.journal.write(&Record{Kind: KindHeard, CallID: p.ID})
}

// follow waits for the results, and looks for them now and then.
func (c *callerRole) follow(ctx context.Context, open map[protocol.CallID]*planned, news <-chan *protocol.Result) {
	look := time.NewTicker(500 * time.Millisecond)
	defer look.Stop()
	for len(open) > 0 {
		select {
		case r := <-news:
			c.done(open, r)
		case <-look.C:
			for _, p := range open {
				if r, err := c.publisher.Result(ctx, p.SessionID, p.ID); err == nil && r != nil {
					c.done(open, r)
				}
			}
		case <-ctx.Done():
			return
		}
	}
}

// done writes a result down, also a second one of the same call.
func (c *callerRole) done(open map[protocol.CallID]*planned, r *protocol.Result) {
	record := Record{Kind: KindTold, CallID: r.CallID, Worker: r.WorkerID, Attempt: r.Attempt, Status: r.Status}
	if r.Error != nil {
		record.Code = r.Error.Code
	}
	c.journal.write(&record)
	if open[r.CallID] != nil {
		delete(open, r.CallID)
		c.made.Add(1)
	}
}

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
