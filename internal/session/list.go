package session

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"

	"github.com/toolfleet/toolfleet/internal/fleet"
	"github.com/toolfleet/toolfleet/internal/judge"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/session/journal"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/worker/sandboxes"
	"github.com/toolfleet/toolfleet/internal/workspace"
	"github.com/toolfleet/toolfleet/pkg/fleet/report"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// lookers is how many sessions are read concurrently: enough that the distance to a server does not
// matter.
const lookers = 32

// Reader reads what a fleet keeps of sessions. It changes nothing and is safe for concurrent use
// once Lanes and Pool are set.
type Reader struct {
	// Lanes means that the caller may read the lanes of turns: then sessions whose first turn still
	// waits, without a journal, are listed too, and states distinguish running and waiting turns.
	Lanes bool
	// Pool is the pool that has the sandboxes of sessions, when the caller may look at its lanes:
	// then states say whose calls wait for a worker. "" looks at none.
	Pool protocol.Pool
	// Workspaces means that the caller may read the journals of workspaces: then what has a
	// workspace and no journal is listed too.
	Workspaces bool
	// Known is what is known of sessions already: nothing, unless it is replaced by that of other
	// readers.
	Known Known

	fleet   protocol.Fleet
	main    *fleet.Fleet
	events  jetstream.Stream
	results []jetstream.Stream // of each part of the fleet
	parts   []*fleet.Fleet
}

// NewReader opens the streams of a fleet. The error wraps [jetstream.ErrStreamNotFound]
// when there is no such fleet.
func NewReader(ctx context.Context, f *fleet.Fleet) (*Reader, error) {
	r := &Reader{Known: NewKnown(), fleet: f.Name, main: f, parts: f.Parts()}
	var err error
	if r.events, err = f.JS.Stream(ctx, wire.SessionsStream(f.Name)); err != nil {
		return nil, fmt.Errorf("open stream %s: %w", wire.SessionsStream(f.Name), err)
	}
	for _, part := range r.parts {
		results, err := part.JS.Stream(ctx, wire.ResultsStream(f.Name))
		if err != nil {
			return nil, fmt.Errorf("open stream %s: %w", wire.ResultsStream(f.Name), err)
		}
		r.results = append(r.results, results)
	}
	return r, nil
}

// List describes the sessions, most recently changed first, at most limit of them. leftOut is how
// many more there are.
func (r *Reader) List(ctx context.Context, limit int) (list []report.Session, leftOut int, err error) {
	asked, err := r.asked(ctx) // before the journals, which then have turns that began meanwhile
	if err != nil {
		return nil, 0, err
	}
	ids, err := r.ids(ctx)
	if err != nil {
		return nil, 0, err
	}
	most := limit
	if judge.Bounded(ctx) { // which of them may be seen is known when all are read
		most = max(most, len(ids))
	}
	changed, err := r.changed(ctx, ids, most)
	if err != nil {
		return nil, 0, err
	}
	changed, added, err := r.withAccepted(ctx, ids, changed, asked)
	if err != nil {
		return nil, 0, err
	}
	if judge.Bounded(ctx) {
		most = math.MaxInt
	}
	changed, only, err := r.withWorkspaces(ctx, ids, changed, most)
	if err != nil {
		return nil, 0, err
	}
	all := len(ids) + added + only
	if judge.Bounded(ctx) {
		if changed, err = r.shown(ctx, changed); err != nil {
			return nil, 0, err
		}
		all = len(changed)
	}
	changed = changed[:min(len(changed), limit)]
	printed := make(map[protocol.SessionID]bool, len(changed))
	for i := range changed {
		printed[changed[i].id] = true
	}
	kept, err := r.bodies(ctx, printed)
	if err != nil {
		return nil, 0, err
	}
	read, err := r.journals(ctx, changed)
	if err != nil {
		return nil, 0, err
	}
	found := make([]*report.Session, len(changed))
	err = each(ctx, len(changed), func(ctx context.Context, i int) error {
		info := changed[i].accepted
		if only := changed[i].only; only != nil {
			var err error
			if info, err = r.onlyWorkspace(ctx, changed[i].id, only.Hash); err != nil {
				return err
			}
		}
		if info == nil {
			journal := read[changed[i].id]
			if journal == nil { // removed meanwhile
				return nil
			}
			if err := r.own(ctx, journal); err != nil {
				return err
			}
			info = journal.described()
			asked.applyLanes(info)
		}
		info.History, found[i] = nil, info
		return r.sizes(ctx, info, kept)
	})
	if err == nil {
		err = r.addWorkers(ctx, found...)
	}
	for _, info := range found {
		if info != nil && seen(ctx, info) {
			list = append(list, *info)
		}
	}
	return list, max(all-limit, 0), err
}

