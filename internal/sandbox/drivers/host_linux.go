package drivers

import (
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/toolfleet/toolfleet/internal/sandbox/internal/cgroup"
	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/internal/sandbox/ns"
	"github.com/toolfleet/toolfleet/internal/sandbox/process"
)

// Groups returns the control group in which the sandboxes of this process have theirs, so that
// limits are hard. Where there is none the error wraps a [*isolation.UnusableError]. The first call
// may move this process into a group below its own, as opening a sandbox does.
func Groups() (dir string, err error) {
	tree, err := cgroup.Find()
	if err != nil {
		return "", err
	}
	return tree.Dir(), nil
}

// place is a directory that can be written and is on the file system that dir is on, or will be:
// itself or one above. It is "" when there is none.
func place(dir string) string {
	if dir == "" {
		return ""
	}
	abs, err := filepath.Abs(dir)
	for err == nil {
		if _, err := os.Stat(abs); err == nil {
			break
		}
		if abs == filepath.Dir(abs) {
			return ""
		}
		abs = filepath.Dir(abs)
	}
	if err != nil || unix.Access(abs, unix.W_OK|unix.X_OK) != nil {
		return ""
	}
	return abs
}

// isolating are the drivers that isolate, best first.
func isolating(o *Options) []isolation.Driver {
	return []isolation.Driver{ns.New(&ns.Options{Logger: o.Logger, Dir: place(o.Data)}), process.NewLandlock(&process.Options{Logger: o.Logger})}
}
