package worker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"

	"github.com/toolfleet/toolfleet/internal/gitguard"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/worker/background"
	"github.com/toolfleet/toolfleet/internal/worker/toolserver"
	"github.com/toolfleet/toolfleet/internal/workspace"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// sandboxes are the open sandboxes of the lanes that are held. It is safe for concurrent use.
type sandboxes struct {
	options    Options
	places     jetstream.KeyValue
	workspaces *workspace.Store // those that the fleet has; nil in tests without
	dataID     string
	network    sandbox.Network // set before the first one is opened

	instance string // of this process, for workspaces that are kept here only

	mu       sync.Mutex
	open     map[protocol.Lane]*box
	protect  map[string]gitguard.Protection // by directories that are used in place: what is protected by default
	settings map[protocol.Lane]*gitguard.Copies
}

// box is the sandbox of a lane; its lock is held while it opens or closes.
type box struct {
	leaseEnd atomic.Pointer[func() time.Time] // of the lane, as its last holder here knows it
	held     bool                             // the lane is, and it is used; guarded by the lock of all
	idle     time.Time                        // since when it is not; zero when it is, or about to be closed
	undos    atomic.Int64                     // how often what calls had changed was taken back

	mu          sync.Mutex
	sandbox     sandbox.Sandbox
	epoch       uint64 // of the claim under which it was used last
	workspace   string
	scratch     string
	seen        *seen
	protect     []string         // places that nothing changes
	settings    *gitguard.Copies // of git, of which the sandbox has copies; nil without any
	ephemeral   string           // what is removed when the sandbox is closed; "" for sandboxes of sessions
	checkpoints *checkpoints     // nil when the workspace is kept in the data directory only
	processes   *background.Processes
	servers     *toolserver.Servers
}

// newSandboxes prepares the data directory.
func newSandboxes(o Options, places jetstream.KeyValue) (*sandboxes, error) {
	s := &sandboxes{options: o, places: places, instance: uuid.NewString(), open: map[protocol.Lane]*box{}, protect: map[string]gitguard.Protection{}, settings: map[protocol.Lane]*gitguard.Copies{}}
	if err := errors.Join(os.MkdirAll(filepath.Join(o.Data, "sandboxes"), 0o700), os.MkdirAll(s.spools(), 0o700)); err != nil {
		return nil, fmt.Errorf("data directory: %w", err)
	}
	id, err := dataID(filepath.Join(o.Data, "id"))
	if err != nil {
		return nil, fmt.Errorf("data directory: %w", err)
	}
	s.dataID = id
	return s, nil
}

// spools is the directory of what commands write that is too much for the memory.
func (s *sandboxes) spools() string { return filepath.Join(s.options.Data, "spool") }

// dataID reads the id of a data directory, or gives it one. Processes that start
// at the same time on one directory agree, because the file appears whole.
func dataID(path string) (string, error) {
	temp := path + "." + uuid.NewString()
	if err := os.WriteFile(temp, []byte(uuid.NewString()), 0o600); err != nil {
		return "", err
	}
	linkErr := os.Link(temp, path)
	if err := os.Remove(temp); err != nil {
		return "", err
	}
	if linkErr != nil && !errors.Is(linkErr, fs.ErrExist) {
		return "", linkErr
	}
	content, err := os.ReadFile(path)
	return strings.TrimSpace(string(content)), err
}

