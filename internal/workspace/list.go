package workspace

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolfleet/toolfleet/internal/judge"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/sandbox/snapshot"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/pkg/fleet/report"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Stored is what a list says of the workspace of a lane.
type Stored struct {
	Lane protocol.Lane // "" if only an earlier version has written it
	Hash wire.LaneHash
	Used time.Time // when a worker took or changed it last

	last uint64 // sequence of its last checkpoint
}

// List lists the workspaces of lanes that skip does not name, those that were used last first. It
// may leave out those beyond the limit; all is how many there are.
func List(ctx context.Context, nc *nats.Conn, fleet protocol.Fleet, skip func(wire.LaneHash) bool, limit int) (list []Stored, all int, err error) {
	s, err := openJournals(ctx, nc, fleet)
	if err != nil {
		return nil, 0, err
	}
	return s.List(ctx, skip, limit)
}

// tail is how many of the last checkpoints are read for each workspace that a list wants.
const tail = 16

// List is the function [List].
func (s *Store) List(ctx context.Context, skip func(wire.LaneHash) bool, limit int) (list []Stored, all int, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("list workspaces: %w", err)
		}
	}()
	info, err := s.stream.Info(ctx, jetstream.WithSubjectFilter(wire.WorkspaceSubject(s.fleet, "*")))
	if err != nil {
		return nil, 0, err
	}
	found := map[wire.LaneHash]Stored{}
	var subjects []string
	for subject := range info.State.Subjects {
		lane := s.hashOf(subject)
		if !strings.HasPrefix(string(lane), templates) && !strings.HasPrefix(string(lane), uploads) && !skip(lane) {
			subjects = append(subjects, subject)
			found[lane] = Stored{}
		}
	}
	seen := 0
	note := func(msg jetstream.Msg) error {
		lane := s.hashOf(msg.Subject())
		before, wanted := found[lane]
		about, err := msg.Metadata()
		if err != nil || !wanted || about.Sequence.Stream < before.last {
			return err
		}
		if before.last == 0 {
			seen++
		}
		found[lane] = Stored{Hash: lane, Used: about.Timestamp, last: about.Sequence.Stream}
		if name := laneOf(msg.Headers()); wire.HashLane(name) == lane {
			found[lane] = Stored{Hash: lane, Lane: name, Used: about.Timestamp, last: about.Sequence.Stream}
		}
		return nil
	}
	every, last := []string{wire.WorkspaceSubject(s.fleet, "*")}, info.State.LastSeq
	if limit < len(subjects)/tail && last > uint64(tail*limit) { //nolint:gosec // a limit is positive
		err = natsio.EachFrom(ctx, s.stream, every, last-uint64(tail*limit), true, note) //nolint:gosec // see above
	}
	if err == nil && seen < min(limit, len(subjects)) {
		err = natsio.EachLast(ctx, s.js, s.stream, subjects, true, note)
	}
	for _, one := range found {
		if one.last > 0 { // else it was removed meanwhile, or others were used after it
			list = append(list, one)
		}
	}
	slices.SortFunc(list, func(a, b Stored) int { return cmp.Or(b.Used.Compare(a.Used), cmp.Compare(a.Hash, b.Hash)) })
	return list[:min(limit, len(list))], len(subjects), err
}

func (s *Store) hashOf(subject string) wire.LaneHash {
	return wire.LaneHash(strings.TrimPrefix(subject, wire.WorkspaceSubject(s.fleet, "")))
}

// laneOf is the lane that a checkpoint names.
func laneOf(header nats.Header) protocol.Lane {
	name, err := url.PathUnescape(header.Get(headerLane))
	if err != nil {
		return ""
	}
	return protocol.Lane(name)
}