// shown returns the sessions that the principal of the context may see.
func (r *Reader) shown(ctx context.Context, changed []change) ([]change, error) {
	may := make([]bool, len(changed))
	err := each(ctx, len(changed), func(ctx context.Context, i int) error {
		c := &changed[i]
		info, err := c.accepted, error(nil)
		switch {
		case c.only != nil:
			info, err = r.onlyWorkspace(ctx, c.id, c.only.Hash)
		case info == nil:
			var journal *folded
			if journal, err = r.journal(ctx, c.id, true); err == nil {
				err = r.own(ctx, journal)
				info = &journal.Session
			}
		}
		may[i] = err == nil && seen(ctx, info)
		return err
	})
	i := -1
	return slices.DeleteFunc(changed, func(change) bool { i++; return !may[i] }), err
}

// IDs returns the ids of all sessions that may be seen, most recently changed first.
func (r *Reader) IDs(ctx context.Context) ([]protocol.SessionID, error) {
	asked, err := r.asked(ctx)
	if err != nil {
		return nil, err
	}
	ids, err := r.ids(ctx)
	if err != nil {
		return nil, err
	}
	changed, err := r.changed(ctx, ids, len(ids))
	if err != nil {
		return nil, err
	}
	changed, _, err = r.withAccepted(ctx, ids, changed, asked)
	if err == nil && judge.Bounded(ctx) {
		changed, err = r.shown(ctx, changed)
	}
	ids = ids[:0]
	for _, c := range changed {
		ids = append(ids, c.id)
	}
	return ids, err
}

// withAccepted adds sessions without a journal that have a turn, and returns how many. ids are
// those that have a journal.
func (r *Reader) withAccepted(ctx context.Context, ids []protocol.SessionID, changed []change, asked asked) (_ []change, n int, err error) {
	journaled := make(map[protocol.SessionID]bool, len(ids))
	for _, id := range ids {
		journaled[id] = true
	}
	var without []protocol.SessionID
	for _, turns := range []map[protocol.SessionID]bool{asked.waiting, asked.running} {
		for id := range turns {
			if !journaled[id] {
				without = append(without, id)
			}
		}
	}
	added := make([]change, len(without))
	err = each(ctx, len(without), func(ctx context.Context, i int) error {
		view, err := r.turn(ctx, without[i])
		var info *report.Session
		if err == nil {
			info, err = accepted(without[i], view)
		}
		if err == nil {
			added[i] = change{id: without[i], at: info.UpdatedAt, accepted: info}
		}
		return err
	})
	added = slices.DeleteFunc(added, func(c change) bool { return c.id == "" })
	changed = append(changed, added...)
	sortChanges(changed)
	return changed, len(added), err
}

// withWorkspaces adds sandboxes that have a workspace and neither a journal nor a turn, and returns
// how many there are: at least those that were used last, as many as limit says.
func (r *Reader) withWorkspaces(ctx context.Context, ids []protocol.SessionID, changed []change, limit int) (_ []change, n int, err error) {
	if !r.Workspaces {
		return changed, 0, nil
	}
	known := hashes(ids)
	for _, c := range changed {
		known[sandboxHash(c.id)] = true
	}
	for _, part := range r.parts {
		list, all, err := workspace.List(ctx, part.NC, r.fleet, func(lane wire.LaneHash) bool { return known[lane] }, limit)
		if err != nil {
			return nil, 0, err
		}
		n += all
		for _, w := range list {
			changed = append(changed, change{id: nameOf(w), at: w.Used, only: &w})
		}
	}
	sortChanges(changed)
	return changed, n, nil
}

