package workspace

import (
	"cmp"
	"context"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/sandbox/snapshot"
	"github.com/toolfleet/toolfleet/internal/wire"
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

// OwnerOf returns the tenant that owns the workspace of a lane, see [Store.Owner], and when it was
// used last. The error wraps [ErrNone] for a lane without a workspace.
func OwnerOf(ctx context.Context, nc *nats.Conn, fleet protocol.Fleet, lane wire.LaneHash) (owner protocol.Tenant, used time.Time, err error) {
	s, err := openJournals(ctx, nc, fleet)
	if err != nil {
		return "", used, err
	}
	last, err := s.last(ctx, lane)
	if err == nil && last == nil {
		err = ErrNone
	}
	if err != nil {
		return "", used, err
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
