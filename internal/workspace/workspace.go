// Package workspace keeps the contents of workspaces with the fleet, so that any worker can
// continue with them.
//
// The workspace of a lane is the fold of its journal: one subject of the workspaces stream, one
// message a checkpoint, and the subject's last sequence as the guard.
//
//	take   ► a worker opens the sandbox: its epoch, and nothing else
//	commit ► a call that may have changed something ended: what changed, and the call's result
//
// A worker that takes a workspace appends, so a commit of the worker before is refused from then
// on: it names a last sequence that is not the last any more. An epoch that is smaller than the
// last one is refused as well. So what a worker does after it has lost its lane never happened.
//
// A commit is stored before the results that it covers, and carries them: when the worker is lost
// between the two, the next one finds the effects with the result, and does not run the call again.
//
// Contents are in bodies, in an object store; a little of them is in the commit itself. When a
// journal has grown, a commit names a base, the whole tree in bodies of its own, and the fold
// begins there. What came before stays: it is how the workspace was after earlier calls.
package workspace

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"slices"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"

	"github.com/toolfleet/toolfleet/internal/judge"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/sandbox/snapshot"
	"github.com/toolfleet/toolfleet/internal/system/pause"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// When a commit writes a base: the fold of a journal reads at most so many checkpoints and bytes.
const (
	maxSince = 128
	maxSize  = 1 << 20
	maxDelta = 256 << 10 // of one checkpoint, with the results that it covers
	maxCover = 32 << 10  // a result that is larger goes into bodies
)

// Workspace is a workspace that a worker has taken. Its methods do not overlap.
type Workspace struct {
	store *Store
	lane  wire.LaneHash
	name  protocol.Lane // of the lane; "" of an upload or a template
	disk  string
	epoch uint64
	owner judge.Owner

	last  uint64 // sequence of the last checkpoint
	from  uint64 // of the last base
	since int    // checkpoints after it
	size  int    // their bytes
	tree  bounded
	open  []covered // results that may not be stored
}

// Take takes the workspace of a lane to a disk, under the epoch of its claim: earlier holders
// can no longer commit. It tries until the holder is known, or ctx ends. The error wraps
// [ErrLost] when the workspace was taken under a later epoch, [ErrInvalid] when it cannot be read,
// [ErrAway] when the store of its bodies does not answer.
func (s *Store) Take(ctx context.Context, lane protocol.Lane, disk string, epoch uint64) (w *Workspace, err error) {
	pause.Until(ctx, pause.Retry, func() bool {
		w, err = s.take(ctx, lane, disk, epoch)
		return err == nil || slices.ContainsFunc([]error{errTooLate, ErrInvalid, ErrMissing, ErrFull, ErrAway, snapshot.ErrCorrupt},
			func(final error) bool { return errors.Is(err, final) })
	})
	if err != nil {
		return nil, fmt.Errorf("take workspace: %w", err)
	}
	return w, nil
}

var errTooLate = fmt.Errorf("%w, under a later claim", ErrLost)

func (s *Store) take(ctx context.Context, lane protocol.Lane, disk string, epoch uint64) (*Workspace, error) {
	w, err := s.load(ctx, wire.HashLane(lane))
	if err != nil {
		return nil, err
	}
	if err := s.fence(ctx, w.epoch, epoch); err != nil {
		return nil, err
	}
	w.name, w.disk, w.owner = lane, disk, cmp.Or(w.owner, ownerIn(ctx))
	return w, w.Again(ctx, epoch)
}

// load reads the workspace of a lane, without taking it.
func (s *Store) load(ctx context.Context, lane wire.LaneHash) (*Workspace, error) {
	w := s.unbegun(lane)
	last, err := s.last(ctx, lane)
	if err != nil || last == nil {
		return w, err
	}
	if w.tree, w.since, w.size, err = s.fold(ctx, lane, last); err != nil {
		return nil, err
	}
	w.owner = last.owner(lane)
	w.epoch, w.last, w.from, w.open = last.Epoch, last.seq, last.From, last.Results
	if len(last.Base) > 0 {
		w.from = last.seq
	}
	return w, nil
}

// Again takes a workspace once more, under the epoch of a later claim. It is as it was, unless the
// error wraps [ErrLost]: another worker has taken it meanwhile.
func (w *Workspace) Again(ctx context.Context, epoch uint64) error {
	w.epoch = epoch
	c := &checkpoint{Results: w.open}
	body, err := w.encode(c)
	if err != nil {
		return err
	}
	return w.append(ctx, c, body, named{})
}

// encode signs a checkpoint and returns its body.
func (w *Workspace) encode(c *checkpoint) ([]byte, error) {
	c.Type, c.Version, c.Epoch, c.Disk, c.Token, c.From = typeCheckpoint, version, w.epoch, w.disk, uuid.NewString(), w.from
	c.Owner, c.By = w.owner.Tenant, w.owner.By
	return json.Marshal(c)
}

// named are the bodies that a checkpoint names: those that were stored for it, and others that it
// needs.
type named struct{ stored, others []string }

func (n *named) add(stored ...string) { n.stored = append(n.stored, stored...) }

// append stores a checkpoint behind the last one, and records it.
func (w *Workspace) append(ctx context.Context, c *checkpoint, body []byte, bodies named) error {
	msg := &nats.Msg{Subject: wire.WorkspaceSubject(w.store.fleet, w.lane), Data: body, Header: nats.Header{}}
	stored, err := w.store.nameBodies(ctx, msg.Header, slices.Concat(bodies.stored, bodies.others))
	if err != nil {
		return err
	}
	if w.name != "" {
		msg.Header.Set(headerLane, (&url.URL{Path: string(w.name)}).EscapedPath())
	}
	seq, err := w.store.append(ctx, w.lane, w.last, c.Token, msg, append(stored, bodies.stored...))
	if err != nil {
		return err
	}
	w.last = seq
	w.since, w.size = w.since+1, w.size+len(body)
	if len(c.Base) > 0 {
		w.from, w.since, w.size = seq, 0, 0
	}
	return nil
}