// hashes are the lanes of sandboxes.
func hashes(ids []protocol.SessionID) map[wire.LaneHash]bool {
	known := make(map[wire.LaneHash]bool, len(ids))
	for _, id := range ids {
		known[sandboxHash(id)] = true
	}
	return known
}

// nameOf is the id of the sandbox that a workspace is of. One of an earlier version has no name.
func nameOf(w workspace.Stored) protocol.SessionID {
	if id := sandboxes.ID(w.Lane); id != "" {
		return protocol.SessionID(id)
	}
	return protocol.SessionID("lane." + w.Hash)
}

// onlyWorkspace describes a sandbox that has a workspace and no journal.
func (r *Reader) onlyWorkspace(ctx context.Context, id protocol.SessionID, lane wire.LaneHash) (*report.Session, error) {
	for _, part := range r.parts {
		owner, used, err := workspace.OwnerOf(ctx, part.NC, r.fleet, lane)
		if errors.Is(err, workspace.ErrNone) {
			continue
		}
		return &report.Session{SessionID: id, State: report.StateWorkspaceOnly, Tenant: owner.Tenant, Owner: owner.By, UpdatedAt: used}, err
	}
	return nil, ErrNone
}

// ids returns the sessions that have a journal.
func (r *Reader) ids(ctx context.Context) ([]protocol.SessionID, error) {
	info, err := r.events.Info(ctx, jetstream.WithSubjectFilter(wire.EventSubject(r.fleet, "*")))
	if err != nil {
		return nil, fmt.Errorf("look into stream %s: %w", wire.SessionsStream(r.fleet), err)
	}
	ids := make([]protocol.SessionID, 0, len(info.State.Subjects))
	var short []string // which may be records of removed sessions
	for subject, messages := range info.State.Subjects {
		if messages == 1 {
			short = append(short, subject)
			continue
		}
		ids = append(ids, r.owner(subject))
	}
	err = natsio.EachFrom(ctx, r.events, short, 0, true, func(msg jetstream.Msg) error {
		if !journal.IsRecord(msg.Headers()) {
			ids = append(ids, r.owner(msg.Subject()))
		}
		return nil
	})
	return ids, err
}

// owner is whose journal a subject is.
func (r *Reader) owner(subject string) protocol.SessionID {
	return protocol.SessionID(strings.TrimPrefix(subject, wire.EventSubject(r.fleet, "")))
}

// change is when a session changed last.
type change struct {
	id       protocol.SessionID
	at       time.Time
	last     uint64            // sequence of its last event
	accepted *report.Session   // of a session without a journal whose first turn waits
	only     *workspace.Stored // of a sandbox without a journal
}

func sortChanges(changes []change) {
	slices.SortFunc(changes, func(a, b change) int { return cmp.Or(b.at.Compare(a.at), cmp.Compare(b.id, a.id)) })
}

// tail is how many of the last events are read for each session that is asked for.
const tail = 16

// changed returns when sessions changed, the last one first: at least those that changed last, as
// many as limit says. Those that were removed meanwhile are left out. The last events of all
// sessions mostly are of enough of them; otherwise the last event of each session is read.
func (r *Reader) changed(ctx context.Context, ids []protocol.SessionID, limit int) ([]change, error) {
	latest := make(map[protocol.SessionID]change, min(len(ids), tail*limit))
	note := func(msg jetstream.Msg) error {
		about, err := msg.Metadata()
		if id := r.owner(msg.Subject()); err == nil && journal.IsRecord(msg.Headers()) {
			delete(latest, id)
		} else if err == nil {
			latest[id] = change{id: id, at: about.Timestamp, last: about.Sequence.Stream}
		}
		return err
	}
	every := []string{wire.EventSubject(r.fleet, "*")}
	if last := r.events.CachedInfo().State.LastSeq; limit < len(ids)/tail && last > uint64(tail*limit) { //nolint:gosec // a limit is positive
		if err := natsio.EachFrom(ctx, r.events, every, last-uint64(tail*limit), true, note); err != nil { //nolint:gosec // see above
			return nil, err
		}
		if len(latest) >= limit {
			changes := slices.Collect(maps.Values(latest))
			sortChanges(changes)
			return changes, nil
		}
	}
	if err := natsio.EachLast(ctx, r.main.JS, r.events, every, true, note); err != nil {
		return nil, err
	}
	changes := make([]change, len(ids))
	err := each(ctx, len(ids), func(ctx context.Context, i int) error {
		found, told := latest[ids[i]]
		if !told { // removed by now, or not known to the server that was read from
			last, err := r.events.GetLastMsgForSubject(ctx, wire.EventSubject(r.fleet, ids[i]))
			if err != nil {
				return err
			}
			found = change{id: ids[i], at: last.Time, last: last.Sequence}
		}
		changes[i] = found
		return nil
	})
	changes = slices.DeleteFunc(changes, func(c change) bool { return c.id == "" })
	sortChanges(changes)
	return changes, err
}

