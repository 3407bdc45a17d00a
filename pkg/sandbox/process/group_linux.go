package process

import (
	"github.com/toolfleet/toolfleet/pkg/sandbox"
	"github.com/toolfleet/toolfleet/pkg/sandbox/internal/bounds"
	"github.com/toolfleet/toolfleet/pkg/sandbox/internal/cgroup"
)

// group is the control group of the commands of a sandbox. Without one nothing is bounded by it.
type group struct {
	*bounds.Bounds
}

// member is a command in a group.
type member struct {
	*bounds.Bound

	group *group
}

// newGroup makes a group for a sandbox, if there can be one.
func newGroup(limits sandbox.Limits) (*group, error) {
	var groups *cgroup.Tree
	if !ungrouped.Load() {
		groups, _ = cgroup.Find() // limits are enforced in other ways then, and published so
	}
	b, err := bounds.New(groups, bounds.Spare{}, limits)
	if err != nil {
		return nil, err
	}
	return &group{Bounds: b}, nil
}

// used reports whether there is a group.
func (g *group) used() bool { return g.Group() != nil }

// close removes the group with whatever is in it.
func (g *group) close() error { return g.Group().Close() }

// enter counts a command in. Every success is followed by Leave.
func (g *group) enter(limits sandbox.Limits) (*member, error) {
	b, err := g.Enter(limits)
	return &member{Bound: b, group: g}, err
}
