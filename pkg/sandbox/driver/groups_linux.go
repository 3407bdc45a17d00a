package driver

import (
	"errors"

	"github.com/toolfleet/toolfleet/pkg/sandbox/internal/cgroup"
)

// Groups returns the control group in which the sandboxes of this process have theirs, so
// that limits are hard. Where there is none the error is a [*GroupsError]. The first call may move
// this process into a group below its own, as opening a sandbox does.
func Groups() (dir string, err error) {
	tree, err := cgroup.Find()
	if unusable, ok := errors.AsType[*cgroup.UnusableError](err); ok {
		return "", &GroupsError{Found: unusable.What(), Advice: unusable.Advice}
	}
	if err != nil {
		return "", &GroupsError{Found: err.Error()}
	}
	return tree.Dir(), nil
}
