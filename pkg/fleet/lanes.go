package fleet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolfleet/toolfleet/internal/calls"
	"github.com/toolfleet/toolfleet/internal/judge"
	"github.com/toolfleet/toolfleet/internal/lane/operator"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/pkg/fleet/report"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Lanes reports the lanes of a pool, and changes what happens in them. It needs no worker. A method
// whose rights the user of the connection lacks sends nothing, and its error wraps [ErrRights].
type Lanes struct {
	client *Client
	pool   protocol.Pool
}

// Lanes returns the lanes of a pool; "" means [protocol.DefaultPool].
func (c *Client) Lanes(pool protocol.Pool) Lanes {
	return Lanes{c, cmp.Or(pool, protocol.DefaultPool)}
}

// inLanes calls a method. With change set it needs the rights to change lanes.
func inLanes[T any](ctx context.Context, l Lanes, change bool, method func(context.Context, *operator.Operator) (T, error)) (none T, err error) {
	if _, err := protocol.ParsePool(string(l.pool)); err != nil {
		return none, invalid(err)
	}
	f := l.client.inner
	rights := []natsio.Rights{natsio.LaneRights(f.Name, l.pool)}
	if change {
		rights = append(rights, natsio.LaneChangeRights(f.Name, l.pool))
	}
	return do(ctx, l.client, rights, func(ctx context.Context) (T, error) {
		if err := judge.Judge(ctx, judge.Change, judge.Object{Kind: judge.Lane, ID: string(l.pool), Owner: judge.TheFleet()}); err != nil {
			return none, err // also to look: calls of all tenants wait there, with what they do
		}
		o, err := operator.New(ctx, f.Conn(l.pool), f.Name)
		if err != nil {
			return none, err
		}
		return method(ctx, o)
	})
}

// inLane is inLanes for a method about one lane.
func inLane[T any](ctx context.Context, l Lanes, lane protocol.Lane, change bool, method func(context.Context, *operator.Operator) (T, error)) (none T, err error) {
	key, err := protocol.ParseResourceKey(string(lane))
	if err == nil && key.Lane() != lane {
		err = fmt.Errorf("lane %s: must be the first two segments of a resource key: %s", lane, key.Lane())
	}
	if err != nil {
		return none, invalid(err)
	}
	return inLanes(ctx, l, change, method)
}

// List returns the lanes that have calls, are held or paused, the one with the oldest call first; a
// limit of 0 means 100. What it costs depends on the limit, not on the number of lanes. When the
// first 4,096 stored messages are of fewer lanes, the others are chosen by the number of their
// calls.
func (l Lanes) List(ctx context.Context, limit int) (*report.LaneList, error) {
	return l.find(ctx, operator.Query{Limit: limit})
}

// LaneQuery says which lanes [Lanes.Find] returns.
type LaneQuery struct {
	// Words are all in the name of the lane, in any case. A lane whose calls are behind the first
	// 4,096 stored messages is found by its whole name only.
	Words string
	// Skip is how many lanes come before, and Limit how many are returned; 0 means 100.
	Skip, Limit int
}

// Find is List for a page of the lanes, or for those whose names have some words. LeftOut of the
// list is how many come after it.
func (l Lanes) Find(ctx context.Context, q LaneQuery) (*report.LaneList, error) {
	if q.Skip < 0 || q.Limit < 0 {
		return nil, invalid(fmt.Errorf("skip %d, limit %d: must be 0 or more", q.Skip, q.Limit))
	}
	return l.find(ctx, operator.Query(q))
}

func (l Lanes) find(ctx context.Context, q operator.Query) (*report.LaneList, error) {
	return inLanes(ctx, l, false, func(ctx context.Context, o *operator.Operator) (*report.LaneList, error) {
		list, err := o.Find(ctx, l.pool, q)
		if err == nil {
			calls.AddUnserved(ctx, l.client.inner.Conn(l.pool), l.client.inner.Name, l.pool, list.Lanes)
		}
		return list, err
	})
}

