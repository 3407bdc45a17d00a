package process

import (
	"fmt"
	"math"
	"os"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/toolfleet/toolfleet/pkg/sandbox/internal/start"
)

// registry is what the commands of this program share, because the kernel has it
// once for a process: its children, and the resource limits that they inherit.
type registry struct {
	prepared sync.Once
	err      error // of preparing

	mu    sync.Mutex
	mains map[int]bool // commands that are not reaped; saves looking at what is below those of others
}

var commands = registry{mains: make(map[int]bool)} //nolint:gochecknoglobals // see above

// prepare makes this process the new parent of the orphans among its descendants,
// and keeps the descriptors that it was started with from its children.
func (r *registry) prepare() error {
	r.prepared.Do(func() {
		if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
			r.err = fmt.Errorf("become child subreaper: %w", err)
			return
		}
		r.err = closeOnExec()
	})
	return r.err
}

// closeOnExec keeps every open descriptor but the first three from children. Go opens
// all of its own that way.
func closeOnExec() error {
	err := unix.CloseRange(3, math.MaxInt32, unix.CLOSE_RANGE_CLOEXEC)
	if err == nil {
		return nil
	}
	entries, err := os.ReadDir("/proc/self/fd") // the kernel is older than 5.11
	if err != nil {
		return fmt.Errorf("list descriptors: %w", err)
	}
	for _, entry := range entries {
		if fd, err := strconv.Atoi(entry.Name()); err == nil && fd > 2 {
			unix.CloseOnExec(fd)
		}
	}
	return nil
}

// start runs fork, which returns the id of a new command. The command, and all that
// it starts, inherits the brand, and nothing else does.
func (r *registry) start(b brand, fork func() (int, error)) error {
	return start.Alone(func() error {
		pid, err := 0, error(nil)
		b.during(func() { pid, err = fork() })
		if err != nil {
			return err
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		r.mains[pid] = true
		return nil
	})
}

// reaped forgets a command that was waited for.
func (r *registry) reaped(pid int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.mains, pid)
}

// isMain reports whether pid is a command that is not reaped.
func (r *registry) isMain(pid int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mains[pid]
}