// Empty makes a workspace that no worker has used since it was listed an empty one, and returns the
// sequence of the checkpoint that says so. A worker that takes it from then on finds no file. The
// error wraps [ErrLost] if it was used meanwhile; then it stays as it is.
func (s *Store) Empty(ctx context.Context, of Stored) (uint64, error) {
	last, err := s.last(ctx, of.Hash)
	if err == nil && (last == nil || last.seq != of.last) {
		err = ErrLost
	}
	if err != nil {
		return 0, fmt.Errorf("empty workspace: %w", err)
	}
	w := s.behind(of.Hash, last)
	if err := w.begin(ctx, &checkpoint{}, &snapshot.Delta{}); err != nil {
		return 0, fmt.Errorf("empty workspace: %w", err)
	}
	return w.last, nil
}

// Forget removes the checkpoints of a workspace up to the one of [Store.Empty].
func (s *Store) Forget(ctx context.Context, lane wire.LaneHash, empty uint64) error {
	return s.purge(ctx, lane, empty+1)
}

// Discard removes the workspace that a lane may still have, whose contents are at url (see [Open]),
// when its session is removed, as in a pool whose workers are gone. The error wraps [ErrLost] if a
// worker used it meanwhile; then it stays.
func Discard(ctx context.Context, nc *nats.Conn, fleet protocol.Fleet, url string, lane protocol.Lane) error {
	s, err := openJournals(ctx, nc, fleet)
	if err != nil {
		return err
	}
	hash := wire.HashLane(lane)
	last, err := s.last(ctx, hash)
	if err != nil || last == nil { // then no credentials are needed
		return err
	}
	if s, err = Open(ctx, nc, fleet, url); err != nil {
		return err
	}
	empty, err := s.Empty(ctx, Stored{Hash: hash, Lane: lane, last: last.seq})
	if err != nil {
		return err
	}
	return s.Forget(ctx, hash, empty)
}

// OwnerOf returns the owner of the workspace of a lane, see [Store.Owner], and when it was used
// last. The error wraps [ErrNone] for a lane without a workspace.
func OwnerOf(ctx context.Context, nc *nats.Conn, fleet protocol.Fleet, lane wire.LaneHash) (owner judge.Owner, used time.Time, err error) {
	s, err := openJournals(ctx, nc, fleet)
	if err != nil {
		return owner, used, err
	}
	last, err := s.last(ctx, lane)
	if err == nil && last == nil {
		err = ErrNone
	}
	if err != nil {
		return owner, used, err
	}
	return last.owner(lane), last.at, nil
}

// openJournals opens the journals alone: what reads no contents needs no credentials for them.
func openJournals(ctx context.Context, nc *nats.Conn, fleet protocol.Fleet) (*Store, error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, fmt.Errorf("open workspaces: %w", err)
	}
	stream, err := natsio.Open(ctx, js.Stream, wire.WorkspacesStream(fleet))
	if err != nil {
		return nil, fmt.Errorf("open stream %s: %w", wire.WorkspacesStream(fleet), err)
	}
	return &Store{fleet: fleet, js: js, stream: stream, waits: bodyTimeout}, nil
}

// ErrNone is wrapped by errors about a workspace, or a checkpoint of it, that there is not.
var ErrNone = codes.As(codes.ErrNotFound, errors.New("there is no such checkpoint"))

// History returns the checkpoints of a lane's workspace, the oldest first, but for those of workers
// that only took it.
func (s *Store) History(ctx context.Context, lane wire.LaneHash) ([]report.Change, error) {
	var history []report.Change
	err := s.each(ctx, lane, 0, func(m *message) (bool, error) {
		if len(m.Calls) > 0 {
			paths := slices.AppendSeq(append([]string{}, m.Delta.Removed...), maps.Keys(m.Delta.Set))
			slices.Sort(paths)
			history = append(history, report.Change{Calls: m.Calls, Time: m.at, Set: len(m.Delta.Set), Removed: len(m.Delta.Removed), Paths: paths})
		}
		return true, nil
	})
	return history, err
}

// Change returns what a lane's workspace had before and after the checkpoint that covers a call; ""
// is the last checkpoint that covers any. The error wraps [ErrNone] when there is none.
func (s *Store) Change(ctx context.Context, lane wire.LaneHash, call protocol.CallID) (before, after snapshot.Tree, err error) {
	at, err := s.find(ctx, lane, call)
	if err != nil {
		return nil, nil, err
	}
	tree := bounded{Tree: snapshot.Tree{}}
	err = s.each(ctx, lane, 0, func(m *message) (bool, error) {
		if m.seq == at.seq {
			before = maps.Clone(tree.Tree)
		}
		return m.seq != at.seq, s.step(ctx, &tree, m)
	})
	return before, tree.Tree, err
}

