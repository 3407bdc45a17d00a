//go:build linux

package ns

import (
	"context"
	"errors"

	"github.com/toolfleet/toolfleet/internal/sandbox/internal/bounds"
	"github.com/toolfleet/toolfleet/internal/sandbox/internal/cgroup"
	"github.com/toolfleet/toolfleet/internal/sandbox/internal/initd"
	"github.com/toolfleet/toolfleet/internal/sandbox/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// open starts a sandbox, in a group of its own unless groups is nil, and waits until it serves.
// When that fails, nothing is left.
func open(ctx context.Context, config wire.Config, groups *cgroup.Tree, limits sandbox.Limits) (*instance, error) {
	i, err := begin(config, groups, limits)
	if errors.Is(err, errLauncher) { // somebody has killed it, perhaps
		i, err = begin(config, groups, limits)
	}
	if err != nil {
		return nil, err
	}
	if err := i.await(ctx); err != nil {
		return nil, errors.Join(err, i.close())
	}
	i.reader.Go(i.receive)
	return i, nil
}

func begin(config wire.Config, groups *cgroup.Tree, limits sandbox.Limits) (*instance, error) {
	b, err := bounds.New(groups, bounds.Spare{Memory: spareMemory, Processes: initd.SpareProcesses}, limits)
	if err != nil {
		return nil, err
	}
	conn, theirs, err := wire.Pair()
	if err != nil {
		return nil, errors.Join(err, b.Group().Close())
	}
	i := &instance{conn: conn, bounds: b, gone: make(chan struct{}), waiting: map[uint64]chan<- *reply{}}
	if config.Bwrap {
		if err = conn.Send(0, wire.KindConfig, config); err == nil { // for the stage before the last
			i.bwrap, i.process, err = startBwrap(config, theirs, b.Group())
		}
	} else {
		i.process, err = launchers.launch(config, theirs, b.Group())
	}
	if err = errors.Join(err, theirs.Close()); err != nil {
		return nil, errors.Join(err, i.close())
	}
	_ = conn.Send(0, wire.KindConfig, config) // one that is gone has said why
	return i, nil
}
