package operator

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"

	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/internal/lane/store"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/fleet/report"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Every state of a lane that has anything.
const (
	StateReady   = "ready"
	StateHeld    = "held"
	StateLost    = "lost"
	StateStalled = "stalled"
	StatePaused  = "paused"
	StateDelayed = "delayed"
)

// Status is what is known of a lane that has anything.
type Status = report.Lane

// List is the answer of [Operator.List].
type List = report.LaneList

const (
	// DefaultLaneLimit is how many lanes [Operator.List] returns by default.
	DefaultLaneLimit = 100
	// maxSubjects bounds the subjects that are read of each kind.
	maxSubjects = 300_000
	// maxOldest bounds the messages that are read to find the lanes with the oldest calls.
	maxOldest = 4096
	// parallelReads is how many lanes are read concurrently whose first call is behind these.
	parallelReads = 8
)

// Query says which lanes of a pool [Operator.Find] returns.
type Query struct {
	// Words are all in the name of the lane, in any case. A lane whose calls are behind the first
	// 4,096 messages of the pool is found by its whole name only.
	Words string
	// Skip is how many lanes come before, and Limit how many are returned; 0 means
	// [DefaultLaneLimit].
	Skip, Limit int
}

// matches reports whether a lane is wanted. Names that are not read yet are known by their hash.
func (q *Query) matches(s *storedLane) bool {
	if q.Words == "" || s.hash == wire.HashLane(protocol.Lane(q.Words)) {
		return true
	}
	name := strings.ToLower(string(s.lane))
	for word := range strings.FieldsSeq(strings.ToLower(q.Words)) {
		if !strings.Contains(name, word) {
			return false
		}
	}
	return name != ""
}

// List is [Operator.Find] of the first lanes.
func (o *Operator) List(ctx context.Context, pool protocol.Pool, limit int) (*List, error) {
	return o.Find(ctx, pool, Query{Limit: limit})
}

// Find returns lanes of a pool that have anything, the one with the oldest call first. What it
// costs depends on the limit, not on how many lanes have something: the subjects of the pool are
// one answer, and the lanes are chosen by its first messages. When the first 4,096 messages are of
// fewer lanes, the others are chosen by the number of their calls, those without a ready message
// first.
func (o *Operator) Find(ctx context.Context, pool protocol.Pool, q Query) (*List, error) {
	found, list, err := o.list(ctx, pool, q)
	if err != nil {
		return nil, fmt.Errorf("list lanes of pool %s: %w", pool, err)
	}
	if list.Lanes, err = o.readStates(ctx, pool, found, time.Now()); err != nil {
		return nil, fmt.Errorf("list lanes of pool %s: %w", pool, err)
	}
	return list, nil
}

// Pools returns the pools that have calls which wait for a worker to claim their lane, sorted.
func (o *Operator) Pools(ctx context.Context) ([]protocol.Pool, error) {
	found := map[protocol.Pool]bool{}
	_, err := o.store.EachSubject(ctx, wire.ReadySubject(o.store.Fleet, "*", "*"), maxSubjects, func(subject string) {
		found[protocol.Pool(strings.Split(subject, ".")[2])] = true
	})
	if err != nil {
		return nil, fmt.Errorf("list pools with calls: %w", err)
	}
	return slices.Sorted(maps.Keys(found)), nil
}

// list chooses the lanes of a list, which is still without them.
func (o *Operator) list(ctx context.Context, pool protocol.Pool, q Query) (chosen []*storedLane, list *List, err error) {
	if q.Limit <= 0 {
		q.Limit = DefaultLaneLimit
	}
	found, complete, err := o.survey(ctx, pool, "*")
	if err != nil {
		return nil, nil, err
	}
	all, most := len(found), q.Skip+q.Limit
	if q.Words != "" {
		most = all
	}
	if chosen, err = o.oldest(ctx, pool, found, most); err != nil {
		return nil, nil, err
	}
	if q.Words != "" {
		chosen = slices.DeleteFunc(chosen, func(s *storedLane) bool { return !q.matches(s) })
		all = len(chosen)
	}
	chosen = chosen[min(max(q.Skip, 0), len(chosen)):]
	chosen = chosen[:min(q.Limit, len(chosen))]
	return chosen, &List{Incomplete: !complete, LeftOut: max(all-max(q.Skip, 0)-len(chosen), 0)}, nil
}

