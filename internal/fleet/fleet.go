// Package fleet has what a connection to a fleet consists of: NATS, the dispatcher, the journal,
// and a NATS server and workers inside the process. Package
// [github.com/toolfleet/toolfleet/pkg/fleet] makes the connection.
package fleet

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/toolfleet/toolfleet/internal/access/stored"
	"github.com/toolfleet/toolfleet/internal/calls"
	"github.com/toolfleet/toolfleet/internal/inplace"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/natsio/embedded"
	"github.com/toolfleet/toolfleet/internal/natsio/shared"
	"github.com/toolfleet/toolfleet/internal/session/journal"
	"github.com/toolfleet/toolfleet/internal/session/schedule"
	"github.com/toolfleet/toolfleet/internal/system/pause"
	"github.com/toolfleet/toolfleet/internal/telemetry"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/wire/signing"
	"github.com/toolfleet/toolfleet/internal/worker"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// ServerDir is the folder of an embedded server's files in a data directory.
const ServerDir = "nats"

// Command are the options that commands of this module have in addition to those of programs.
type Command struct {
	// Client is the name of this process, for the server's monitoring.
	Client string
	// Listen is the address on which others reach a server inside this process, and Notify gets
	// sentences about that server, see [embedded.Options].
	Listen     string
	Plain, TLS bool
	Notify     func(sentence string)
	// Authority is the fingerprint of the only authority whose servers are trusted, see
	// [natsio.TLS].
	Authority string
	// Shared is the server of the processes of this user, instead of a URL.
	Shared *shared.Server
	// Origin is that of workers inside this process, see [lane.Options]; "" means that of an
	// embedded server, or none.
	Origin string
	// Opened gets the fleet below the client of a program, which closes it.
	Opened func(*Fleet)
}

// Fleet is a connection to a fleet. Its fields are read only.
type Fleet struct {
	Name       protocol.Fleet
	Bodies     string // the S3 store of workspaces, see [workspace.Open]; "" without one
	NC         *nats.Conn
	JS         jetstream.JetStream
	Dispatcher *calls.Dispatcher
	Journal    *journal.Journal
	Tracer     trace.Tracer // nil means that of the process, as Meter
	Meter      metric.Meter
	Logger     *slog.Logger // when an embedded server can store nothing more, records count as debug
	Signer     *signing.Signer
	Pools      map[protocol.Pool]*Fleet // those with servers of their own, see [Fleet.At]
	// Removed is called when a session was removed by this process, so that nothing outside of the
	// fleet has its text any more; nil without such a copy.
	Removed func(ctx context.Context, id protocol.SessionID) error

	// TokenInFile reports whether a file of this process has a client's token, by
	// [judge.Principal].Token; nil is no file. It is set before a turn runs.
	TokenInFile func(token string) bool

	here
	closing
}

// here is what a fleet has if its server is inside this process.
type here struct {
	// Server is the embedded server; nil when the fleet is elsewhere.
	Server *embedded.Server
	// Origin is that of workers inside this process, see [lane.Options]. Only one process at a time
	// can have the directory of an embedded server, so heartbeats from before belong to a process
	// that has ended.
	Origin string
}

// closing is what the end of a fleet closes.
type closing struct {
	mu      sync.Mutex // guards the rest while workers are started
	abort   func()     // ends the embedded worker at once; nil without one
	closers []func()
}

// OnClose has Close call a function, before those that were added earlier.
func (c *closing) OnClose(closer func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closers = append(c.closers, closer)
}

// Abort ends the embedded worker at once.
func (c *closing) Abort() {
	c.mu.Lock()
	abort := c.abort
	c.mu.Unlock()
	if abort != nil {
		abort()
	}
}

// Open opens what a fleet does over NC: its streams exist. The part of a pool has no journal.
func (f *Fleet) Open(ctx context.Context, journaled bool) (err error) {
	f.Tracer, f.Meter = cmp.Or(f.Tracer, telemetry.Tracer()), cmp.Or(f.Meter, telemetry.Meter())
	if f.JS, err = jetstream.New(f.NC); err != nil {
		return err
	}
	if f.Dispatcher, err = calls.New(ctx, f.NC, f.Name,
		&calls.Options{Tracer: f.Tracer, Meter: f.Meter, Signer: f.Signer, Secret: f.Secret, Keys: f.Keys(), Logger: f.Logger}); err != nil {
		return err
	}
	f.OnClose(f.Dispatcher.Close)
	if journaled {
		f.Journal, err = journal.Open(ctx, f.NC, f.Name)
	}
	return err
}

// CheckRights is [natsio.CheckRights] where each of the rights is needed.
func (f *Fleet) CheckRights(ctx context.Context, rights ...natsio.Rights) error {
	for _, part := range f.Parts() {
		var here []natsio.Rights
		for _, r := range rights {
			if f.At(r.Pool) == part {
				here = append(here, r)
			}
		}
		if err := natsio.CheckRights(ctx, part.NC, here...); err != nil {
			return err
		}
	}
	return nil
}

