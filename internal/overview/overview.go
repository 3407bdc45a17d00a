// Package overview reads one picture of a fleet: its workers, lanes and sessions, what waits and
// why, and what a person should look at first. It is what coordinator top shows, and what the web
// page shows of a fleet.
//
// A [Reader] may be asked every second. Its parts are read concurrently. A part whose reading takes
// long is read more seldom, so that a large fleet is not kept busy by those who watch it.
package overview

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/toolfleet/toolfleet/internal/judge"
	"github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/fleet/report"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Format is the version of the JSON of a [Picture]. Fields may be added to it.
const Format = 1

// Picture is what is known of a fleet. It is not one moment: the fleet goes on while it is read.
type Picture struct {
	Format int            `json:"format"`
	Fleet  protocol.Fleet `json:"fleet"`
	Time   time.Time      `json:"time"` // by the clock of the reader
	// Looks are what a person should look at, the worst first.
	Looks []Look `json:"looks"`
	Rates Rates  `json:"rates"`
	// Workers are those of all pools, and Coordinators those that take turns: lost ones first, then
	// those that are being stopped.
	Workers      []Worker `json:"workers"`
	Coordinators []Worker `json:"coordinators"`
	// Lanes are those of all pools, turns too: stalled and lost ones first, then the longest wait.
	Lanes        []report.Lane `json:"lanes"`
	LanesLeftOut int           `json:"lanes_left_out"`
	// Incomplete means that there may be lanes that are not even counted.
	Incomplete bool `json:"incomplete,omitempty"`
	// Sessions are those that changed last: what waits for a person first, then what runs.
	Sessions        []report.Session `json:"sessions"`
	SessionsLeftOut int              `json:"sessions_left_out"`
	// Waits are those of the listed lanes and sessions, the most calls first.
	Waits []Wait `json:"waits"`
	// Limits are those that hold calls back first.
	Limits []Limit `json:"limits"`
	// Missing are the parts that could not be read. Of lists, what an earlier reading had is there.
	Missing []Missing `json:"missing"`
}

// The states of a [Worker].
const (
	Serving  = "serving"
	Draining = "draining" // it is being stopped
	Silent   = "silent"   // it answered an earlier reading, and not this one
	Lost     = "lost"     // it does not answer, and calls ran there, or it has a lane
)

// Worker is a worker or a coordinator. Of a lost one that no reading has seen, there are only its
// id and pool.
type Worker struct {
	report.Worker

	State string `json:"state"`
	// SilentMS is for how long it has not answered this reader, or, if no reading has seen it, has
	// sent no heartbeat; 0 if that is not known.
	SilentMS int64 `json:"silent_ms,omitempty"`
	// CallsPerS and FailedPerS are the calls that it ended in a second, and those that failed,
	// between the last two readings; nil before the second one.
	CallsPerS  *float64 `json:"calls_per_s,omitempty"`
	FailedPerS *float64 `json:"failed_per_s,omitempty"`
}

// Rates are sums over the workers that answer.
type Rates struct {
	CallsPerS  *float64 `json:"calls_per_s,omitempty"` // nil before the second reading
	FailedPerS *float64 `json:"failed_per_s,omitempty"`
	TurnsPerS  *float64 `json:"turns_per_s,omitempty"`
	Slots      int      `json:"slots"`
	Running    int      `json:"running"` // slots in use
	Waiting    int      `json:"waiting"` // calls that wait, of the listed lanes
	Turns      int      `json:"turns"`   // that run
}

// Wait is what calls wait for: in words, and for programs.
type Wait struct {
	WaitsFor string      `json:"waits_for"`
	Wait     report.Wait `json:"wait"`
	Calls    int         `json:"calls"`
	Lanes    int         `json:"lanes"`
}

// Limit is a limit, and how much of it is used.
type Limit struct {
	fleet.Limit

	// Throttled says that calls are held back or refused, and Why by what.
	Throttled bool            `json:"throttled"`
	Why       string          `json:"why,omitempty"`
	Use       report.LimitUse `json:"use,omitzero"`
	// Lanes is how many of the listed lanes wait for it.
	Lanes int `json:"lanes,omitempty"`
}

// The kinds of a [Look].
const (
	KindWorker  = "worker"
	KindLane    = "lane"
	KindCall    = "call"
	KindLimit   = "limit"
	KindSession = "session"
)

