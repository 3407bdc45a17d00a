//go:build linux

package ns

import (
	"context"
	"errors"

	"golang.org/x/sys/unix"

	"github.com/toolfleet/toolfleet/pkg/sandbox"
	"github.com/toolfleet/toolfleet/pkg/sandbox/internal/bounds"
	"github.com/toolfleet/toolfleet/pkg/sandbox/internal/cgroup"
	"github.com/toolfleet/toolfleet/pkg/sandbox/internal/initd"
	"github.com/toolfleet/toolfleet/pkg/sandbox/internal/wire"
)

// open starts a sandbox, in a group of its own unless groups is nil, and waits until it serves. It may be that one of spares.
func open(ctx context.Context, spares *spare, config wire.Config, groups *cgroup.Tree, limits sandbox.Limits) (*instance, error) {
	i, err := openSpare(ctx, spares, config, groups, limits)
	if i == nil && err == nil {
		i, err = openNew(ctx, config, groups, limits)
	}
	if err != nil {
		return nil, err
	}
	spares.renewSoon(config, groups)
	return i, nil
}

// openSpare makes the spare sandbox this one; nil when there is none, or it is of no use.
func openSpare(ctx context.Context, spares *spare, config wire.Config, groups *cgroup.Tree, limits sandbox.Limits) (*instance, error) {
	h := spares.take(config, groups)
	if h == nil {
		return nil, nil //nolint:nilnil // as said
	}
	i, err := h.finish(ctx, config, limits)
	if err != nil {
		return nil, ctx.Err() // a new one may do, and says why if not
	}
	return i, nil
}

func openNew(ctx context.Context, config wire.Config, groups *cgroup.Tree, limits sandbox.Limits) (*instance, error) {
	h, err := begin(config, groups)
	if err != nil {
		return nil, err
	}
	return h.finish(ctx, config, limits)
}

// half is a sandbox that is half made: it waits for its directories. One that bubblewrap makes has them.
type half struct {
	*instance

	owners int // the user namespace that translates the owner of the directories; -1 without
}

// begin starts a sandbox, in a group of its own unless groups is nil. It has to be finished or abandoned.
func begin(config wire.Config, groups *cgroup.Tree) (*half, error) {
	h, err := tryBegin(config, groups)
	if errors.Is(err, errLauncher) { // somebody has killed it, perhaps
		return tryBegin(config, groups)
	}
	return h, err
}

func tryBegin(config wire.Config, groups *cgroup.Tree) (*half, error) {
	b, err := bounds.New(groups, bounds.Spare{Memory: spareMemory, Processes: initd.SpareProcesses})
	if err != nil {
		return nil, err
	}
	conn, theirs, err := wire.Pair()
	if err != nil {
		return nil, errors.Join(err, b.Group().Close())
	}
	h := &half{
		instance: &instance{conn: conn, bounds: b, gone: make(chan struct{}), waiting: map[uint64]chan<- *reply{}}, owners: -1,
	}
	switch {
	case !config.Bwrap:
		h.process, h.owners, err = launchers.launch(config, theirs, b.Group())
	default:
		if err = conn.Send(0, wire.KindConfig, config); err == nil { // for the stage before the last
			h.bwrap, h.process, err = startBwrap(config, theirs, b.Group())
		}
	}
	if err = errors.Join(err, theirs.Close()); err != nil {
		return nil, errors.Join(err, h.abandon())
	}
	return h, nil
}

// finish makes the rest of a sandbox, with limits of its own, and waits until it serves. When that fails, nothing is left.
func (h *half) finish(ctx context.Context, config wire.Config, limits sandbox.Limits) (*instance, error) {
	err := h.bounds.Become(limits)
	if err == nil {
		err = h.furnish(config)
	}
	if err == nil {
		err = h.await(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, h.abandon())
	}
	h.closeOwners()
	h.reader.Go(h.receive)
	return h.instance, nil
}

// furnish tells a sandbox all that it still has to know. One that is gone is not told; await finds out why.
func (h *half) furnish(config wire.Config) error {
	if !config.Bwrap {
		if err := initd.HandOver(h.conn, config, h.owners); err != nil {
			return &startError{initd.Failure("directories", err)}
		}
	}
	_ = h.conn.Send(0, wire.KindConfig, config) // as above
	return nil
}

// abandon ends a sandbox that is not to be finished.
func (h *half) abandon() error {
	h.closeOwners()
	return h.close()
}

func (h *half) closeOwners() {
	if h.owners >= 0 {
		_ = unix.Close(h.owners) // nothing was written
		h.owners = -1
	}
}