// get returns the sandbox of a lane that is surely held, by a claim with this epoch, until
// leaseEnd, opening it when it is not open. Expected failures are a *protocol.Error.
func (s *sandboxes) get(ctx context.Context, l protocol.Lane, epoch uint64, leaseEnd func() time.Time) (sandbox.Sandbox, error) {
	b := s.hold(l)
	b.leaseEnd.Store(&leaseEnd)
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := s.reuse(ctx, l, b, epoch); err != nil {
		return nil, err
	}
	if b.sandbox != nil {
		return b.sandbox, b.copySettings(ctx)
	}
	_, inPlace := s.inPlace(l)
	if s.checkpoints() && !inPlace && sandboxOf(l) != "" && (b.checkpoints == nil || b.checkpoints.epoch != epoch) {
		var err error
		if b.checkpoints, err = s.take(ctx, l, epoch, &b.undos); err != nil {
			return nil, untaken(l, err)
		}
	}
	workspace, scratch, err := s.directories(ctx, l)
	if err != nil {
		return nil, err
	}
	if sandboxOf(l) == "" {
		b.ephemeral = filepath.Dir(workspace)
	}
	protect, err := s.protected(ctx, l)
	if err != nil {
		return nil, protocol.Errorf(protocol.CodeSandboxUnavailable, "the worker cannot open the sandbox: %v", err)
	}
	var copies []string
	if s.options.Caps.Copies {
		copies = protect.Configs
	}
	b.protect, b.settings = protect.Protect, s.copiesOf(l, workspace, scratch, copies)
	if err := b.copySettings(ctx); err != nil {
		return nil, err
	}
	opened, err := s.start(ctx, sandbox.Spec{
		ID: cmp.Or(sandboxOf(l), string(wire.HashLane(l))), Workspace: workspace, Scratch: scratch, Owned: !inPlace, Env: s.env(l),
		Mounts: s.mounts(), Limits: s.options.Limits, Network: s.network, Protect: protect.Protect, Missing: protect.Missing, Copies: copies,
		LeaseEnd: func() time.Time { return (*b.leaseEnd.Load())() },
	})
	if err != nil {
		err = errors.Join(err, b.closeLocked())
		return nil, protocol.Errorf(protocol.CodeSandboxUnavailable, "the worker cannot open the sandbox: %v", err)
	}
	b.sandbox, b.epoch, b.workspace, b.scratch = opened, epoch, workspace, scratch
	return opened, s.sign(l, b)
}

// workspace is the workspace directory of a lane; get must have been called.
func (s *sandboxes) workspace(l protocol.Lane) string {
	b := s.box(l)
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.workspace
}

// staging makes a directory in which a workspace can be made: on the same file system, and counted
// with the sandbox that it is for; get must have been called.
func (s *sandboxes) staging(l protocol.Lane) (string, error) {
	b := s.box(l)
	b.mu.Lock()
	defer b.mu.Unlock()
	at := b.scratch
	if _, inPlace := s.inPlace(l); inPlace {
		at = filepath.Dir(b.workspace)
	}
	return os.MkdirTemp(at, "import-")
}

func (s *sandboxes) box(l protocol.Lane) *box {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.boxLocked(l)
}

func (s *sandboxes) boxLocked(l protocol.Lane) *box {
	b := s.open[l]
	if b == nil {
		b = &box{
			seen:      newSeen(filepath.Join(s.home(l), seenName)),
			processes: background.New(filepath.Join(s.home(l), processesName)),
			servers:   toolserver.New(),
		}
		s.open[l] = b
	}
	return b
}

// mounts are what every sandbox sees beside its workspace: the folder of tools among them.
func (s *sandboxes) mounts() []sandbox.Mount {
	if s.options.Tools == "" {
		return s.options.Mounts
	}
	return append(slices.Clone(s.options.Mounts), sandbox.Mount{Host: s.options.Tools, Guest: s.toolsPlace()})
}

// guestTools is where sandboxes with a root of their own see the folder of tools.
const guestTools = "/tools"

// toolsPlace is where commands find the folder of tools; "" when there is none. Only
// drivers with a root of their own can show it under another name, and they must: what
// lies below the host's /tmp would be hidden by that of the sandbox.
func (s *sandboxes) toolsPlace() string {
	if s.options.Tools != "" && s.options.Caps.Level >= sandbox.LevelFull {
		return guestTools
	}
	return s.options.Tools
}