// Look is something that a person should look at.
type Look struct {
	Kind  string `json:"kind"`
	State string `json:"state"` // "lost", "silent", "stalled", "waiting", "paused", "throttled" or "asks"
	What  string `json:"what"`
	Why   string `json:"why,omitempty"`
	// Wait is what it waits for, if it waits.
	Wait  report.Wait `json:"wait,omitzero"`
	AgeMS int64       `json:"age_ms,omitempty"`

	// What it is about, as far as it is about one.
	Pool      protocol.Pool      `json:"pool,omitempty"`
	WorkerID  protocol.WorkerID  `json:"worker_id,omitempty"`
	Lane      protocol.Lane      `json:"lane,omitempty"`
	SessionID protocol.SessionID `json:"session_id,omitempty"`
	CallID    protocol.CallID    `json:"call_id,omitempty"`
}

// Missing is a part of a picture that could not be read.
type Missing struct {
	Part string `json:"part"` // such as "sessions" or "lanes of pool gpu"
	Why  string `json:"why"`
	// Denied means that the principal or the user of the connection has no right to see it.
	Denied bool `json:"denied,omitempty"`
}

// Patience is how long workers may take to answer.
const Patience = 700 * time.Millisecond

// Options of a [Reader]; zero values are the documented defaults.
type Options struct {
	Fleet    protocol.Fleet  // its name, for pictures
	Pools    []protocol.Pool // that are there, also without the right to list them
	Lanes    int             // how many of each pool are listed; 0 means 100
	Sessions int             // how many are listed; 0 means 50
}

// Reader reads pictures for one principal, that of the contexts of its readings: it remembers what
// earlier ones found. It is safe for concurrent use.
type Reader struct {
	client  *fleet.Client
	options Options

	mu       sync.Mutex // held while a picture is read
	pools    []protocol.Pool
	unserved part[[]protocol.Pool]
	workers  map[workerKey]*known
	unmet    pooled[[]report.Call]
	lanes    pooled[*report.LaneList]
	sessions part[sessionList]
	limits   part[[]Limit]
	gaps
}

type sessionList struct {
	all     []report.Session
	leftOut int
}

// New returns a reader that has read nothing yet.
func New(client *fleet.Client, o Options) *Reader {
	if o.Lanes == 0 {
		o.Lanes = 100
	}
	if o.Sessions == 0 {
		o.Sessions = 50
	}
	return &Reader{
		client: client, options: o, workers: map[workerKey]*known{},
		unmet: pooled[[]report.Call]{}, lanes: pooled[*report.LaneList]{}, gaps: gaps{parts: map[partName]gap{}},
	}
}

// gaps are the parts that could not be read, by their names.
type gaps struct {
	noting   sync.Mutex
	parts    map[partName]gap
	answered bool  // something has answered in this reading
	away     error // why something has not
}

// partName names a part of the fleet, or of a pool.
type partName struct {
	what string
	pool protocol.Pool
}

func (n partName) String() string {
	if n.pool == "" {
		return n.what
	}
	return n.what + " of pool " + string(n.pool)
}

// gap is why a part is missing, and until when it is not asked for again.
type gap struct {
	Missing

	until time.Time
}

// deniedFor is for how long a part that was denied is not asked for again: a server logs each
// request without the right to it.
const deniedFor = time.Minute

// errDenied is the error of a part that is not asked for.
var errDenied = errors.New("it was denied a moment ago")

// ask reads a part, unless it was denied a moment ago, and notes why it is missing.
func ask[T any](g *gaps, what partName, read func() (T, error)) (value T, err error) {
	g.noting.Lock()
	wait := time.Now().Before(g.parts[what].until)
	g.noting.Unlock()
	if wait {
		return value, errDenied
	}
	value, err = read()
	g.noting.Lock()
	defer g.noting.Unlock()
	if delete(g.parts, what); err == nil {
		g.answered = true
		return value, nil
	}
	missing := gap{Missing: Missing{Part: what.String(), Why: err.Error()}}
	_, refused := errors.AsType[*judge.RefusalError](err)
	switch {
	case errors.Is(err, fleet.ErrUnreachable), errors.Is(err, fleet.ErrClosed), errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		g.away = fmt.Errorf("%s: %w", what, err)
	case refused, errors.Is(err, fleet.ErrRights):
		missing.Denied, missing.until, g.answered = true, time.Now().Add(deniedFor), true
	default:
		g.answered = true
	}
	g.parts[what] = missing
	return value, err
}