// oldest chooses at most limit lanes, those with the oldest calls, and notes the first call of each
// as far as it was read.
func (o *Operator) oldest(ctx context.Context, pool protocol.Pool, found []*storedLane, limit int) ([]*storedLane, error) {
	byHash := make(map[wire.LaneHash]*storedLane, len(found))
	for _, s := range found {
		byHash[s.hash] = s
	}
	var chosen []*storedLane
	filter := wire.PoolFilter(o.store.Fleet, pool)
	for read, from := 0, uint64(0); read < maxOldest && len(chosen) < min(limit, len(found)); {
		page, err := o.store.Page(ctx, filter, from)
		if err != nil {
			return nil, err
		}
		if len(page) == 0 {
			break
		}
		ended, err := o.endedOf(ctx, page)
		if err != nil {
			return nil, err
		}
		for _, msg := range page {
			s := byHash[wire.LaneOfSubject(o.store.Fleet, msg.Subject)]
			if s == nil || !s.note(o.store.Fleet, msg, ended) || len(chosen) == limit {
				continue
			}
			chosen = append(chosen, s)
			delete(byHash, s.hash)
		}
		read, from = read+len(page), page[len(page)-1].Sequence+1
	}
	rest := slices.SortedFunc(maps.Values(byHash), func(a, b *storedLane) int {
		return cmp.Or(falseFirst(a.isReady, b.isReady), cmp.Compare(b.calls, a.calls), cmp.Compare(a.hash, b.hash))
	})
	return append(chosen, rest[:min(len(rest), limit-len(chosen))]...), nil
}

// note notes a message of the lane, and reports whether it is an unfinished call.
func (s *storedLane) note(fleet protocol.Fleet, msg *jetstream.RawStreamMsg, ended map[protocol.CallRef]protocol.Status) bool {
	if s.lane == "" {
		s.lane = readableLane(msg.Header, s.hash)
	}
	if msg.Subject == wire.ReadySubject(fleet, s.pool, s.hash) {
		_, is := ended[refOf(msg)]
		return len(msg.Data) > 0 && !is
	}
	if wire.ParseMailboxSubject(fleet, msg.Subject).Kind != wire.EntryCall {
		return false
	}
	if s.first == nil {
		s.first = msg
	}
	return true
}

// endedOf returns how the calls of ready messages ended; calls without a result are left out.
func (o *Operator) endedOf(ctx context.Context, messages []*jetstream.RawStreamMsg) (map[protocol.CallRef]protocol.Status, error) {
	var refs []protocol.CallRef
	for _, msg := range messages {
		_, isTicket := wire.FlowOfSubject(msg.Subject)
		if ref := refOf(msg); ref.ID != "" && ref.SessionID != "" && !isTicket {
			refs = append(refs, ref)
		}
	}
	if len(refs) == 0 {
		return nil, nil
	}
	return o.store.Ended(ctx, refs)
}

func falseFirst(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}

// storedLane is what the streams have of a lane.
type storedLane struct {
	pool    protocol.Pool
	hash    wire.LaneHash
	isReady bool
	// hasTicket says that the lane becomes ready when it is the turn of its tenant.
	hasTicket bool
	calls     int // in the mailbox
	paused    bool
	marks     []wire.MailboxEntry // requests to cancel, and starts
	delayed   []protocol.CallID   // calls that wait for their time

	lane       protocol.Lane
	ready      *jetstream.RawStreamMsg
	readyEnded bool                    // the call of the ready message has its result
	first      *jetstream.RawStreamMsg // the first call of the mailbox
	claim      *store.StoredClaim      // nil when no worker holds the lane
}