// At is the part of the fleet that a pool is in: that of Pools, which has no Journal, or the fleet
// itself.
func (f *Fleet) At(pool protocol.Pool) *Fleet {
	if part := f.Pools[pool]; part != nil {
		return part
	}
	return f
}

// Conn is the connection to the part that a pool is in.
func (f *Fleet) Conn(pool protocol.Pool) *nats.Conn { return f.At(pool).NC }

// Parts are all that [Fleet.At] may return, each once, the fleet itself first.
func (f *Fleet) Parts() []*Fleet {
	parts := []*Fleet{f}
	for _, part := range f.Pools {
		if !slices.Contains(parts, part) {
			parts = append(parts, part)
		}
	}
	return parts
}

// Schedules opens the fleet's schedules, which this process may change. Calls are signed with its
// key.
func (f *Fleet) Schedules(ctx context.Context) (*schedule.Store, error) {
	store, err := schedule.Open(ctx, f.JS, f.Name)
	if err == nil {
		store.Signer = f.Signer
		err = f.CheckRights(ctx, natsio.ScheduleRights(f.Name))
	}
	return store, err
}

// Tokens are the tokens of the fleet, which let clients in over HTTP.
func (f *Fleet) Tokens() stored.Store {
	return stored.Store{JS: f.JS, Fleet: f.Name, Signer: f.Signer}
}

// GiverValid is that of [github.com/toolfleet/toolfleet/pkg/loop.Options].
func (f *Fleet) GiverValid(ctx context.Context, giver protocol.Giver) bool {
	return f.Tokens().GiverValid(ctx, giver, f.TokenInFile)
}

// Keys are those of who may answer for sessions of this process: its own key, and unknown ones for
// the default tenant; nil without a key.
func (f *Fleet) Keys() *signing.Keys {
	if f.Signer == nil {
		return nil
	}
	keys, _ := signing.OpenFor(f.Signer, "") // fails only with a file
	return keys
}

// IsUnused reports whether a session has no journal and no result, as far as the fleet answers.
func (f *Fleet) IsUnused(id protocol.SessionID) bool {
	ctx, cancel := context.WithTimeout(context.Background(), unusedTimeout) //nolint:forbidigo // the fleet is being closed
	defer cancel()
	for name, subject := range map[string]string{
		wire.SessionsStream(f.Name): wire.EventSubject(f.Name, id), wire.ResultsStream(f.Name): wire.ResultSubject(f.Name, id, ">"),
	} {
		stream, err := f.JS.Stream(ctx, name)
		if err != nil {
			return false
		}
		info, err := stream.Info(ctx, jetstream.WithSubjectFilter(subject))
		if err != nil || len(info.State.Subjects) > 0 {
			return false
		}
	}
	return true
}

// unusedTimeout bounds [Fleet.IsUnused].
const unusedTimeout = 2 * time.Second

// Close ends everything that was started, last first. Each step is bounded in time. When an
// embedded server can store nothing more, Close does not wait for running calls.
func (f *Fleet) Close() {
	f.mu.Lock()
	closers := f.closers
	f.closers = nil
	f.mu.Unlock()
	if f.Server != nil && f.Server.Failing() {
		f.Abort()
		f.NC.Close()
	}
	for _, closer := range slices.Backward(closers) {
		closer()
	}
}

// How long the end of a worker inside this process may take.
const (
	drainTime = 5 * time.Second // for running calls to end
	killTime  = 3 * time.Second // for killed ones to end
)

// Worker is a worker inside this process.
type Worker struct {
	stop, abort context.CancelFunc
	done        chan struct{}
	err         error // set before done is closed
}

// Done is closed when nothing of the worker runs any more.
func (w *Worker) Done() <-chan struct{} { return w.done }

// Err is why the worker ended by itself; nil while it runs, and after it was drained.
func (w *Worker) Err() error {
	select {
	case <-w.done:
		return w.err
	default:
		return nil
	}
}

// ErrStuck means that a handler in this process ignored the end of its context.
var ErrStuck = errors.New("a handler continues, although its context has ended")

// Drain ends the worker: it claims no more calls, and returns when those that run have ended. When
// ctx ends first it kills them, and its error is the cause: other workers run them again, except
// for those that may run once only. The error wraps [ErrStuck] if a handler then continues.
func (w *Worker) Drain(ctx context.Context) error {
	w.stop()
	select {
	case <-w.done:
	case <-ctx.Done():
	}
	select {
	case <-w.done: // also if ctx has ended, too
		return w.err
	default:
	}
	w.abort()
	killed := time.NewTimer(killTime)
	defer killed.Stop()
	select {
	case <-w.done:
		return cmp.Or(w.err, context.Cause(ctx))
	case <-killed.C:
		return fmt.Errorf("%w: %w", ErrStuck, context.Cause(ctx))
	}
}