// each calls do for 0 to n-1, several at a time. Sessions that were removed meanwhile are
// skipped.
func each(ctx context.Context, n int, do func(ctx context.Context, i int) error) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(lookers)
	for i := range n {
		group.Go(func() error { return ignoreRemoved(do(ctx, i)) })
	}
	return group.Wait()
}

// ignoreRemoved returns err, or nil if it says that a session was removed meanwhile.
func ignoreRemoved(err error) error {
	if errors.Is(err, ErrNone) || errors.Is(err, jetstream.ErrMsgNotFound) {
		return nil
	}
	return err
}

// body is what the object store keeps of a session.
type body struct {
	objects int
	bytes   uint64
}

// bodies sums up what the object stores have of sessions.
func (r *Reader) bodies(ctx context.Context, of map[protocol.SessionID]bool) (map[protocol.SessionID]body, error) {
	sums := map[protocol.SessionID]body{}
	for _, part := range r.parts {
		for _, bucket := range []string{wire.KeptBucket(r.fleet), wire.BlobsBucket(r.fleet)} {
			objects, err := natsio.ListObjects(ctx, part.JS, bucket, func(name string) bool { return of[sessionOf(name)] })
			if err != nil {
				return nil, err
			}
			for _, object := range objects {
				if object.Deleted {
					continue
				}
				sum := sums[sessionOf(object.Name)]
				sum.objects, sum.bytes = sum.objects+1, sum.bytes+object.Size
				sums[sessionOf(object.Name)] = sum
			}
		}
	}
	return sums, nil
}

// sessionOf is whose an object is, by its name: KIND/SESSION/...; "" when it is no session's.
func sessionOf(name string) protocol.SessionID {
	_, rest, _ := strings.Cut(name, "/")
	id, _, found := strings.Cut(rest, "/")
	if !found {
		return ""
	}
	return protocol.SessionID(id)
}

// bodies removes what is kept of the session in the object stores: all outputs; archives, and
// values, which go with the results. A payload stays until its call is settled, in whatever lane,
// and is removed by who settles it; that of a call whose publisher or worker was lost ages out.
func (r *remover) bodies(ctx context.Context, p *part) error {
	all := func(string) bool { return true }
	if err := r.objects(ctx, p, wire.KeptBucket(r.fleet.Name), all); err != nil {
		return err
	}
	left, err := r.settledCalls(ctx, p)
	if err != nil {
		return err
	}
	return r.objects(ctx, p, wire.BlobsBucket(r.fleet.Name), func(name string) bool {
		kind, _, _ := strings.Cut(name, "/")
		return kind != "call" && (kind != "result" || len(left.calls) == 0)
	})
}

// objects removes those of one object store, by their names, and the traces that it keeps of
// deleted ones.
func (r *remover) objects(ctx context.Context, p *part, bucket string, remove func(name string) bool) error {
	objects, err := natsio.ListObjects(ctx, p.fleet.JS, bucket, func(name string) bool { return sessionOf(name) == r.id })
	if err != nil {
		return err
	}
	var names []string
	bodies := 0
	for _, object := range objects {
		if !object.Deleted && !remove(object.Name) {
			continue
		}
		names = append(names, object.Name)
		if !object.Deleted {
			bodies++
		}
	}
	if err := natsio.DeleteObjects(ctx, p.fleet.JS, bucket, names...); err != nil {
		return err
	}
	r.removed.Bodies += bodies
	return nil
}
