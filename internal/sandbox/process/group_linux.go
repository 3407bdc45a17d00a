package process

import (
	"github.com/toolfleet/toolfleet/internal/sandbox/internal/bounds"
	"github.com/toolfleet/toolfleet/internal/sandbox/internal/cgroup"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// group is the control group of the commands of a sandbox, and member a command in it. Without one
// nothing is bounded by it.
type (
	group  = bounds.Bounds
	member = bounds.Bound
)

// newGroup makes a group for a sandbox, if there can be one.
func newGroup(limits sandbox.Limits) (*group, error) {
	var groups *cgroup.Tree
	if !ungrouped.Load() {
		groups, _ = cgroup.Find() // limits are enforced in other ways then, and published so
	}
	return bounds.New(groups, bounds.Spare{}, limits)
}

func limitKinds() sandbox.LimitKinds {
	return sandbox.LimitKinds{
		CPU: sandbox.LimitRlimit, Memory: sandbox.LimitRlimit, OpenFiles: sandbox.LimitRlimit, FileSize: sandbox.LimitRlimit,
		Processes: sandbox.LimitNone, // the system counts all processes of the user, the worker's too
		Disk:      sandbox.LimitNone,
	}
}