// directories returns the workspace and the scratch directory of a lane's sandbox.
func (s *sandboxes) directories(ctx context.Context, l protocol.Lane) (workspace, scratch string, err error) {
	home := s.home(l)
	ephemeral := sandboxOf(l) == ""
	if ephemeral {
		if home, err = s.ephemeral(l); err != nil {
			return "", "", err
		}
	}
	scratch = filepath.Join(home, "scratch")
	if dir, inPlace := s.inPlace(l); inPlace {
		if err := os.MkdirAll(scratch, 0o700); err != nil {
			return "", "", protocol.Errorf(protocol.CodeSandboxUnavailable, "scratch directory: %v", err)
		}
		return dir, scratch, nil
	}
	workspace = filepath.Join(home, workspaceDir)
	if !ephemeral && !s.checkpoints() {
		if err := s.claimPlace(ctx, l, workspace); err != nil {
			return "", "", err
		}
	}
	if err := errors.Join(os.MkdirAll(workspace, 0o700), os.MkdirAll(scratch, 0o700)); err != nil {
		return "", "", protocol.Errorf(protocol.CodeSandboxUnavailable, "workspace directory: %v", err)
	}
	return workspace, scratch, nil
}

// inPlace is the directory that a lane's sandbox uses in place; ok is false when it has one of its
// own.
func (s *sandboxes) inPlace(l protocol.Lane) (dir string, ok bool) {
	id := sandboxOf(l)
	if id == "" {
		return "", false
	}
	return s.options.Workspace(id)
}

// home is the directory of a lane in the data directory.
func (s *sandboxes) home(l protocol.Lane) string {
	return filepath.Join(s.options.Data, "sandboxes", directoryName(l))
}

// directoryName is the lane's own directory: the sandbox id when it is a plain token.
func directoryName(l protocol.Lane) string {
	if id, err := protocol.ParseSessionID(sandboxOf(l)); err == nil {
		return string(id)
	}
	return "lane." + string(wire.HashLane(l))
}

// opened is the box of a lane; nil when it has none.
func (s *sandboxes) opened(l protocol.Lane) *box {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.open[l]
}

// close closes the sandbox of a lane, if there is one.
func (s *sandboxes) close(l protocol.Lane) error {
	s.mu.Lock()
	b := s.open[l]
	delete(s.open, l)
	s.mu.Unlock()
	if b == nil {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return errors.Join(b.closeLocked(), b.checkpoints.close())
}

// kill closes a sandbox at once, with everything that runs in it; the box stays, for the next get.
func (s *sandboxes) kill(l protocol.Lane) error {
	b := s.opened(l)
	if b == nil {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.closeLocked()
}

// retake has the next call of a lane take its workspace anew, as the fleet has it, because the
// directory is not what it has to be.
func (s *sandboxes) retake(l protocol.Lane) {
	b := s.box(l)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.checkpoints = nil
}

func (b *box) closeLocked() error {
	closing, home := b.sandbox, b.ephemeral
	b.sandbox, b.ephemeral = nil, ""
	b.servers.End()
	var err error
	if closing != nil {
		err = closing.Close()
	}
	if err == nil {
		b.processes.Wait()
		b.servers.Wait()
	}
	if home != "" && err == nil { // what processes are left in is not removed below them
		err = removeUnmounted(home)
	}
	return err
}

// busy reports whether background processes or servers live in the sandbox of a lane.
func (s *sandboxes) busy(l protocol.Lane) bool {
	b := s.opened(l)
	return b != nil && b.busy()
}

func (b *box) busy() bool { return b.processes.Living() > 0 || b.servers.Living() > 0 }

// replace puts another directory in the place of an empty workspace. The sandbox is closed for it
// and opened again by the next get. Once ctx has ended the workspace may be that of another worker:
// it stays.
func (s *sandboxes) replace(ctx context.Context, l protocol.Lane, dir string) error {
	b := s.box(l)
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := errors.Join(b.closeLocked(), ctx.Err()); err != nil {
		return err
	}
	// Removing a directory that is not empty is refused; renaming onto one always is.
	if err := os.Remove(b.workspace); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.Rename(dir, b.workspace)
}

func (s *sandboxes) closeAll() {
	s.mu.Lock()
	lanes := slices.Collect(maps.Keys(s.open))
	s.mu.Unlock()
	var group errgroup.Group
	group.SetLimit(closers)
	for _, l := range lanes {
		group.Go(func() error { return s.close(l) })
	}
	_ = group.Wait() // the process ends; its children with it
}
