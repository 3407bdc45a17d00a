//go:build !linux

package process

import (
	"time"

	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// group would be the control group of the commands of a sandbox, which this system does not have.
type group struct{}

// member would be a command in a group.
type member struct{}

func newGroup(sandbox.Limits) (*group, error) { return &group{}, nil }

func (*group) used() bool { return false }

func (*group) close() error { return nil }

func (*group) enter(sandbox.Limits) (*member, error) { return &member{}, nil }

// Leave does nothing.
func (*member) Leave() {}

// Watched reports that nothing bounds the command's memory.
func (*member) Watched() bool { return true }

// Looks returns no times to look at what was killed.
func (*member) Looks() (<-chan time.Time, func()) { return nil, func() {} }

// Killed reports that nothing was killed for its memory.
func (*member) Killed() (killed, mine bool) { return false, false }

// Kinds returns kinds.
func (*member) Kinds(kinds sandbox.LimitKinds) sandbox.LimitKinds { return kinds }

func limitKinds() sandbox.LimitKinds {
	return sandbox.LimitKinds{
		CPU: sandbox.LimitNone, Memory: sandbox.LimitNone, Processes: sandbox.LimitNone,
		OpenFiles: sandbox.LimitNone, FileSize: sandbox.LimitNone, Disk: sandbox.LimitNone,
	}
}
