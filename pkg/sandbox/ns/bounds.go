//go:build linux

package ns

import (
	"sync"
	"time"

	"github.com/toolfleet/toolfleet/pkg/sandbox"
	"github.com/toolfleet/toolfleet/pkg/sandbox/internal/cgroup"
	"github.com/toolfleet/toolfleet/pkg/sandbox/internal/initd"
)

// spareMemory is what the first process of a sandbox, and the kernel for it, may hold beside
// the commands.
const spareMemory = 16 << 20

// bounds are the limits of a sandbox's control group. They are those of the command that
// runs, when that is the only one: a command may have tighter limits than its sandbox.
type bounds struct {
	group *cgroup.Group // nil when there is none; nothing is bounded then
	whole sandbox.Limits

	mu      sync.Mutex
	running map[*bound]struct{}
}

// bound is a command in a group.
type bound struct {
	*bounds

	limits sandbox.Limits
	kills  uint64 // for memory, before it started
	alone  bool   // no command has run beside it
}

// newBounds makes a group for a sandbox, if groups is not nil, with the limits that sandboxes have by default.
func newBounds(groups *cgroup.Tree) (*bounds, error) {
	b := &bounds{whole: sandbox.Limits{}.WithDefaults(), running: map[*bound]struct{}{}}
	if groups == nil {
		return b, nil
	}
	var err error
	b.group, err = groups.Open(groupLimits(b.whole))
	return b, err
}

// become changes the limits of a sandbox in which nothing has run.
func (b *bounds) become(whole sandbox.Limits) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.whole = whole.WithDefaults()
	if b.group == nil {
		return nil
	}
	return b.apply()
}

// groupLimits are limits of commands as those of the group that they share with the first process.
func groupLimits(l sandbox.Limits) cgroup.Limits {
	limits := cgroup.Limits{Processes: l.Processes + initd.SpareProcesses}
	if l.Memory > 0 {
		limits.Memory = l.Memory + spareMemory
	}
	return limits
}

// enter counts a command in, whose limits are tighter than those of the sandbox or the same.
// Every success is followed by leave.
func (b *bounds) enter(limits sandbox.Limits) (*bound, error) {
	c := &bound{bounds: b, limits: limits, alone: true}
	if b.group == nil {
		return c, nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	c.kills = b.group.OOMKills()
	b.running[c] = struct{}{}
	if len(b.running) > 1 {
		for other := range b.running {
			other.alone = false
		}
	}
	if err := b.apply(); err != nil {
		delete(b.running, c)
		return nil, err
	}
	return c, nil
}

// apply sets the limits of the group. The caller holds the lock.
func (b *bounds) apply() error {
	limits := b.whole
	if len(b.running) == 1 {
		for c := range b.running {
			limits = c.limits
		}
	}
	return b.group.Limit(groupLimits(limits))
}

func (c *bound) leave() {
	if c.group == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.running, c)
	if len(c.running) == 1 {
		_ = c.apply() // the limits of the sandbox still hold
	}
}

// watched reports whether the memory of the command has to be watched from inside: the
// group does not bound it, or only with those that may run beside it.
func (c *bound) watched() bool { return c.group == nil || c.limits.Memory != c.whole.Memory }

// lookPause is how often it is looked whether the kernel has killed something.
const lookPause = 20 * time.Millisecond

// looks tells when to ask killed, if that can become true, until stop is called.
func (c *bound) looks() (tell <-chan time.Time, stop func()) {
	if c.group == nil || c.limits.Memory == 0 {
		return nil, func() {}
	}
	ticker := time.NewTicker(lookPause)
	return ticker.C, ticker.Stop
}

// killed reports whether the kernel has killed a process of the sandbox for its memory since
// the command started, and mine that it was the command's, for there was no other.
func (c *bound) killed() (killed, mine bool) {
	if c.group == nil {
		return false, false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	killed = c.group.OOMKills() > c.kills
	return killed, killed && c.alone
}

// kinds says by what the limits of the command were enforced.
func (c *bound) kinds() sandbox.LimitKinds {
	kinds := limitKinds(c.group != nil)
	if c.group == nil {
		return kinds
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.alone && c.limits.Memory != c.whole.Memory {
		kinds.Memory = sandbox.LimitSoft
	}
	if !c.alone && c.limits.Processes != c.whole.Processes {
		kinds.Processes = sandbox.LimitNone
	}
	return kinds
}

// limitKinds says by what limits are enforced.
func limitKinds(grouped bool) sandbox.LimitKinds {
	kinds := sandbox.LimitKinds{
		CPU: sandbox.LimitRlimit, Memory: sandbox.LimitSoft, Processes: sandbox.LimitRlimit,
		OpenFiles: sandbox.LimitRlimit, FileSize: sandbox.LimitRlimit, Disk: sandbox.LimitSoft,
	}
	if grouped {
		kinds.Memory, kinds.Processes = sandbox.LimitCgroup, sandbox.LimitCgroup
	}
	return kinds
}
