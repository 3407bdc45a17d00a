package session

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolfleet/toolfleet/internal/fleet"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/session/journal"
	"github.com/toolfleet/toolfleet/internal/session/schedule"
	"github.com/toolfleet/toolfleet/internal/session/serve"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/worker/sandboxes"
	"github.com/toolfleet/toolfleet/internal/workspace"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Sweeper removes what calls without a model left behind: workspaces of sandboxes that have no
// journal, and sessions in whose journals clients of an interface made every turn, once nothing has
// used them for an age. It also ends removals, forks and imports that were interrupted that long
// ago. Sessions with a turn of a model or a person stay, and so do sandboxes that a schedule uses.
type Sweeper struct {
	// Fleet and Age are required, and Stores has the workspaces of each part of the fleet.
	Fleet  *fleet.Fleet
	Stores map[*fleet.Fleet]*workspace.Store
	Age    time.Duration

	// stays are the sessions that were read and are not for removal, by their last event then.
	stays map[protocol.SessionID]uint64
}

// Sweep removes what is old enough, and returns how much that was. It needs no worker. A sweep that
// was cut short is completed by the next one. What is used meanwhile stays whole.
func (s *Sweeper) Sweep(ctx context.Context) (removed int, err error) {
	before := time.Now().Add(-s.Age)
	reader, err := NewReader(ctx, s.Fleet)
	if err != nil {
		return 0, err
	}
	journaled, err := reader.ids(ctx)
	if err != nil {
		return 0, err
	}
	sessions, err := s.ofClients(ctx, reader, before)
	if err != nil {
		return 0, err
	}
	scheduled, err := s.scheduled(ctx)
	if err != nil {
		return 0, err
	}
	sessions = slices.DeleteFunc(sessions, func(c change) bool { return slices.Contains(scheduled, c.id) })
	known := hashes(append(journaled, scheduled...))
	for _, c := range sessions {
		delete(known, sandboxHash(c.id))
	}
	stored := map[wire.LaneHash]where{}
	for _, part := range s.Fleet.Parts() {
		list, _, err := s.Stores[part].List(ctx, func(lane wire.LaneHash) bool { return known[lane] }, math.MaxInt)
		if err != nil {
			return 0, err
		}
		for _, w := range list {
			stored[w.Hash] = where{part, w}
		}
	}
	var failed []error
	end := func(id protocol.SessionID, journal *change, at where) {
		done, err := s.end(ctx, id, journal, at, before)
		if done {
			removed++
		}
		if err != nil {
			failed = append(failed, fmt.Errorf("remove session %s: %w", id, err))
		}
	}
	for _, c := range sessions {
		end(c.id, &c, stored[sandboxHash(c.id)])
		delete(stored, sandboxHash(c.id))
	}
	for _, at := range stored {
		end(nameOf(at.workspace), nil, at)
	}
	return removed, errors.Join(failed...)
}

// scheduled are the sandboxes in which schedules start calls, however seldom.
func (s *Sweeper) scheduled(ctx context.Context) (ids []protocol.SessionID, err error) {
	store, err := schedule.Open(ctx, s.Fleet.JS, s.Fleet.Name)
	if err != nil {
		return nil, err
	}
	all, err := store.List(ctx)
	for _, one := range all {
		ids = append(ids, one.Call.SessionID, protocol.SessionID(sandboxes.ID(one.Call.Lane())))
	}
	return ids, err
}

// where is the workspace of a sandbox, and the part of the fleet that has it; nil for none.
type where struct {
	part      *fleet.Fleet
	workspace workspace.Stored
}

