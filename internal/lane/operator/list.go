package operator

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"

	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/internal/lane/store"
	"github.com/toolfleet/toolfleet/internal/pause"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// State says what stands between a lane's calls and a worker.
type State string

// Every state of a lane that has anything.
const (
	StateReady   State = "ready"   // waits for a worker with a free slot
	StateHeld    State = "held"    // a worker holds it
	StateLost    State = "lost"    // its holder does not answer: taken over when its heartbeat has stood still for a lease
	StateStalled State = "stalled" // has calls and no ready message: a worker makes it ready within a second or two
	StatePaused  State = "paused"  // starts nothing until it is resumed; it may be held or not
)

// Status is what is known of a lane that has anything.
type Status struct {
	// Lane is empty when nothing that is stored names it.
	Lane  protocol.Lane     `json:"lane"`
	Hash  protocol.LaneHash `json:"hash"` // as in subjects
	Pool  protocol.Pool     `json:"pool"`
	State State             `json:"state"`
	// Waiting is the number of unfinished calls that do not run.
	Waiting int `json:"waiting"`
	// OldestMS is how long ago the oldest unfinished call was accepted, in milliseconds; 0 without
	// one.
	OldestMS int64 `json:"oldest_ms"`
	// Holder is the worker that says that it holds the lane, for HeldMS milliseconds; empty when
	// none does.
	Holder  protocol.WorkerID  `json:"holder,omitempty"`
	HeldMS  int64              `json:"held_ms,omitempty"`
	Running []lane.RunningCall `json:"running"` // the longest first

	oldest time.Time // when that call was accepted, by the server's clock; zero without one
}

// List is the answer of [Operator.List].
type List struct {
	Lanes   []Status
	LeftOut int // lanes beyond the limit
	// Incomplete says that there may be lanes that are not even counted.
	Incomplete bool
}

const (
	// DefaultLaneLimit is how many lanes [Operator.List] returns when it is not told.
	DefaultLaneLimit = 100
	// maxLooked bounds the lanes that are looked at one by one.
	maxLooked = 4096
	// lookers is how many are looked at at once.
	lookers = 8
	// doubtAfter is how long a lane must look as if nobody cared for it to be shown so:
	// longer than publishers take to make up for a ready message.
	doubtAfter = 100 * time.Millisecond
)

// List returns the lanes of a pool that have anything, the one with the oldest call first; a limit
// of 0 means [DefaultLaneLimit]. When more than 4,096 lanes have something, those without a ready
// message and then those with the most calls are looked at, and the others only counted.
func (o *Operator) List(ctx context.Context, pool protocol.Pool, limit int) (*List, error) {
	if limit <= 0 {
		limit = DefaultLaneLimit
	}
	at := time.Now()
	if _, err := o.clock.Sync(ctx, o.store.Calls); err != nil {
		return nil, fmt.Errorf("list lanes of pool %s: %w", pool, err)
	}
	found, complete, err := o.survey(ctx, pool, "*")
	if err != nil {
		return nil, fmt.Errorf("list lanes of pool %s: %w", pool, err)
	}
	slices.SortFunc(found, func(a, b *survey) int {
		return cmp.Or(compareBool(a.ready, b.ready), cmp.Compare(b.calls, a.calls), cmp.Compare(a.hash, b.hash))
	})
	list := &List{Incomplete: !complete}
	if len(found) > maxLooked {
		list.LeftOut, found = len(found)-maxLooked, found[:maxLooked]
	}
	if list.Lanes, err = o.look(ctx, pool, found, at); err != nil {
		return nil, fmt.Errorf("list lanes of pool %s: %w", pool, err)
	}
	if len(list.Lanes) > limit {
		list.LeftOut, list.Lanes = list.LeftOut+len(list.Lanes)-limit, list.Lanes[:limit]
	}
	if list.Lanes, err = o.lookAgain(ctx, pool, list.Lanes, at); err != nil {
		return nil, fmt.Errorf("list lanes of pool %s: %w", pool, err)
	}
	return list, nil
}

func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}