// StartWorker runs a worker inside this process until it is drained, by its handle or by Close. The
// fleet's name, the logger, the tracer, and the queue of directories that are used in place are
// filled in.
func (f *Fleet) StartWorker(ctx context.Context, o worker.Options) (*Worker, error) {
	if o.Workspace != nil {
		var err error
		if o.InPlace, err = inplace.OpenOwn(); err != nil { // as where the state folder is read-only
			f.Logger.WarnContext(ctx, "calls do not wait for other processes that use the same directory, and may overlap with their calls", slog.Any("error", err))
		}
	}
	o.Bodies = f.Bodies
	o.Fleet, o.Origin, o.Logger, o.Tracer, o.Meter = f.Name, f.Origin, cmp.Or(o.Logger, f.Logger), f.Tracer, f.Meter
	w, err := worker.New(ctx, f.At(cmp.Or(o.Pool, protocol.DefaultPool)).NC, o)
	if err != nil {
		return nil, err
	}
	background := context.WithoutCancel(ctx)
	running, stop := context.WithCancel(background)
	drain, abort := context.WithCancel(background)
	started := &Worker{stop: stop, abort: abort, done: make(chan struct{})}
	go func() {
		defer close(started.done)
		defer abort()
		started.err = w.Run(running, drain)
	}()
	f.mu.Lock()
	f.abort = abort
	f.mu.Unlock()
	f.OnClose(func() {
		ctx, cancel := context.WithTimeout(background, drainTime)
		defer cancel()
		err := started.Drain(ctx) // what it kills is not lost
		if !errors.Is(err, ErrStuck) {
			err = started.err
		}
		if err != nil {
			f.Logger.WarnContext(ctx, "worker failed", slog.Any("error", err))
		}
	})
	return started, nil
}

// poolTimeout bounds the removal of a pool.
const poolTimeout = 5 * time.Second

// EndPool has what gives out the calls of a pool removed when the fleet is closed, after the
// workers that are started from now on. What waits stays, and the next worker of the pool makes it
// again.
func (f *Fleet) EndPool(ctx context.Context, pool protocol.Pool) {
	f.OnClose(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), poolTimeout)
		defer cancel()
		if err := natsio.RemovePool(ctx, f.JS, f.Name, pool); err != nil {
			f.Logger.DebugContext(ctx, "pool stays", slog.Any("error", err))
		}
	})
}

// secretKey is the key of the secret in [wire.PlacesBucket].
const secretKey = "secret"

// Secret returns a key that all coordinators of the fleet share, and that no client of theirs
// knows. The first one makes it.
func (f *Fleet) Secret(ctx context.Context) ([]byte, error) {
	records, err := f.JS.KeyValue(ctx, wire.PlacesBucket(f.Name))
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", wire.PlacesBucket(f.Name), err)
	}
	made := []byte(rand.Text())
	for {
		entry, err := records.Get(ctx, secretKey)
		if err == nil {
			return entry.Value(), nil
		}
		if errors.Is(err, jetstream.ErrKeyNotFound) {
			if _, err = records.Create(ctx, secretKey, made); err == nil {
				return made, nil
			}
		}
		if !errors.Is(err, jetstream.ErrKeyExists) {
			return nil, fmt.Errorf("secret of the fleet in %s: %w", wire.PlacesBucket(f.Name), err)
		}
		if !pause.For(ctx, pause.Retry) { // one of several servers may not know it yet
			return nil, context.Cause(ctx)
		}
	}
}

// ObserveStored puts what the servers of the fleet have, and what waits there, into the metrics,
// until the returned function is called. Every process that does so reports the same.
func (f *Fleet) ObserveStored() (stop func()) {
	return telemetry.ObserveStored(f.Meter, func(ctx context.Context) (all telemetry.Stored) {
		all.Waiting = map[string]int64{}
		f.addStored(ctx, &all, "")
		for pool, part := range f.Pools {
			part.addStored(ctx, &all, pool)
		}
		return all
	})
}

// addStored adds what is at the servers, or in the account, of a part of the fleet.
func (f *Fleet) addStored(ctx context.Context, all *telemetry.Stored, of protocol.Pool) {
	for _, name := range natsio.StreamNames(f.Name) {
		stream, err := f.JS.Stream(ctx, name)
		if err != nil { // it was never made, or the servers do not answer
			continue
		}
		about := stream.CachedInfo()
		all.Streams = append(all.Streams, telemetry.Stream{
			Name: name, Pool: string(of), Messages: int64(about.State.Msgs), Bytes: int64(about.State.Bytes), Limit: about.Config.MaxBytes, //nolint:gosec // far less
		})
	}
	pools, err := natsio.Pools(ctx, f.JS, f.Name)
	if err != nil { // a user with fewer rights
		pools = []protocol.Pool{protocol.DefaultPool, protocol.SessionPool}
	}
	for _, pool := range pools {
		if of != "" && pool != of {
			continue
		}
		consumer, err := f.JS.Consumer(ctx, wire.CallsStream(f.Name), wire.ReadyConsumer(pool))
		if err == nil {
			all.Waiting[string(pool)] = int64(consumer.CachedInfo().NumPending) //nolint:gosec // far less
		}
	}
}
