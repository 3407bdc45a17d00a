package sandboxes

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/toolfleet/toolfleet/internal/inplace/gitguard"
	"github.com/toolfleet/toolfleet/internal/mcp/toolserver"
	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/internal/system"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/worker/background"
	"github.com/toolfleet/toolfleet/internal/worker/checkpoint"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// LaneSandbox is a sandbox of a lane with all that belongs to it, open or closed. Methods on nil,
// for a lane without one, do nothing. It is safe for concurrent use.
type LaneSandbox struct {
	// Digests of the files that sessions have read or written.
	Digests *Digests
	// Processes that run in the background.
	Processes *background.Processes
	// Servers of the Model Context Protocol.
	Servers *toolserver.Servers

	key

	set      *Manager
	leaseEnd atomic.Pointer[func() time.Time] // of the lane, as its last holder here knows it
	undos    atomic.Int64                     // how often changes of calls were undone
	held     bool                             // the lane is held; guarded by the set's lock
	idle     time.Time                        // since when it is not; zero if it is, or about to be closed
	calls    int                              // that run in it; guarded by the set's lock
	left     time.Time                        // when the last one ended; likewise

	mu sync.Mutex // held while the sandbox opens or closes
	opened
}

// opened is a sandbox, and the directories that it was opened with last. [LaneSandbox].mu guards
// it.
type opened struct {
	sandbox     sandbox.Sandbox // nil if it is closed
	epoch       uint64          // of the claim under which it was used last
	workspace   string
	scratch     string
	protect     []string              // paths that nothing changes
	settings    *gitguard.Copies      // copies of git's settings in the sandbox; nil for none
	temporary   string                // removed when the sandbox is closed; "" for sandboxes of sessions
	checkpoints *checkpoint.Directory // nil if the workspace is stored in the data directory only
}