// Owner is the owner of the workspace.
func (w *Workspace) Owner() judge.Owner { return w.owner }

// ownerIn is the owner of what is made in a context.
func ownerIn(ctx context.Context) judge.Owner {
	return judge.Owner{Tenant: natsio.TenantOf(ctx), By: judge.Of(ctx).By()}
}

// Tree is what the workspace has, as of the last commit. It is not to be changed, and not to be
// read while a commit is under way.
func (w *Workspace) Tree() snapshot.Tree { return w.tree.Tree }

// Result is the result of a call that a commit covers, and that may not be stored yet; nil when
// there is none.
func (w *Workspace) Result(ctx context.Context, call protocol.CallID) (*protocol.Result, error) {
	i := slices.IndexFunc(w.open, func(c covered) bool { return c.Call == call })
	if i < 0 {
		return nil, nil //nolint:nilnil // none is an answer
	}
	body := []byte(w.open[i].Result)
	if len(w.open[i].Parts) > 0 {
		var err error
		if body, err = snapshot.LoadBytes(ctx, w.store, w.open[i].Parts, maxResult); err != nil {
			return nil, fmt.Errorf("result of call %s: %w", call, err)
		}
	}
	r, err := wire.DecodeResult(body)
	if r != nil {
		r.Checkpoint = w.last
	}
	return r, err
}

// Settled records that the result of a call is stored: commits need not carry it any more.
func (w *Workspace) Settled(call protocol.CallID) {
	w.open = slices.DeleteFunc(slices.Clone(w.open), func(c covered) bool { return c.Call == call })
}

// Commit stores what calls have changed, with their results. When it returns nil, both are safe
// with the fleet: the next holder of the workspace has them, and the results name the checkpoint.
// It continues until that is known, or ctx ends. The error wraps [ErrLost] when the workspace was
// taken by another worker, [ErrFull] when there is no room, [snapshot.ErrLimit] when it would be
// larger than one may be; then nothing was committed.
func (w *Workspace) Commit(ctx context.Context, delta *snapshot.Delta, results ...*protocol.Result) error {
	if err := w.tree.admits(delta); err != nil {
		return fmt.Errorf("commit workspace: %w", err)
	}
	bodies := named{stored: slices.Clip(delta.Stored)}
	c := &checkpoint{Results: slices.Clone(w.open), Delta: *delta}
	for _, r := range results {
		covers, stored, err := w.cover(ctx, r)
		if err != nil {
			return err
		}
		bodies.add(stored...)
		c.Calls, c.Results = append(c.Calls, r.CallID), append(c.Results, covers)
	}
	body, err := w.encode(c)
	if err != nil {
		return err
	}
	most := min(maxDelta, int(w.store.js.Conn().MaxPayload()/2))
	if w.since >= maxSince || w.size+len(body) > maxSize || len(body) > most {
		if err := w.rebase(ctx, c, delta, &bodies); err != nil {
			return err
		}
		if body, err = w.encode(c); err != nil {
			return err
		}
	}
	if len(body) > most { // of results
		if body, err = w.outlineResults(ctx, c, &bodies); err != nil {
			return err
		}
	}
	if err := w.append(ctx, c, body, bodies); err != nil {
		return fmt.Errorf("commit workspace: %w", err)
	}
	w.tree.Apply(delta, inlineOf(w.last))
	w.open = c.Results
	for _, r := range results {
		r.Checkpoint = w.last
	}
	return nil
}

// outlineResults has a checkpoint carry no results, but name bodies with them, and encodes it.
func (w *Workspace) outlineResults(ctx context.Context, c *checkpoint, bodies *named) ([]byte, error) {
	for i, r := range c.Results {
		if len(r.Result) == 0 {
			continue
		}
		parts, stored, err := snapshot.StoreBytes(ctx, w.store, r.Result)
		if err != nil {
			return nil, err
		}
		c.Results[i] = covered{Call: r.Call, Parts: parts}
		bodies.add(stored...)
	}
	return w.encode(c)
}

// cover keeps a result for the case that its worker is lost before it is stored.
func (w *Workspace) cover(ctx context.Context, r *protocol.Result) (covered, []string, error) {
	body, err := wire.EncodeResult(r)
	if err != nil || len(body) <= maxCover {
		return covered{Call: r.CallID, Result: body}, nil, err
	}
	parts, stored, err := snapshot.StoreBytes(ctx, w.store, body)
	return covered{Call: r.CallID, Parts: parts}, stored, err
}

// rebase has a checkpoint name the whole tree. What the delta carries goes into a body, as its
// sequence is not known yet. It adds every body that the tree needs.
func (w *Workspace) rebase(ctx context.Context, c *checkpoint, delta *snapshot.Delta, bodies *named) error {
	before := len(delta.Stored)
	if err := delta.Outline(ctx, w.store); err != nil {
		return err
	}
	tree := w.tree.With(delta)
	body, err := json.Marshal(tree)
	if err != nil {
		return err
	}
	var stored []string
	if c.Base, stored, err = snapshot.StoreBytes(ctx, w.store, body); err != nil {
		return err
	}
	c.Delta = snapshot.Delta{}
	bodies.add(append(stored, delta.Stored[before:]...)...)
	bodies.others = slices.DeleteFunc(tree.Bodies(), isInline)
	return nil
}