// lookAgain looks a second time at lanes that look as if nobody cared for them: the
// streams are not read in one moment, and a lane that changes hands may look so.
func (o *Operator) lookAgain(ctx context.Context, pool protocol.Pool, lanes []Status, at time.Time) ([]Status, error) {
	sure, doubtful := []Status{}, []*survey{}
	for _, status := range lanes {
		if status.State != StateStalled && status.State != StateLost {
			sure = append(sure, status)
			continue
		}
		doubtful = append(doubtful, &survey{pool: pool, hash: status.Hash})
	}
	if len(doubtful) == 0 {
		return sure, nil
	}
	if !pause.For(ctx, doubtAfter) {
		return nil, context.Cause(ctx)
	}
	var group errgroup.Group
	group.SetLimit(lookers)
	for i := range doubtful {
		group.Go(func() error {
			again, _, err := o.survey(ctx, pool, doubtful[i].hash)
			if err == nil && len(again) > 0 {
				doubtful[i] = again[0]
			}
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	again, err := o.look(ctx, pool, doubtful, at)
	return sorted(append(sure, again...)), err
}

// look finds out the state of lanes, and leaves out those that have nothing by now.
func (o *Operator) look(ctx context.Context, pool protocol.Pool, found []*survey, at time.Time) ([]Status, error) {
	sightings := make([]*sighting, len(found))
	group, each := errgroup.WithContext(ctx)
	group.SetLimit(lookers)
	for i, s := range found {
		group.Go(func() (err error) {
			sightings[i], err = o.sight(each, pool, s)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	held, err := o.ask(ctx, o.store.Fleet.AskAllSubject(pool), func(h holdings) bool {
		return !slices.ContainsFunc(sightings, func(s *sighting) bool { return s.claim != nil && h.of(s.hash, s.claim) == nil })
	})
	if err != nil {
		return nil, err
	}
	lanes := []Status{}
	for _, s := range sightings {
		status, err := o.status(ctx, s, held.of(s.hash, s.claim))
		if err != nil {
			return nil, err
		}
		if !status.oldest.IsZero() {
			status.OldestMS = o.clock.AgeAt(at, status.oldest).Milliseconds()
		}
		if s.ready != nil || s.first != nil || s.paused || s.claim != nil { // else it has nothing by now
			lanes = append(lanes, status)
		}
	}
	return sorted(lanes), nil
}

// sorted puts the lane with the oldest call first, and those without one last. Only the server's
// clock tells which is older: what this machine takes for ages is as wrong as its measure of that
// clock, and 0 for all that it takes to be of the future.
func sorted(lanes []Status) []Status {
	slices.SortFunc(lanes, func(a, b Status) int {
		return cmp.Or(compareBool(a.oldest.IsZero(), b.oldest.IsZero()), a.oldest.Compare(b.oldest),
			cmp.Compare(a.Lane, b.Lane), cmp.Compare(a.Hash, b.Hash))
	})
	return lanes
}

// sighting is what the calls stream has of a lane.
type sighting struct {
	*survey

	lane  protocol.Lane
	ready *jetstream.RawStreamMsg
	first *jetstream.RawStreamMsg // the first call of the mailbox
	claim *store.StoredClaim      // nil when nobody holds the lane
}

// sight reads the ready message and the first call of a lane.
func (o *Operator) sight(ctx context.Context, pool protocol.Pool, s *survey) (*sighting, error) {
	out := &sighting{survey: s}
	var err error
	if out.claim, err = o.store.Claim(ctx, pool, s.hash); err != nil {
		return nil, err
	}
	if out.claim != nil {
		out.lane = out.claim.Lane
	}
	if out.ready, err = o.readyMessage(ctx, pool, s.hash); err != nil {
		return nil, err
	}
	if out.ready != nil {
		out.lane = readableLane(out.ready.Header, s.hash)
	}
	if s.calls == 0 && !s.paused {
		return out, nil
	}
	for seq := uint64(0); out.first == nil; {
		msg, err := o.store.Next(ctx, o.store.Fleet.MailboxFilter(pool, s.hash), seq)
		if err != nil {
			return nil, err
		}
		if msg == nil {
			break
		}
		if out.lane == "" {
			out.lane = readableLane(msg.Header, s.hash)
		}
		if o.store.Fleet.ParseMailboxSubject(msg.Subject).Kind == protocol.EntryCall {
			out.first = msg
		}
		seq = msg.Sequence + 1
	}
	return out, nil
}

// readableLane reads the lane's name from a message; "" when it does not have it.
func readableLane(header nats.Header, hash protocol.LaneHash) protocol.Lane {
	var lane protocol.Lane
	if json.Unmarshal([]byte(`"`+header.Get(protocol.HeaderLane)+`"`), &lane) != nil || lane.Hash() != hash {
		return ""
	}
	return lane
}

// status puts together what the stream and the holder tell.
func (o *Operator) status(ctx context.Context, s *sighting, holder *holding) (Status, error) {
	status := Status{Lane: s.lane, Hash: s.hash, Pool: s.pool, Running: []lane.RunningCall{}}
	calls := s.calls
	if s.first == nil {
		calls = 0 // they ended meanwhile
	} else {
		status.oldest = s.first.Time
	}
	if holder != nil {
		status.Holder, status.HeldMS, status.Running = holder.worker, holder.HeldMS, holder.longestFirst()
	}
	unfinished, err := o.inlineUnfinished(ctx, s.ready, status.Running, s.claim != nil)
	if err != nil {
		return status, err
	}
	if unfinished {
		calls++
		if status.oldest.IsZero() || s.ready.Time.Before(status.oldest) {
			status.oldest = s.ready.Time
		}
	}
	status.Waiting = max(calls-len(status.Running), 0)
	status.State = s.state(holder)
	return status, nil
}

func (s *sighting) state(holder *holding) State {
	switch {
	case s.paused:
		return StatePaused
	case holder != nil:
		return StateHeld
	case s.claim != nil && s.claim.Life != "":
		return StateLost
	case s.ready == nil:
		return StateStalled
	}
	return StateReady
}

func (h *holding) longestFirst() []lane.RunningCall {
	slices.SortFunc(h.Running, func(a, b lane.RunningCall) int {
		return cmp.Or(cmp.Compare(b.RunningMS, a.RunningMS), cmp.Compare(a.CallID, b.CallID))
	})
	return h.Running
}

// inlineUnfinished reports whether a ready message carries a call that has no result yet.
func (o *Operator) inlineUnfinished(ctx context.Context, ready *jetstream.RawStreamMsg, running []lane.RunningCall, claimed bool) (bool, error) {
	if ready == nil || len(ready.Data) == 0 {
		return false, nil
	}
	id := protocol.CallID(ready.Header.Get(protocol.HeaderCall))
	if !claimed || slices.ContainsFunc(running, func(r lane.RunningCall) bool { return r.CallID == id }) {
		return true, nil
	}
	return o.unfinished(ctx, protocol.SessionID(ready.Header.Get(protocol.HeaderSession)), id)
}