// survey lists the lanes of a pool that have anything, by their subjects alone; pool may be "*",
// and lane too. complete is false when there were too many subjects to read them all.
func (o *Operator) survey(ctx context.Context, pool protocol.Pool, lane wire.LaneHash) (found []*storedLane, complete bool, err error) {
	fleet := o.store.Fleet
	tickets := wire.TicketSubject(fleet, pool, lane, wire.AnyFlow())
	filters := []string{wire.ReadySubject(fleet, pool, lane), tickets, wire.MailboxFilter(fleet, pool, lane), wire.LaterSubject(fleet, pool, lane, ">")}
	if lane == "*" {
		filters = []string{filters[0], tickets, wire.MailboxesFilter(fleet, pool)}
	}
	lanes := map[string]*storedLane{}
	complete = true
	for _, filter := range filters {
		all, err := o.store.EachSubject(ctx, filter, maxSubjects, func(subject string) {
			at, hash := strings.Split(subject, ".")[2], wire.LaneOfSubject(fleet, subject)
			if hash == "" {
				return
			}
			s := lanes[at+"."+string(hash)]
			if s == nil {
				s = &storedLane{pool: protocol.Pool(at), hash: hash}
				lanes[at+"."+string(hash)] = s
			}
			s.count(fleet, subject)
		})
		if err != nil {
			return nil, false, err
		}
		complete = complete && all
	}
	return slices.Collect(maps.Values(lanes)), complete, nil
}

func (s *storedLane) count(fleet protocol.Fleet, subject string) {
	if subject == wire.ReadySubject(fleet, s.pool, s.hash) {
		s.isReady = true
		return
	}
	if _, ticket := wire.FlowOfSubject(subject); ticket {
		s.hasTicket = true
		return
	}
	switch entry := wire.ParseMailboxSubject(fleet, subject); entry.Kind {
	case wire.EntryCall:
		s.calls++
	case wire.EntryPause:
		s.paused = true
	case wire.EntryCancel, wire.EntryStart:
		s.marks = append(s.marks, entry)
	case wire.EntryLater:
		s.delayed = append(s.delayed, entry.CallID)
	case wire.EntryUnknown, wire.EntryFloor, wire.EntryLaterCancel:
	}
}

// readStates reads the state of lanes, and leaves out lanes that have nothing by now. Ages refer to
// at.
func (o *Operator) readStates(ctx context.Context, pool protocol.Pool, found []*storedLane, at time.Time) ([]Status, error) {
	if err := o.clock.Sync(ctx, o.store.Calls); err != nil {
		return nil, err
	}
	if err := o.read(ctx, pool, found); err != nil {
		return nil, err
	}
	var hashes []wire.LaneHash
	for _, s := range found {
		if s.claim != nil {
			hashes = append(hashes, s.hash)
		}
	}
	held, err := o.queryLanes(ctx, pool, hashes, func(h holdings) bool {
		return !slices.ContainsFunc(found, func(s *storedLane) bool { return s.claim != nil && h.of(s.hash, s.claim) == nil })
	})
	if err != nil {
		return nil, err
	}
	lanes, silent := []aged{}, map[wire.IncarnationID]time.Duration{}
	for _, s := range found {
		if s.ready == nil && s.first == nil && !s.paused && s.claim == nil && len(s.delayed) == 0 {
			continue
		}
		status := s.status(held.of(s.hash, s.claim))
		if !status.oldest.IsZero() {
			status.OldestMS = o.clock.AgeAt(at, status.oldest).Milliseconds()
		}
		if status.State == StateLost {
			id := s.claim.Incarnation
			if _, known := silent[id]; !known {
				silent[id] = o.silentFor(ctx, pool, id, at)
			}
			status.SilentMS = silent[id].Milliseconds()
		}
		lanes = append(lanes, status)
	}
	// Only the server's clock tells which is older: what this machine takes for ages is as wrong as
	// its measure of that clock, and 0 for all that it takes to be of the future.
	slices.SortFunc(lanes, func(a, b aged) int {
		return cmp.Or(falseFirst(a.oldest.IsZero(), b.oldest.IsZero()), a.oldest.Compare(b.oldest),
			cmp.Compare(a.Lane, b.Lane), cmp.Compare(a.Hash, b.Hash))
	})
	statuses := make([]Status, len(lanes))
	for i := range lanes {
		statuses[i] = lanes[i].Status
	}
	return statuses, nil
}

// silentFor is for how long an incarnation of a worker has not renewed its heartbeat, at least; 0
// if that is not known.
func (o *Operator) silentFor(ctx context.Context, pool protocol.Pool, id wire.IncarnationID, at time.Time) time.Duration {
	beat, err := o.store.Heartbeat(ctx, pool, id)
	if err != nil || beat == nil {
		return 0
	}
	silent := o.clock.AgeAt(at, beat.At)
	if beat.Expired { // by another worker, which waited for a lease before
		silent += beat.Lease()
	}
	return silent
}

