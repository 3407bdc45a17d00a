package sandboxes

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/toolfleet/toolfleet/internal/gitguard"
	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/internal/worker/background"
	"github.com/toolfleet/toolfleet/internal/worker/checkpoint"
	"github.com/toolfleet/toolfleet/internal/worker/toolserver"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// Box is the sandbox of a lane with all that belongs to it, open or closed. Methods on a nil box,
// of a lane without one, do nothing. It is safe for concurrent use.
type Box struct {
	// Digests are those of the files that sessions have read or written.
	Digests *Digests
	// Processes are those that run in the background.
	Processes *background.Processes
	// Servers are those of the Model Context Protocol.
	Servers *toolserver.Servers

	set      *Set
	lane     protocol.Lane
	leaseEnd atomic.Pointer[func() time.Time] // of the lane, as its last holder here knows it
	undos    atomic.Int64                     // how often changes of calls were undone
	held     bool                             // the lane is held; guarded by the set's lock
	idle     time.Time                        // since when it is not; zero if it is, or about to be closed

	mu          sync.Mutex // held while the sandbox opens or closes
	sandbox     sandbox.Sandbox
	epoch       uint64 // of the claim under which it was used last
	workspace   string
	scratch     string
	protect     []string              // paths that nothing changes
	settings    *gitguard.Copies      // of git, of which the sandbox has copies; nil without any
	temporary   string                // removed when the sandbox is closed; "" for sandboxes of sessions
	checkpoints *checkpoint.Directory // nil if the workspace is stored in the data directory only
}

// Workspace is the workspace directory of a sandbox that was opened.
func (b *Box) Workspace() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.workspace
}

// Checkpoints are those of the workspace; nil without any.
func (b *Box) Checkpoints() *checkpoint.Directory {
	if b == nil {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.checkpoints
}

// ShellFile is the file with the state of the shell: next to the workspace, for the next worker
// that has it.
func (b *Box) ShellFile() string { return filepath.Join(b.set.home(b.lane), checkpoint.ShellFile) }

// Undos is how often changes of the lane's calls were undone.
func (b *Box) Undos() int64 {
	if b == nil {
		return 0
	}
	return b.undos.Load()
}

// Dialer connects to servers in the sandbox; nil if it is closed, or cannot.
func (b *Box) Dialer() isolation.Dialer {
	if b == nil {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	dialer, _ := b.sandbox.(isolation.Dialer)
	return dialer
}

// Busy reports whether background processes or servers live in the sandbox.
func (b *Box) Busy() bool {
	return b != nil && (b.Processes.Living() > 0 || b.Servers.Living() > 0)
}

// Kill closes the sandbox at once, with everything that runs in it. The next call opens it again.
func (b *Box) Kill() error {
	if b == nil {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.close()
}

// close is Kill for the holder of the lock.
func (b *Box) close() error {
	closing, home := b.sandbox, b.temporary
	b.sandbox, b.temporary = nil, ""
	b.Servers.End()
	var err error
	if closing != nil {
		err = closing.Close()
	}
	if err == nil {
		b.Processes.Wait()
		b.Servers.Wait()
	}
	if home != "" && err == nil { // a directory with processes in it stays
		err = RemoveUnmounted(home)
	}
	return err
}

// Reclaim has the next call restore the workspace from its last checkpoint, because the directory
// differs from it.
func (b *Box) Reclaim() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.checkpoints = nil
}

// Staging makes a directory in which a workspace can be made: on the same file system, and counted
// against the limits of the sandbox.
func (b *Box) Staging() (string, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	at := b.scratch
	if _, inPlace := b.set.InPlace(b.lane); inPlace {
		at = filepath.Dir(b.workspace)
	}
	return os.MkdirTemp(at, "import-")
}

// Replace puts another directory in the place of an empty workspace. It closes the sandbox, and the
// next call opens it again. Once ctx has ended the workspace stays: it may be another worker's.
func (b *Box) Replace(ctx context.Context, dir string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := errors.Join(b.close(), ctx.Err()); err != nil {
		return err
	}
	// Removing a directory that is not empty is refused; renaming onto one always is.
	if err := os.Remove(b.workspace); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.Rename(dir, b.workspace)
}

// Used reports whether there is anything in the workspace but the empty directories that keep
// protected paths from being made.
func (b *Box) Used() (bool, error) {
	workspace := b.Workspace()
	entries, err := os.ReadDir(workspace)
	if err != nil {
		return false, err
	}
	for _, entry := range entries {
		name := entry.Name()
		if !slices.ContainsFunc(b.set.options.Protect, func(path string) bool { return path == name || strings.HasPrefix(path, name+"/") }) {
			return true, nil
		}
		below, err := os.ReadDir(filepath.Join(workspace, name))
		if err != nil || len(below) > 0 {
			return true, nil //nolint:nilerr // it is a file
		}
	}
	return false, nil
}
