package workspace

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/toolfleet/toolfleet/internal/sandbox/snapshot"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/pkg/fleet/report"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// ErrNone is wrapped by errors about a workspace, or a checkpoint of it, that there is not.
var ErrNone = codes.As(codes.ErrNotFound, errors.New("there is no such checkpoint"))

// History returns the checkpoints of a lane's workspace, the oldest first, but for those of workers
// that only took it.
func (s *Store) History(ctx context.Context, lane wire.LaneHash) ([]report.Change, error) {
	var history []report.Change
	err := s.each(ctx, lane, 0, func(m *message) (bool, error) {
		if len(m.Calls) > 0 {
			paths := slices.AppendSeq(slices.Clone([]string(m.Delta.Removed)), maps.Keys(m.Delta.Set))
			slices.Sort(paths)
			history = append(history, report.Change{Calls: m.Calls, Time: m.at, Set: len(m.Delta.Set), Removed: len(m.Delta.Removed), Paths: paths})
		}
		return true, nil
	})
	return history, err
}

// Change returns what a lane's workspace had before and after the checkpoint that covers a call; ""
// is the last one that covers any. The error wraps [ErrNone] when there is none.
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

// find returns the checkpoint that covers a call; "" is the last one that covers any.
func (s *Store) find(ctx context.Context, lane wire.LaneHash, call protocol.CallID) (at *message, err error) {
	err = s.each(ctx, lane, 0, func(m *message) (bool, error) {
		if call == "" && len(m.Calls) > 0 || slices.Contains(m.Calls, call) {
			at = m
		}
		return call == "" || at == nil, nil
	})
	if err == nil && at == nil {
		err = fmt.Errorf("call %q changed nothing, or is not one of this workspace (coordinator session diff lists the calls that changed something): %w", call, ErrNone)
	}
	return at, err
}