// aged is a lane, and when its oldest unfinished call was accepted, by the server's clock; zero
// without one.
type aged struct {
	Status

	oldest time.Time
}

// read reads claims, ready messages and first calls of lanes, many at once.
func (o *Operator) read(ctx context.Context, pool protocol.Pool, found []*storedLane) error {
	hashes := make([]wire.LaneHash, len(found))
	subjects := make([]string, 0, 2*len(found))
	for i, s := range found {
		hashes[i] = s.hash
		subjects = append(subjects, wire.ReadySubject(o.store.Fleet, pool, s.hash))
		if s.first != nil {
			subjects = append(subjects, s.first.Subject)
		}
	}
	claims, err := o.store.Claims(ctx, pool, hashes)
	if err != nil {
		return err
	}
	stored, err := o.store.Stored(ctx, subjects)
	if err != nil {
		return err
	}
	group, each := errgroup.WithContext(ctx)
	group.SetLimit(parallelReads)
	var readies []*jetstream.RawStreamMsg
	for _, s := range found {
		s.claim, s.ready = claims[s.hash], stored[wire.ReadySubject(o.store.Fleet, pool, s.hash)]
		if s.first != nil {
			s.first = stored[s.first.Subject]
		}
		for _, msg := range []*jetstream.RawStreamMsg{s.ready, s.first} {
			if msg != nil {
				s.lane = cmp.Or(s.lane, readableLane(msg.Header, s.hash))
			}
		}
		if s.claim != nil {
			s.lane = cmp.Or(s.lane, s.claim.Lane)
		}
		if s.ready != nil {
			readies = append(readies, s.ready)
		}
		if s.first == nil && s.calls > 0 || s.lane == "" {
			group.Go(func() error { return o.readAlone(each, s) })
		}
	}
	if err := group.Wait(); err != nil {
		return err
	}
	ended, err := o.endedOf(ctx, readies)
	for _, s := range found {
		if s.ready != nil {
			_, s.readyEnded = ended[refOf(s.ready)]
		}
	}
	return err
}

// readAlone reads the first call of a lane, and its name.
func (o *Operator) readAlone(ctx context.Context, s *storedLane) error {
	if s.lane == "" && len(s.delayed) > 0 {
		msg, err := o.store.Next(ctx, wire.LaterSubject(o.store.Fleet, s.pool, s.hash, s.delayed[0]), 0)
		switch {
		case err != nil:
			return err
		case msg == nil: // its time has come
			s.delayed = s.delayed[1:]
		default:
			s.lane = readableLane(msg.Header, s.hash)
		}
	}
	return o.eachMessage(ctx, s, func(msg *jetstream.RawStreamMsg) bool {
		s.lane = cmp.Or(s.lane, readableLane(msg.Header, s.hash))
		if wire.ParseMailboxSubject(o.store.Fleet, msg.Subject).Kind == wire.EntryCall {
			s.first = msg
		}
		return s.first == nil
	})
}

// eachMessage passes the messages of a lane's mailbox, until do wants no more.
func (o *Operator) eachMessage(ctx context.Context, s *storedLane, do func(*jetstream.RawStreamMsg) (more bool)) error {
	for from := uint64(0); ; {
		page, err := o.store.Page(ctx, wire.MailboxFilter(o.store.Fleet, s.pool, s.hash), from)
		if err != nil || len(page) == 0 {
			return err
		}
		for _, msg := range page {
			if !do(msg) {
				return nil
			}
			from = msg.Sequence + 1
		}
	}
}

func readableLane(header nats.Header, hash wire.LaneHash) protocol.Lane {
	if name := wire.LaneOfHeader(header.Get(wire.HeaderLane)); wire.HashLane(name) == hash {
		return name
	}
	return ""
}

