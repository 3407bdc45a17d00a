package workspace

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/toolfleet/toolfleet/internal/sandbox/snapshot"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// ErrExists says that a lane has a workspace already, so that none can begin there.
var ErrExists = codes.As(codes.ErrExists, errors.New("there is a workspace already"))

// Fork begins the workspace of a lane with the paths that another one had after a call, or after
// the last one that changed anything when call is "". Both need the same bodies; none is copied. No
// worker may have the lane yet. The error wraps [ErrNone] when there is no such checkpoint, or none
// any more; [ErrExists] when to has a workspace, which stays as it is.
func (s *Store) Fork(ctx context.Context, from wire.LaneHash, call protocol.CallID, to protocol.Lane, has func(path string) bool) error {
	return s.fork(ctx, from, call, s.named(to), has)
}

func (s *Store) fork(ctx context.Context, from wire.LaneHash, call protocol.CallID, to *Workspace, has func(path string) bool) error {
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
	if err := s.begin(ctx, to, &snapshot.Delta{Set: tree.Tree}, from, at.Calls...); err != nil {
		return err
	}
	// The bodies of a workspace that is removed meanwhile may be garbage by now. As long as it is
	// there, each sweep finds them needed: by it, or by the new one, which is behind it.
	if still, err := s.next(ctx, from, at.seq); err != nil || still == nil || still.seq != at.seq {
		gone := fmt.Errorf("the workspace was removed meanwhile: %w", ErrNone)
		return errors.Join(gone, err, s.Remove(context.WithoutCancel(ctx), to.lane, 0))
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
func (s *Store) Begin(ctx context.Context, lane protocol.Lane, tree snapshot.Tree, calls ...protocol.CallID) error {
	return s.begin(ctx, s.named(lane), &snapshot.Delta{Set: tree}, "", calls...)
}

// ForkFiles begins the workspace of a lane with the files that another one has now, as a call found
// them. The error wraps [ErrExists] when the lane has a workspace.
func (s *Store) ForkFiles(ctx context.Context, of wire.LaneHash, files snapshot.Tree, to protocol.Lane, call protocol.CallID) error {
	if err := s.outline(ctx, files); err != nil {
		return err
	}
	return s.begin(ctx, s.named(to), &snapshot.Delta{Set: TreeOf(files)}, of, call)
}

// TreeOf is the tree of a workspace with these files, see [FilesOf].
func TreeOf(files snapshot.Tree) snapshot.Tree {
	tree := snapshot.Tree{Dir: {Type: protocol.TypeDir, Mode: 0o700}}
	for name, node := range files {
		tree[Dir+"/"+name] = node
	}
	return tree
}

// ErrNoFork says that two workspaces have no common origin.
var ErrNoFork = errors.New("the workspace is no fork of this one, and both are no forks of the same one")

// Forked returns the current files of a fork of a lane's workspace, or of another fork of the same
// origin; their checkpoint; and as base the files of the fork's checkpoint after, or, with 0, those
// with which it began, as also if it was made again later. The error wraps [ErrNoFork] if they have
// no common origin, [ErrNone] if there is no such workspace.
func (s *Store) Forked(ctx context.Context, fork, of wire.LaneHash, after uint64) (base, files snapshot.Tree, at Ref, err error) {
	first, err := s.next(ctx, fork, 1)
	switch {
	case err != nil:
		return nil, nil, at, err
	case first == nil:
		return nil, nil, at, ErrNone
	}
	if related, err := s.related(ctx, first, of); err != nil || !related {
		return nil, nil, at, cmp.Or(err, ErrNoFork)
	}
	last, err := s.last(ctx, fork)
	if err != nil {
		return nil, nil, at, err
	}
	if last == nil { // it was removed meanwhile
		return nil, nil, at, ErrNone
	}
	at = Ref{fork, last.seq}
	if base, err = s.Files(ctx, Ref{fork, max(after, first.seq)}); err == nil {
		files, err = s.Files(ctx, at)
	}
	return base, files, at, err
}

// maxOrigins bounds how many forks of forks are followed.
const maxOrigins = 64

// related reports whether the workspace that begins with first is a fork of another one, or of one
// of its origins.
func (s *Store) related(ctx context.Context, first *message, other wire.LaneHash) (bool, error) {
	origins, err := s.origins(ctx, other)
	if err != nil {
		return false, err
	}
	if slices.Contains(append(origins, other), first.Of) {
		return true, nil
	}
	own, err := s.origins(ctx, first.Of)
	return slices.ContainsFunc(own, func(lane wire.LaneHash) bool { return slices.Contains(append(origins, other), lane) }), err
}

// origins are the lanes from which the workspace of a lane was forked, directly or through other
// forks, the nearest first. A removed one is the last.
func (s *Store) origins(ctx context.Context, lane wire.LaneHash) (of []wire.LaneHash, err error) {
	for lane != "" && len(of) < maxOrigins {
		first, err := s.next(ctx, lane, 1)
		if err != nil || first == nil || first.Of == "" {
			return of, err
		}
		lane = first.Of
		of = append(of, lane)
	}
	return of, nil
}

// unbegun is the workspace of a journal that has no checkpoint.
func (s *Store) unbegun(lane wire.LaneHash) *Workspace {
	return &Workspace{store: s, lane: lane, tree: bounded{Tree: snapshot.Tree{}}}
}

// named is the workspace of a lane that has no checkpoint.
func (s *Store) named(lane protocol.Lane) *Workspace {
	w := s.unbegun(wire.HashLane(lane))
	w.name = lane
	return w
}

// begin begins a workspace with the tree of a delta; Stored are those of its bodies that nothing
// else needs yet.
func (s *Store) begin(ctx context.Context, w *Workspace, tree *snapshot.Delta, of wire.LaneHash, calls ...protocol.CallID) error {
	w.owner = ownerIn(ctx)
	switch {
	case strings.HasPrefix(string(w.lane), templates):
		w.owner = templateOwner(ctx)
	case of != "" && !strings.HasPrefix(string(of), templates): // a fork is of the tenant of its origin
		owner, err := s.Owner(ctx, of)
		if err != nil && !errors.Is(err, ErrNone) { // of a directory in place
			return fmt.Errorf("begin workspace: %w", err)
		}
		w.owner.Tenant = cmp.Or(owner.Tenant, w.owner.Tenant)
	default:
	}
	switch err := w.begin(ctx, &checkpoint{Calls: calls, Of: of}, tree); {
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
	bodies := named{stored: slices.Clip(tree.Stored)}
	if err := w.rebase(ctx, c, tree, &bodies); err != nil {
		return err
	}
	body, err := w.encode(c)
	if err != nil {
		return err
	}
	return w.append(ctx, c, body, bodies)
}
