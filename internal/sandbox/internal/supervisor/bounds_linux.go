package supervisor

import (
	"sync"
	"time"

	"github.com/toolfleet/toolfleet/internal/sandbox/internal/cgroup"
	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// Spare is what a sandbox may use in addition to its commands.
type Spare struct {
	Memory    int64 // bytes
	Processes int64
}

// Bounds are the limits of a sandbox's control group. They are those of the command that runs, when
// that is the only one: a command may have tighter limits than its sandbox. They are safe for
// concurrent use.
type Bounds struct {
	group   *cgroup.Group // nil when there is none; nothing is bounded then
	spare   Spare
	set     func(sandbox.Limits) error // has the kernel enforce limits; nil when it bounds nothing
	closing sync.Once

	mu      sync.Mutex
	whole   sandbox.Limits
	running map[*Bound]struct{}
}

// Bound is a command in a group, or in none.
type Bound struct {
	*Bounds

	limits sandbox.Limits
	alone  bool   // no command has run beside it
	kills  uint64 // for memory, before it started
}

// NewBounds makes a group for a sandbox with these limits, if groups is not nil.
func NewBounds(groups *cgroup.Tree, spare Spare, whole sandbox.Limits) (*Bounds, error) {
	b := &Bounds{spare: spare, whole: isolation.WithDefaults(whole)}
	if groups == nil {
		return b, nil
	}
	var err error
	b.group, err = groups.Open(b.groupLimits(b.whole))
	b.set = func(l sandbox.Limits) error { return b.group.Limit(b.groupLimits(l)) }
	return b, err
}

// Used reports whether there is a group.
func (b *Bounds) Used() bool { return b.group != nil }

// Close removes the group with whatever is in it, once.
func (b *Bounds) Close() (err error) {
	b.closing.Do(func() { err = b.group.Close() })
	return err
}

// Group is the control group; nil when there is none.
func (b *Bounds) Group() *cgroup.Group { return b.group }

// groupLimits are limits of commands as those of the group.
func (b *Bounds) groupLimits(l sandbox.Limits) cgroup.Limits {
	limits := cgroup.Limits{Processes: l.Processes + b.spare.Processes}
	if l.Memory > 0 {
		limits.Memory = l.Memory + b.spare.Memory
	}
	return limits
}

// Enter counts a command in, whose limits are tighter than those of the sandbox or the same.
// Every success is followed by Leave.
func (b *Bounds) Enter(limits sandbox.Limits) (*Bound, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	c := &Bound{Bounds: b, limits: limits, alone: true}
	if b.group != nil {
		c.kills = b.group.OOMKills()
	}
	if b.running == nil {
		b.running = map[*Bound]struct{}{}
	}
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

// Leave counts the command out.
func (c *Bound) Leave() {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.running, c)
	_ = c.apply() // the limits that there were still hold
}

// only reports whether the command runs, and no other one does now. The caller holds the lock.
func (c *Bound) only() bool {
	_, runs := c.running[c]
	return runs && len(c.running) == 1
}

// apply has the kernel enforce the limits that hold now. The caller holds the lock.
func (b *Bounds) apply() error {
	if b.set == nil {
		return nil
	}
	limits := b.whole
	if len(b.running) == 1 {
		for c := range b.running {
			limits = c.limits
		}
	}
	return b.set(limits)
}

// Watched reports whether the memory of the command has to be watched from inside: the group does
// not bound it, or only together with concurrent commands.
func (c *Bound) Watched() bool { return c.group == nil || c.limits.Memory != c.whole.Memory }

// lookPause is how often it is looked whether the kernel has killed something.
const lookPause = 20 * time.Millisecond

// Looks ticks when killed is to be asked, if that can become true, until stop is called.
func (c *Bound) Looks() (tell <-chan time.Time, stop func()) {
	if c.group == nil || c.limits.Memory == 0 {
		return nil, func() {}
	}
	ticker := time.NewTicker(lookPause)
	return ticker.C, ticker.Stop
}

// Killed reports whether the kernel has killed a process of the sandbox for its memory since
// the command started, and mine that it was the command's, for there was no other.
func (c *Bound) Killed() (killed, mine bool) {
	if c.group == nil {
		return false, false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	killed = c.group.OOMKills() > c.kills
	return killed, killed && c.alone
}

// OutOfMemory says so in result when the kernel has killed the command, or a process of it while it
// ran alone.
func (c *Bound) OutOfMemory(result *sandbox.Result) {
	killed, mine := c.Killed()
	natural := result.Reason == sandbox.ReasonExited || result.Reason == sandbox.ReasonSignaled
	if killed && natural && (mine || result.Signal == "SIGKILL") {
		result.Reason = sandbox.ReasonOOM
	}
}

// Alone reports whether the command runs in a group, and no other one does now.
func (c *Bound) Alone() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.group != nil && c.only()
}

// KillAlone kills everything in the group if the command is alone there.
func (c *Bound) KillAlone() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.group == nil || !c.only() {
		return nil
	}
	return c.group.KillEach()
}

// Kinds says by what the limits of the command were enforced, where without a group it would be
// kinds.
func (c *Bound) Kinds(kinds isolation.LimitKinds) isolation.LimitKinds {
	if c.group == nil {
		return kinds
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.alone || c.limits.Memory == c.whole.Memory {
		kinds.Memory = isolation.LimitCgroup
	}
	kinds.Processes = isolation.LimitNone
	if c.alone || c.limits.Processes == c.whole.Processes {
		kinds.Processes = isolation.LimitCgroup
	}
	return kinds
}