func (s *storedLane) status(holder *holding) aged {
	status := aged{Status: Status{Lane: s.lane, Hash: string(s.hash), Pool: s.pool, State: s.state(holder), Delayed: len(s.delayed), Running: []lane.RunningCall{}}}
	switch {
	case holder != nil:
		status.Holder, status.HeldMS, status.Running = holder.worker, holder.HeldMS, holder.longestFirst()
		status.WaitsFor, status.Wait = holder.WaitsFor, holder.Wait
	case s.claim != nil && s.claim.Incarnation != "":
		status.Holder = s.claim.WorkerID
	}
	calls := 0 // unless they ended meanwhile
	if s.first != nil {
		calls, status.oldest = s.calls, s.first.Time
	}
	if s.ready != nil && len(s.ready.Data) > 0 && !s.readyEnded { // it stays while the lane is held, also when its call has ended
		calls++
		if status.oldest.IsZero() || s.ready.Time.Before(status.oldest) {
			status.oldest = s.ready.Time
		}
	}
	status.Waiting = max(calls-len(status.Running), 0)
	if status.WaitsFor == "" || status.State == StatePaused { // its holder does not look at limits then
		status.WaitsFor, status.Wait = status.stateWait()
	}
	return status
}

// stateWait is what the next call of a lane waits for, as far as the state of the lane says it.
func (a *aged) stateWait() (string, report.Wait) {
	switch {
	case a.State == StateDelayed:
		return "its time", report.Wait{Reason: report.ReasonNotBefore}
	case a.State == StateReady:
		return "a slot: no worker has claimed the lane", report.Wait{Reason: report.ReasonSlot}
	case a.Waiting == 0:
	case a.State == StatePaused:
		return "an operator: the lane is paused", report.Wait{Reason: report.ReasonPause}
	case a.State == StateStalled:
		return "a worker, which makes the lane ready again", report.Wait{Reason: report.ReasonWorker}
	case a.State == StateLost:
		return fmt.Sprintf("another worker: its holder %s does not answer", a.Holder), report.Wait{Reason: report.ReasonLost, WorkerID: a.Holder, Pool: a.Pool}
	case len(a.Running) == 1:
		first := &a.Running[0]
		return laneWait, report.Wait{Reason: report.ReasonLane, SessionID: first.SessionID, CallID: first.CallID}
	case len(a.Running) > 0:
		return laneWait, report.Wait{Reason: report.ReasonLane}
	}
	return "", report.Wait{}
}

const laneWait = "an earlier call of the lane, which runs"

func (s *storedLane) state(holder *holding) string {
	switch {
	case s.paused:
		return StatePaused
	case holder != nil:
		return StateHeld
	case s.claim != nil && s.claim.Incarnation != "":
		return StateLost
	case s.ready == nil && s.first == nil && len(s.delayed) > 0:
		return StateDelayed
	case s.ready == nil && !s.hasTicket:
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

// refOf is the call of a message, as far as its header names one.
func refOf(msg *jetstream.RawStreamMsg) protocol.CallRef {
	return protocol.CallRef{SessionID: protocol.SessionID(msg.Header.Get(wire.HeaderSession)), ID: protocol.CallID(msg.Header.Get(wire.HeaderCall))}
}

// Present returns which of a session's calls still have a message in the calls stream, in any lane
// of any pool: the next holder of such a lane runs a call again if it has no result. complete is
// false if the fleet has too many calls to read them all.
func (o *Operator) Present(ctx context.Context, session protocol.SessionID, calls []protocol.CallID) (present map[protocol.CallID]bool, complete bool, err error) {
	asked, present := make(map[protocol.CallID]bool, len(calls)), map[protocol.CallID]bool{}
	for _, id := range calls {
		asked[id] = true
	}
	fleet := o.store.Fleet
	complete, err = o.store.EachSubject(ctx, wire.MailboxesFilter(fleet, "*"), maxSubjects, func(subject string) {
		if entry := wire.ParseMailboxSubject(fleet, subject); (entry.Kind == wire.EntryCall || entry.Kind == wire.EntryLater) && asked[entry.CallID] {
			present[entry.CallID] = true
		}
	})
	if err != nil {
		return nil, false, fmt.Errorf("look for calls of session %s: %w", session, err)
	}
	for seq := uint64(0); ; {
		page, err := o.store.Page(ctx, wire.ReadySubject(fleet, "*", "*"), seq)
		if err != nil {
			return nil, false, fmt.Errorf("look for calls of session %s: %w", session, err)
		}
		if len(page) == 0 {
			return present, complete, nil
		}
		for _, ready := range page {
			seq = ready.Sequence + 1
			if ref := refOf(ready); ref.SessionID == session && asked[ref.ID] {
				present[ref.ID] = true
			}
		}
	}
}
