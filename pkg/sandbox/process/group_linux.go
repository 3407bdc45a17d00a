package process

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"

	"github.com/toolfleet/toolfleet/pkg/sandbox"
	"github.com/toolfleet/toolfleet/pkg/sandbox/internal/bounds"
	"github.com/toolfleet/toolfleet/pkg/sandbox/internal/cgroup"
)

// group is the control group of the commands of a sandbox. Without one nothing is bounded by it.
type group struct {
	*bounds.Bounds

	suffix []byte // of the group's path, wherever the hierarchy is mounted; only this group has it
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
	b, err := bounds.New(groups, bounds.Spare{})
	if err == nil {
		err = b.Become(limits)
	}
	if err != nil {
		return nil, err
	}
	g := &group{Bounds: b}
	if b.Group() != nil {
		own, above := filepath.Base(b.Group().Path()), filepath.Base(filepath.Dir(b.Group().Path()))
		g.suffix = []byte("/" + above + "/" + own)
	}
	return g, nil
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

// prepare has a command start in the group.
func (m *member) prepare(cmd *exec.Cmd) {
	if m.group.used() {
		cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, int(m.group.Group().Dir().Fd())
	}
}

// owns reports whether a process, ended or not, is the command's because it is in the group and there is no other
// command. Nothing that a process does changes that.
func (m *member) owns(pid int) bool {
	if !m.group.used() || !m.Alone() {
		return false
	}
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cgroup")
	if err != nil {
		return false
	}
	for line := range bytes.Lines(text) {
		if bytes.HasPrefix(line, []byte("0::")) {
			return bytes.HasSuffix(bytes.TrimSpace(line), m.group.suffix)
		}
	}
	return false
}