// ofClients returns the sessions without an event since a time in which clients made every turn.
// Each of the others is read once, until it changes.
func (s *Sweeper) ofClients(ctx context.Context, r *Reader, before time.Time) (sessions []change, err error) {
	var old []change
	err = natsio.EachLast(ctx, r.main.JS, r.events, []string{wire.EventSubject(r.fleet, "*")}, true, func(msg jetstream.Msg) error {
		about, err := msg.Metadata()
		id := r.owner(msg.Subject())
		if err == nil && about.Timestamp.Before(before) && !journal.IsRecord(msg.Headers()) && s.stays[id] != about.Sequence.Stream {
			old = append(old, change{id: id, at: about.Timestamp, last: about.Sequence.Stream})
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	if s.stays == nil {
		s.stays = map[protocol.SessionID]uint64{}
	}
	for some := range slices.Chunk(old, lookers) { // journals may be large
		read, err := r.journals(ctx, some)
		if err != nil {
			return nil, err
		}
		for _, c := range some {
			switch info := read[c.id]; {
			case info == nil: // removed meanwhile
			case info.last == c.last && (info.removed || info.copies != "" || !info.worked && !info.invalid):
				sessions = append(sessions, c)
			default:
				s.stays[c.id] = c.last
			}
		}
	}
	return sessions, nil
}

// end removes what is stored of a sandbox, unless something uses it. First it makes the workspace
// an empty one, if no worker has used it since: then nothing else of the session is in use. The
// journal is last, so that a removal that was cut short is found again.
func (s *Sweeper) end(ctx context.Context, id protocol.SessionID, journal *change, at where, before time.Time) (bool, error) {
	if at.part != nil && !at.workspace.Used.Before(before) {
		return false, nil
	}
	hash := sandboxHash(id)
	if at.part != nil {
		hash = at.workspace.Hash
	}
	if busy, err := s.busy(ctx, hash, wire.HashLane(serve.Key(id).Lane())); err != nil || busy {
		return false, err
	}
	if journal != nil { // from now on no turn begins
		marked := s.Fleet.Journal.MarkBehind(ctx, id, journal.last)
		if errors.Is(marked, &protocol.Error{Code: protocol.CodeFleetFull}) {
			marked = s.Fleet.Journal.MarkAlone(ctx, id)
		}
		if errors.Is(marked, loop.ErrJournalConflict) {
			return false, nil
		}
		if marked != nil {
			return false, marked
		}
	}
	outputs := map[*fleet.Fleet][]*jetstream.ObjectInfo{}
	for _, part := range s.Fleet.Parts() {
		var err error
		outputs[part], err = natsio.ListObjects(ctx, part.JS, wire.KeptBucket(s.Fleet.Name), func(name string) bool { return sessionOf(name) == id })
		if err != nil {
			return false, err
		}
	}
	var empty uint64
	if at.part != nil {
		var err error
		empty, err = s.Stores[at.part].Empty(ctx, at.workspace)
		if errors.Is(err, workspace.ErrLost) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
	}
	for part, objects := range outputs {
		if err := natsio.DeleteTheseObjects(ctx, part.JS, wire.KeptBucket(s.Fleet.Name), objects...); err != nil {
			return false, err
		}
	}
	if at.part != nil {
		if err := s.Stores[at.part].Forget(ctx, hash, empty); err != nil {
			return false, err
		}
	}
	if journal == nil {
		return true, nil
	}
	// What is requested now was requested after its last use, so no record is left.
	if _, err := s.Fleet.Journal.Forget(ctx, id, 0); err != nil {
		return false, err
	}
	return true, natsio.RemoveJournalMarks(ctx, s.Fleet.JS, s.Fleet.Name, id)
}

// busy reports whether any lane has calls, or a worker that holds it.
func (s *Sweeper) busy(ctx context.Context, lanes ...wire.LaneHash) (bool, error) {
	name := s.Fleet.Name
	for _, part := range s.Fleet.Parts() {
		for _, lane := range lanes {
			for subject, stream := range map[wire.Subject]string{
				wire.CallSubject(name, "*", lane, ">"): wire.CallsStream(name), wire.ReadySubject(name, "*", lane): wire.CallsStream(name),
				wire.ReadySubject(name, "*", lane) + ".>": wire.CallsStream(name), wire.ClaimSubject(name, "*", lane): wire.ClaimsStream(name),
			} {
				opened, err := part.JS.Stream(ctx, stream)
				if err != nil {
					return false, fmt.Errorf("open stream %s: %w", stream, err)
				}
				if n, err := messagesOf(ctx, opened, subject); err != nil || n > 0 {
					return n > 0, err
				}
			}
		}
	}
	return false, nil
}
