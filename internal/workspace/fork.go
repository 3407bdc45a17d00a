package workspace

import (
	"context"
	"errors"
	"fmt"
	"maps"

	"github.com/toolfleet/toolfleet/internal/sandbox/snapshot"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// ErrExists says that a lane has a workspace already, so that none can begin there.
var ErrExists = errors.New("there is a workspace already")

// Fork begins the workspace of a lane with the paths that another one had after a call, or after
// the last one that changed anything when call is "". Both need the same bodies; none is copied. No
// worker may have the lane yet. The error wraps [ErrNone] when there is no such checkpoint, or none
// any more; [ErrExists] when to has a workspace, which stays as it is.
func (s *Store) Fork(ctx context.Context, from wire.LaneHash, call protocol.CallID, to wire.LaneHash, has func(path string) bool) error {
	at, err := s.find(ctx, from, call)
	if err != nil {
		return err
	}
	tree, _, _, err := s.fold(ctx, from, at)
	if err != nil {
		return err
	}
	maps.DeleteFunc(tree.Tree, func(path string, _ snapshot.Node) bool { return !has(path) })
	if err := s.outline(ctx, tree.Tree); err != nil {
		return err
	}
	if err := s.Begin(ctx, to, tree.Tree, at.Calls...); err != nil {
		return err
	}
	// The bodies of a workspace that is removed meanwhile may be garbage by now. As long as it is
	// there, each sweep finds them needed: by it, or by the new one, which is behind it.
	if still, err := s.next(ctx, from, at.seq); err != nil || still == nil || still.seq != at.seq {
		gone := fmt.Errorf("the workspace was removed meanwhile: %w", ErrNone)
		return errors.Join(gone, err, s.Remove(context.WithoutCancel(ctx), to))
	}
	return nil
}

// outline stores what checkpoints carry of a tree as bodies, which outlive them.
func (s *Store) outline(ctx context.Context, tree snapshot.Tree) error {
	names := map[string]string{}
	for _, name := range tree.Bodies() {
		if !isInline(name) {
			continue
		}
		body, err := s.Get(ctx, name)
		if err != nil {
			return err
		}
		carried := &snapshot.Delta{Inline: body}
		if err := carried.Outline(ctx, s); err != nil {
			return err
		}
		names[name] = carried.Stored[0]
	}
	tree.Rename(names)
	return nil
}

// Begin begins the workspace of a lane with a tree, whose bodies are stored, as if calls had made
// it. The error wraps [ErrExists] when the lane has a workspace, [snapshot.ErrLimit] when the tree
// is larger than one may be.
func (s *Store) Begin(ctx context.Context, lane wire.LaneHash, tree snapshot.Tree, calls ...protocol.CallID) error {
	w := &Workspace{store: s, lane: lane, tree: bounded{Tree: snapshot.Tree{}}}
	switch err := w.begin(ctx, &checkpoint{Calls: calls}, &snapshot.Delta{Set: tree}); {
	case errors.Is(err, ErrLost):
		return ErrExists
	case err != nil:
		return fmt.Errorf("begin workspace: %w", err)
	default:
		return nil
	}
}

func (w *Workspace) begin(ctx context.Context, c *checkpoint, tree *snapshot.Delta) error {
	if err := w.tree.admits(tree); err != nil {
		return err
	}
	bodies, err := w.rebase(ctx, c, tree)
	if err != nil {
		return err
	}
	body, err := w.encode(c)
	if err != nil {
		return err
	}
	return w.append(ctx, c, body, bodies)
}