// state is the sandbox as it is now.
func (b *LaneSandbox) state() opened {
	if b == nil {
		return opened{}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.opened
}

// Workspace is the workspace directory of a sandbox that was opened.
func (b *LaneSandbox) Workspace() string { return b.state().workspace }

// Protected are the paths of the workspace that nothing changes.
func (b *LaneSandbox) Protected() []string { return b.state().protect }

// Checkpoints returns the checkpoints of the workspace; nil without any.
func (b *LaneSandbox) Checkpoints() *checkpoint.Directory { return b.state().checkpoints }

// ShellFile is the file with the state of the shell: next to the workspace, for the next worker
// that has it.
func (b *LaneSandbox) ShellFile() string {
	return filepath.Join(b.set.home(b.lane), checkpoint.ShellFile)
}

// MergedFile is the file that says which forks were merged: next to the workspace, with which it is
// stored.
func (b *LaneSandbox) MergedFile() string {
	return filepath.Join(b.set.home(b.lane), checkpoint.MergedFile)
}

// Undos is how often changes of the lane's calls were undone.
func (b *LaneSandbox) Undos() int64 {
	if b == nil {
		return 0
	}
	return b.undos.Load()
}

// Dialer connects to servers in the sandbox; nil if it is closed, or cannot.
func (b *LaneSandbox) Dialer() isolation.Dialer {
	m, _ := b.state().sandbox.(measured)
	dialer, _ := m.Sandbox.(isolation.Dialer)
	return dialer
}

// Busy reports whether background processes or servers live in the sandbox.
func (b *LaneSandbox) Busy() bool {
	return b != nil && (b.Processes.Running() > 0 || b.Servers.Running() > 0)
}

// Kill closes the sandbox at once, with everything that runs in it. The next call opens it again.
func (b *LaneSandbox) Kill() error {
	if b == nil {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.close()
}

// close is Kill for the holder of the lock.
func (b *LaneSandbox) close() error {
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
func (b *LaneSandbox) Reclaim() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.checkpoints = nil
}

// Staging makes a directory in which a workspace can be made: on the same file system, and counted
// against the limits of the sandbox. It removes staging directories that killed workers left: the
// lane is held.
func (b *LaneSandbox) Staging() (string, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	at := b.scratch
	if _, inPlace := b.set.InPlace(b.lane); inPlace {
		at = filepath.Dir(b.workspace)
	}
	staged := "import-" + string(wire.HashLane(b.lane)) + "-"
	entries, err := os.ReadDir(at)
	if err != nil {
		return "", err
	}
	for _, entry := range entries {
		if strings.HasPrefix(entry.Name(), staged) {
			if err := RemoveUnmounted(filepath.Join(at, entry.Name())); err != nil {
				return "", err
			}
		}
	}
	return os.MkdirTemp(at, staged)
}

// ReplaceWorkspace replaces an empty workspace by another directory. It closes the sandbox, and the
// next call opens it again. Once ctx has ended the workspace stays: it may be another worker's.
func (b *LaneSandbox) ReplaceWorkspace(ctx context.Context, dir string) error {
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

// HasFiles reports whether there is anything in the workspace but the empty directories that keep
// protected paths from being made.
func (b *LaneSandbox) HasFiles() (bool, error) {
	workspace := b.Workspace()
	entries, err := os.ReadDir(workspace)
	if err != nil {
		return false, err
	}
	for _, entry := range entries {
		name := entry.Name()
		if !slices.ContainsFunc(b.set.options.Protect, func(path string) bool { return system.Within(name, path) }) {
			return true, nil
		}
		below, err := os.ReadDir(filepath.Join(workspace, name))
		if err != nil || len(below) > 0 {
			return true, nil //nolint:nilerr // it is a file
		}
	}
	return false, nil
}

// copiesOf are the copies of git's settings of a lane's sandbox, of these files; nil without any.
// They stay as commands have changed them when the sandbox is closed and opened again.
func (s *Manager) copiesOf(l protocol.Lane, workspace, scratch string, files []string) *gitguard.Copies {
	if len(files) == 0 {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.settings[l] == nil {
		s.settings[l] = gitguard.NewCopies(workspace, scratch, files)
	}
	return s.settings[l]
}

// copySettings has the sandbox see git's settings as they are now.
func (b *LaneSandbox) copySettings(ctx context.Context) error {
	if err := b.settings.Put(ctx); err != nil {
		return protocol.Errorf(protocol.CodeSandboxUnavailable, "the worker cannot open the sandbox: %v", err)
	}
	return nil
}

// Notes are what a model must know about a command that has ended: which protected paths refused a
// change, and which git settings hold in this sandbox only.
func (b *LaneSandbox) Notes(ctx context.Context, cmd *sandbox.Cmd, r *sandbox.Result) (notes []string) {
	is := b.state()
	if hint := protectedHint(is.protect, r); hint != "" {
		notes = append(notes, hint)
	}
	if note := b.noRepository(ctx, r); note != "" {
		notes = append(notes, note)
	}
	if cmd.ReadOnly { // it changes nothing of the workspace
		return notes
	}
	changed, err := is.settings.Changed(context.WithoutCancel(ctx))
	if err != nil {
		b.set.options.Logger.WarnContext(ctx, "cannot look for changed git settings", slog.String("lane", string(b.lane)), slog.Any("error", err))
		notes = append(notes, "Git settings that were changed hold in this sandbox only.")
	}
	if len(changed) > 0 {
		notes = append(notes, fmt.Sprintf("These git settings hold in this sandbox only, not in the user's repository: %s. "+
			"If they are wanted there, say so: only the user can set them.", strings.Join(changed, ", ")))
	}
	return notes
}

// SetAside sets aside what a call of a lane has left for git to run in a directory used in place.
// It returns what that was.
func (s *Manager) SetAside(ctx context.Context, l protocol.Lane) ([]string, error) {
	dir, inPlace := s.InPlace(l)
	if !inPlace {
		return nil, nil
	}
	return s.directory(dir).aside.Load().Move(context.WithoutCancel(ctx))
}

// SetAsideLater is SetAside when no call of the lane returns what it returns: the log has it, and
// the report at the end of the turn.
func (s *Manager) SetAsideLater(ctx context.Context, l protocol.Lane) {
	moved, err := s.SetAside(ctx, l)
	if err != nil {
		s.options.Logger.WarnContext(ctx, "what the user's git would run in the workspace cannot be found out", slog.String("lane", string(l)), slog.Any("error", err))
	}
	if len(moved) > 0 {
		s.options.Logger.WarnContext(ctx, "set aside what the user's git would have run", slog.String("lane", string(l)), slog.Any("paths", moved))
	}
}

// closeAside ends the use of directories in place, in which no sandbox is open any more.
func (s *Manager) closeAside() {
	ctx := context.Background() //nolint:forbidigo // it is short, and must be done
	s.mu.Lock()
	all := s.inPlace
	s.inPlace = map[string]*directory{}
	s.mu.Unlock()
	for dir, d := range all {
		if moved, err := d.aside.Load().Close(ctx); err != nil || len(moved) > 0 {
			s.options.Logger.WarnContext(ctx, "set aside what the user's git would have run", slog.String("directory", dir), slog.Any("paths", moved), slog.Any("error", err))
		}
	}
}

// noRepository says why git found no repository where a person's git finds one; "" if the command
// does not report that.
func (b *LaneSandbox) noRepository(ctx context.Context, r *sandbox.Result) string {
	const said = "fatal: not a git repository"
	if !bytes.Contains(r.Stderr.Data, []byte(said)) && !bytes.Contains(r.Stdout.Data, []byte(said)) {
		return ""
	}
	workspace := b.Workspace()
	link, err := os.Lstat(filepath.Join(workspace, ".git"))
	if err != nil || !link.Mode().IsRegular() {
		if _, inPlace := b.set.InPlace(b.lane); !inPlace || gitguard.FindOutside(ctx, workspace) == nil {
			return ""
		}
	}
	return "git does not work in this workspace: it is a linked worktree, a submodule or a subdirectory of a repository that the sandbox does not have. Go on without git, and say so if it is needed."
}

// refusals are what the kernel says of changing a protected path.
var refusals = []string{"Read-only file system", "Device or resource busy", "Invalid cross-device link", "EROFS", "EBUSY", "EXDEV"} //nolint:gochecknoglobals // a constant

// protectedHint names the protected paths that a command reports it could not change; "" for none.
func protectedHint(paths []string, r *sandbox.Result) string {
	said := string(r.Stderr.Data) + string(r.Stdout.Data)
	var named []string
	for line := range strings.Lines(said) {
		for _, refusal := range refusals {
			if !strings.Contains(line, refusal) {
				continue
			}
			for _, path := range paths {
				if strings.Contains(line, path) {
					named = append(named, path)
				}
			}
		}
	}
	if len(named) == 0 {
		return ""
	}
	slices.Sort(named)
	return strings.Join(slices.Compact(named), ", ") +
		": protected, can be read and not changed, moved or removed in this workspace, because programs of the user run what is there. Leave it as it is."
}

// directory is what its first use has shown of a directory that is used in place.
type directory struct {
	looks   chan struct{} // holds one token while the directory is looked at
	protect *gitguard.Protection
	watched bool
	aside   atomic.Pointer[gitguard.Aside] // nil if nothing is set aside
}

func (s *Manager) directory(dir string) *directory {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.inPlace[dir] == nil {
		s.inPlace[dir] = &directory{looks: make(chan struct{}, 1)}
	}
	return s.inPlace[dir]
}

// protected are the paths of a lane's workspace that nothing changes. A directory that is used in
// place is looked at once: what commands make afterwards they may change, and its repositories are
// those that are there then. That may take long, for the lanes of this directory only.
func (s *Manager) protected(ctx context.Context, l protocol.Lane) (p gitguard.Protection, err error) {
	p = gitguard.Only(s.options.Protect)
	dir, inPlace := s.InPlace(l)
	if !inPlace {
		return p, nil
	}
	d := s.directory(dir)
	select {
	case d.looks <- struct{}{}:
		defer func() { <-d.looks }()
	case <-ctx.Done():
		return p, context.Cause(ctx)
	}
	if d.protect == nil {
		if s.options.Protect == nil && s.options.Caps.Protect {
			p, err = gitguard.Protected(ctx, dir)
		}
		if err != nil {
			return p, err
		}
		d.protect = &p
	}
	if !d.watched && !s.options.KeepGitSettings {
		aside, err := gitguard.NewAside(ctx, dir)
		if err != nil {
			return p, err
		}
		d.watched = true
		d.aside.Store(aside)
	}
	return *d.protect, nil
}