// Whole returns the files with which a lane's workspace began, which a fork has from its origin,
// and the current ones. The error wraps [ErrNone] when no checkpoint covers a call.
func (s *Store) Whole(ctx context.Context, lane wire.LaneHash) (before, after snapshot.Tree, err error) {
	if _, err := s.find(ctx, lane, ""); err != nil {
		return nil, nil, err
	}
	tree := bounded{Tree: snapshot.Tree{}}
	err = s.each(ctx, lane, 0, func(m *message) (bool, error) {
		if before == nil && len(m.Calls) > 0 && m.Of == "" {
			before = maps.Clone(tree.Tree)
		}
		return true, s.step(ctx, &tree, m)
	})
	if before == nil { // nothing was done in the fork
		before = tree.Tree
	}
	return before, tree.Tree, err
}

// Since returns the files of a lane's workspace before the first checkpoint that covers any of the
// calls, and the current ones.
func (s *Store) Since(ctx context.Context, lane wire.LaneHash, calls map[protocol.CallID]bool) (before, after snapshot.Tree, err error) {
	tree := bounded{Tree: snapshot.Tree{}}
	err = s.each(ctx, lane, 0, func(m *message) (bool, error) {
		if before == nil && slices.ContainsFunc(m.Calls, func(id protocol.CallID) bool { return calls[id] }) {
			before = maps.Clone(tree.Tree)
		}
		return true, s.step(ctx, &tree, m)
	})
	if before == nil {
		before = tree.Tree
	}
	return before, tree.Tree, err
}

// At returns what a lane's workspace had after the checkpoint that covers a call; "" is the last
// one that covers any. The error wraps [ErrNone] when there is none, [ErrInvalid] when it cannot be
// a workspace.
func (s *Store) At(ctx context.Context, lane wire.LaneHash, call protocol.CallID) (snapshot.Tree, error) {
	at, err := s.find(ctx, lane, call)
	if err != nil {
		return nil, err
	}
	tree, _, _, err := s.fold(ctx, lane, at)
	return tree.Tree, err
}

// Ref names the checkpoint that [Store.At] is about.
func (s *Store) Ref(ctx context.Context, lane wire.LaneHash, call protocol.CallID) (Ref, error) {
	at, err := s.find(ctx, lane, call)
	if err != nil {
		return Ref{}, err
	}
	return Ref{lane, at.seq}, nil
}

// Before returns a call of the last checkpoint before the first one that covers any of the calls;
// "" when there is none.
func (s *Store) Before(ctx context.Context, lane wire.LaneHash, calls map[protocol.CallID]bool) (last protocol.CallID, err error) {
	err = s.each(ctx, lane, 0, func(m *message) (bool, error) {
		if slices.ContainsFunc(m.Calls, func(id protocol.CallID) bool { return calls[id] }) {
			return false, nil
		}
		if len(m.Calls) > 0 {
			last = m.Calls[0]
		}
		return true, nil
	})
	return last, err
}

// find returns the checkpoint that covers a call; "" is the last checkpoint that covers any.
func (s *Store) find(ctx context.Context, lane wire.LaneHash, call protocol.CallID) (at *message, err error) {
	err = s.each(ctx, lane, 0, func(m *message) (bool, error) {
		if call == "" && len(m.Calls) > 0 || slices.Contains(m.Calls, call) {
			at = m
		}
		return call == "" || at == nil, nil
	})
	switch {
	case err != nil || at != nil:
	case call == "":
		err = fmt.Errorf("no files are stored: there is no such session, no call of it has changed a file, or its directory is used in place: %w", ErrNone)
	default:
		err = fmt.Errorf("call %q changed nothing, or is not one of this workspace (coordinator session diff lists the calls that changed something): %w", call, ErrNone)
	}
	return at, err
}