// isMissing reports whether a part could not be read.
func (g *gaps) isMissing(what partName) bool {
	g.noting.Lock()
	defer g.noting.Unlock()
	_, is := g.parts[what]
	return is
}

// share is what part of the time is spent on the reading of a part at most.
const share = 10

// part is a part of a picture, with what the last reading found.
type part[T any] struct {
	value T
	due   time.Time
}

// read asks for a part that is due. Answers that take a fixed time cost nothing: free is that time.
func (p *part[T]) read(g *gaps, what partName, free time.Duration, read func() (T, error)) {
	began := time.Now()
	if began.Before(p.due) {
		return
	}
	value, err := ask(g, what, read)
	p.due = began.Add(share * max(time.Since(began)-free, 0))
	if err == nil {
		p.value = value
	}
}

// pooled is a part of each pool.
type pooled[T any] map[protocol.Pool]*part[T]

// poolsAtOnce is of how many pools a part is read at once.
const poolsAtOnce = 16

// read reads the part of each pool that is due.
func (p pooled[T]) read(r *Reader, what string, free time.Duration, read func(fleet.Lanes) (T, error)) {
	var group errgroup.Group
	group.SetLimit(poolsAtOnce)
	for _, pool := range r.lanePools() {
		of := p[pool]
		if of == nil {
			of = &part[T]{}
			p[pool] = of
		}
		group.Go(func() error {
			of.read(&r.gaps, partName{what, pool}, free, func() (T, error) { return read(r.client.Lanes(pool)) })
			return nil
		})
	}
	_ = group.Wait() // it has none
}

// Read reads a picture. The error is that of a fleet that does not answer at all, or of the
// context: a part that alone cannot be read is in [Picture].Missing.
func (r *Reader) Read(ctx context.Context) (*Picture, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.answered, r.away = false, nil
	if pools, err := ask(&r.gaps, partName{what: "pools"}, func() ([]protocol.Pool, error) { return r.client.Pools(ctx) }); err == nil {
		r.pools = pools
	}
	r.unserved.read(&r.gaps, partName{what: partUnserved}, 0, func() ([]protocol.Pool, error) { return r.client.UnservedPools(ctx) })
	var group sync.WaitGroup
	group.Go(func() { r.readWorkers(ctx) })
	group.Go(func() {
		r.lanes.read(r, "lanes", 0, func(of fleet.Lanes) (*report.LaneList, error) { return of.List(ctx, r.options.Lanes) })
	})
	group.Go(func() {
		r.unmet.read(r, partUnmet, unmetWait, func(of fleet.Lanes) ([]report.Call, error) { return of.Unmet(ctx) })
	})
	group.Go(func() {
		r.sessions.read(&r.gaps, partName{what: "sessions"}, 0, func() (list sessionList, err error) {
			list.all, list.leftOut, err = r.client.Sessions("").List(ctx, r.options.Sessions)
			return list, err
		})
	})
	group.Go(func() {
		r.limits.read(&r.gaps, partName{what: "limits"}, 0, func() ([]Limit, error) { return r.readLimits(ctx) })
	})
	group.Wait()
	switch {
	case r.answered:
		return r.picture(time.Now()), nil
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	default:
		return nil, cmp.Or(r.away, errDenied)
	}
}

// Names of parts; the first two say more about lanes.
const (
	partUnserved = "pools without workers"
	partUnmet    = "waiting calls"
	partWorkers  = "workers"
)

// unmetWait is how long workers may take to say what they can run, see [fleet.Lanes.Unmet].
const unmetWait = 500 * time.Millisecond

// lanePools are the pools with lanes: also those that no worker has served, and that of turns.
func (r *Reader) lanePools() []protocol.Pool {
	pools := append(slices.Concat(r.pools, r.unserved.value, r.options.Pools), protocol.DefaultPool, protocol.SessionPool)
	slices.Sort(pools)
	return slices.Compact(pools)
}

// readLimits reads the limits. It is noted if their use cannot be read.
func (r *Reader) readLimits(ctx context.Context) ([]Limit, error) {
	list, err := r.client.Limits().List(ctx)
	all := make([]Limit, len(list))
	for i := range list {
		all[i].Limit = list[i]
		all[i].Use, _ = ask(&r.gaps, partName{what: "use of limits"}, func() (report.LimitUse, error) {
			return r.client.Limits().Use(ctx, list[i], r.lanePools()...)
		})
	}
	return all, err
}