// Show returns a lane with its first unfinished calls; a limit of 0 means 256. It asks the workers
// which requirements of waiting calls none of them meets, which takes half a second. A lane that
// has nothing is [ErrNotFound].
func (l Lanes) Show(ctx context.Context, lane protocol.Lane, limit int) (*report.LaneCalls, error) {
	return inLane(ctx, l, lane, false, func(ctx context.Context, o *operator.Operator) (*report.LaneCalls, error) {
		shown, err := o.Show(ctx, l.pool, lane, limit)
		if err == nil {
			calls.AddUnmet(ctx, l.client.inner.Conn(l.pool), l.client.inner.Name, l.pool, shown.Calls)
			next := slices.IndexFunc(shown.Calls, func(c report.Call) bool { return c.State == operator.CallWaiting })
			if len(shown.Running) == 0 && shown.State != operator.StatePaused && next >= 0 && shown.Calls[next].WaitsFor != "" { // a free slot would not help
				shown.WaitsFor, shown.Wait = shown.Calls[next].WaitsFor, shown.Calls[next].Wait
			}
		}
		return shown, err
	})
}

// Bounds of the waiting calls that [Lanes.Unmet] reads.
const (
	maxIdleLanes = 32
	maxIdleCalls = 16
)

// Unmet returns waiting calls that none of the pool's workers can run, with WaitsFor set: at most
// 16 of each of the 32 lanes that have waited longest.
func (l Lanes) Unmet(ctx context.Context) ([]report.Call, error) {
	return inLanes(ctx, l, false, l.unmet)
}

func (l Lanes) unmet(ctx context.Context, o *operator.Operator) ([]report.Call, error) {
	waiting, err := o.Waiting(ctx, l.pool, maxIdleLanes, maxIdleCalls)
	if err != nil || len(waiting) == 0 {
		return nil, err
	}
	calls.AddUnmet(ctx, l.client.inner.Conn(l.pool), l.client.inner.Name, l.pool, waiting)
	return slices.DeleteFunc(waiting, func(c report.Call) bool { return c.WaitsFor == "" }), nil
}

// Pause keeps the calls of a lane from starting until Resume; running calls continue. Calls are
// accepted and wait. A pause is stored, and may come before the lane's first call. confirmed means
// that no call starts any more; it is false when the lane's holder did not answer within 3 s.
func (l Lanes) Pause(ctx context.Context, lane protocol.Lane) (confirmed bool, err error) {
	return inLane(ctx, l, lane, true, func(ctx context.Context, o *operator.Operator) (bool, error) { return o.Pause(ctx, l.pool, lane) })
}

// Resume ends a pause, and reports whether the lane was paused.
func (l Lanes) Resume(ctx context.Context, lane protocol.Lane) (paused bool, err error) {
	return inLane(ctx, l, lane, true, func(ctx context.Context, o *operator.Operator) (bool, error) { return o.Resume(ctx, l.pool, lane) })
}

// Wake publishes a lane's ready message if it is missing, and reports whether it was. Workers do
// that themselves within a second or two. A lane that has nothing is [ErrNotFound].
func (l Lanes) Wake(ctx context.Context, lane protocol.Lane) (missing bool, err error) {
	return inLane(ctx, l, lane, true, func(ctx context.Context, o *operator.Operator) (bool, error) { return o.Wake(ctx, l.pool, lane) })
}

// Cancel cancels one call of a lane: it does not start, or is killed. That is stored, and happens
// when a worker holds the lane. The error is [ErrNotFound] if the call is unknown or has a result.
func (l Lanes) Cancel(ctx context.Context, lane protocol.Lane, call protocol.CallID) error {
	if _, err := protocol.ParseCallID(string(call)); err != nil {
		return invalid(err)
	}
	_, err := inLane(ctx, l, lane, true, func(ctx context.Context, o *operator.Operator) (struct{}, error) {
		return struct{}{}, o.Skip(ctx, l.pool, lane, call)
	})
	return err
}

// CancelRunning cancels the running calls of a lane, and returns them. Those behind them start
// next, unless the lane is paused. The error is [ErrNotFound] when there is none.
func (l Lanes) CancelRunning(ctx context.Context, lane protocol.Lane) ([]report.RunningCall, error) {
	return inLane(ctx, l, lane, true, func(ctx context.Context, o *operator.Operator) ([]report.RunningCall, error) {
		return o.Kill(ctx, l.pool, lane)
	})
}

// Pools returns the pools that a worker has served, or that were made for workers, sorted. It
// leaves out [protocol.SessionPool].
func (c *Client) Pools(ctx context.Context) ([]protocol.Pool, error) {
	return do(ctx, c, []natsio.Rights{natsio.PoolsRights(c.inner.Name)}, func(ctx context.Context) ([]protocol.Pool, error) {
		if err := seeWorkers(ctx, ""); err != nil {
			return nil, err
		}
		all := []protocol.Pool{}
		for _, part := range c.inner.Parts() {
			pools, err := natsio.Pools(ctx, part.JS, part.Name)
			if err != nil {
				return nil, err
			}
			all = append(all, pools...)
		}
		slices.Sort(all)
		return slices.DeleteFunc(slices.Compact(all), func(pool protocol.Pool) bool { return pool == protocol.SessionPool }), nil
	})
}

// UnservedPools returns the pools with waiting calls that no worker has served and that were not
// made for workers, sorted: a call may name a pool by mistake. It leaves out
// [protocol.SessionPool].
func (c *Client) UnservedPools(ctx context.Context) ([]protocol.Pool, error) {
	served, err := c.Pools(ctx)
	if err != nil {
		return nil, err
	}
	var waiting []protocol.Pool
	for _, part := range c.inner.Parts() {
		pools, err := inLanes(ctx, c.Lanes(""), false, func(ctx context.Context, _ *operator.Operator) ([]protocol.Pool, error) {
			o, err := operator.New(ctx, part.NC, part.Name)
			if err != nil {
				return nil, err
			}
			return o.Pools(ctx)
		})
		if err != nil {
			return nil, err
		}
		waiting = append(waiting, pools...)
	}
	slices.Sort(waiting)
	return slices.DeleteFunc(slices.Compact(waiting), func(pool protocol.Pool) bool {
		return pool == protocol.SessionPool || slices.Contains(served, pool)
	}), nil
}

// seeWorkers judges whether workers may be seen: all tenants share them, and they do not say what
// they run.
func seeWorkers(ctx context.Context, pool protocol.Pool) error {
	return judge.Judge(ctx, judge.See, judge.Object{Kind: judge.Worker, ID: string(pool), Owner: judge.TheFleet()})
}

// Workers returns the workers of a pool that answer within a time, sorted by their ids. The list is
// nil, at once, when no worker is there. A pool of "" means [protocol.DefaultPool], and 0 waits a
// second. The workers of [protocol.SessionPool] are the coordinators that take turns.
func (c *Client) Workers(ctx context.Context, pool protocol.Pool, wait time.Duration) ([]*report.Worker, error) {
	pool = cmp.Or(pool, protocol.DefaultPool)
	if _, err := protocol.ParsePool(string(pool)); err != nil {
		return nil, invalid(err)
	}
	if wait < 0 {
		return nil, invalid(fmt.Errorf("wait %s: must not be negative", wait))
	}
	return do(ctx, c, []natsio.Rights{natsio.WorkersRights(c.inner.Name, pool)}, func(ctx context.Context) ([]*report.Worker, error) {
		if err := seeWorkers(ctx, pool); err != nil {
			return nil, err
		}
		workers, err := calls.Workers(ctx, c.inner.Conn(pool), c.inner.Name, pool, cmp.Or(wait, time.Second))
		if errors.Is(err, nats.ErrNoResponders) {
			return nil, nil
		}
		return append([]*report.Worker{}, workers...), err
	})
}
