// Package sandboxes opens the sandbox of each lane that its worker holds, keeps it open between
// calls, and closes it.
//
//	Open ──► closed ──► workspace (checkpoint or in place) ──► driver ──► open
//	           ▲                                                            │
//	           │ too many, or changed elsewhere  Release: the lane is idle ◄┘
//	           └──────────────────────────────── open, nothing runs in it
//
// A [LaneSandbox] is the sandbox of one lane with what belongs to it: its directory, checkpoints,
// background processes and MCP servers. A released sandbox stays open while there is room for it;
// the next claim reuses it if no other worker has had the workspace meanwhile. Copies of workspaces
// that the fleet stores stay on the disk up to a bound.
package sandboxes

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	"github.com/toolfleet/toolfleet/internal/inplace"
	"github.com/toolfleet/toolfleet/internal/inplace/gitguard"
	"github.com/toolfleet/toolfleet/internal/mcp/toolserver"
	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/internal/system/regular"
	"github.com/toolfleet/toolfleet/internal/telemetry"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/worker/background"
	"github.com/toolfleet/toolfleet/internal/worker/checkpoint"
	"github.com/toolfleet/toolfleet/internal/workspace"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// NoDriver is the driver of a worker that runs its handlers only.
const NoDriver = "none"

// Settings are what the sandboxes of a worker have in common.
type Settings struct {
	// Driver opens sandboxes, and Caps is what it has proven.
	Driver isolation.Driver
	Caps   isolation.Caps
	// Env is the environment of sandboxes. A worker adds PATH, LANG and TERM. Without any network
	// it also adds variables that keep package managers from trying to reach it.
	Env map[string]string
	// Limits bound every command and sandbox; calls can only tighten them.
	Limits sandbox.Limits
	// Mounts are what every sandbox sees of the host in addition to its workspace.
	Mounts []isolation.Mount
	// Tools is the absolute path of the folder with the programs of the user's own tools, which
	// sandboxes can read; "" for none.
	Tools string
	// Protect are paths of every workspace that nothing changes, see [isolation.Spec]; the driver
	// must be able to. nil means [gitguard.Protected] in a directory that is used in
	// place, as they are at its first use, and none elsewhere; empty means none.
	Protect []string
	// KeepGitSettings leaves what new repositories in a directory used in place have git run; see
	// [gitguard.Aside].
	KeepGitSettings bool
	// Workspace, when set, returns the directory that the sandbox of an id uses in place; ok is
	// false for one with a directory of its own.
	Workspace func(id string) (dir string, ok bool)
	// InPlace orders the calls in such directories among the processes of this machine; nil is no
	// order.
	InPlace *inplace.Queue
	// WarmBytes is the memory for open sandboxes in which no call runs, [WarmSandbox] each, in
	// addition to one for each slot of the worker. Beyond it, the sandboxes that have been idle
	// longest are closed. 0 means [DefaultWarmBytes], negative none.
	WarmBytes int64
	// CacheBytes is how much of closed workspaces that the fleet stores stays in the data
	// directory; 0 means [DefaultCacheBytes], negative none.
	CacheBytes int64
}

// Options of a [Manager].
type Options struct {
	Settings

	Worker protocol.WorkerID
	Data   string // the data directory
	// Workspaces that the fleet stores; nil in tests without.
	Workspaces *workspace.Store
	Network    isolation.Network
	// Idle says that sandboxes of idle lanes may stay open, as far as Slots and WarmBytes allow.
	Idle    bool
	Slots   int // of the worker
	Logger  *slog.Logger
	Metrics *telemetry.WorkerMetrics // of sandboxes, and of the commands in them
}

// Manager has the open sandboxes of a worker: one for each lane that is held, and idle ones. It is
// safe for concurrent use.
type Manager struct {
	options Options
	disk    string // id of the data directory

	mu       sync.Mutex // never held while a directory is looked at
	boxes    map[key]*LaneSandbox
	settings map[protocol.Lane]*gitguard.Copies
	inPlace  map[string]*directory
}

// key names a sandbox: that of a session by its lane, and a temporary one also by those who may
// share it.
type key struct {
	lane   protocol.Lane
	sharer string
}

// maxTemporary is how many temporary sandboxes stay open in a lane, in addition to those in which
// calls run.
const maxTemporary = 4

// New prepares the data directory.
func New(o Options) (*Manager, error) {
	s := &Manager{options: o, boxes: map[key]*LaneSandbox{}, settings: map[protocol.Lane]*gitguard.Copies{}, inPlace: map[string]*directory{}}
	if err := errors.Join(os.MkdirAll(filepath.Join(o.Data, "sandboxes"), 0o700), os.MkdirAll(s.Spools(), 0o700)); err != nil {
		return nil, fmt.Errorf("data directory: %w", err)
	}
	var err error
	if s.disk, err = diskID(filepath.Join(o.Data, "id")); err != nil {
		return nil, fmt.Errorf("data directory: %w", err)
	}
	return s, nil
}

// diskID reads the id of a data directory, or gives it one. Processes that start at the same time
// on one directory agree.
func diskID(path string) (string, error) {
	if err := regular.Create(path, []byte(uuid.NewString())); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", err
	}
	content, err := regular.Read(path, 1<<10)
	return strings.TrimSpace(string(content)), err
}

// Disk is the id of the data directory.
func (s *Manager) Disk() string { return s.disk }

// Spools is the directory of output that is too much for the memory.
func (s *Manager) Spools() string { return filepath.Join(s.options.Data, "spool") }

// ID returns the sandbox id of a lane; "" for lanes of other resources.
func ID(l protocol.Lane) string {
	id, _ := strings.CutPrefix(string(l), "sandbox/")
	if id == string(l) {
		return ""
	}
	return id
}

// InPlace is the directory that a lane's sandbox uses in place; ok is false if it has one of its
// own.
func (s *Manager) InPlace(l protocol.Lane) (dir string, ok bool) {
	id := ID(l)
	if id == "" {
		return "", false
	}
	return s.options.Workspace(id)
}

// home is the directory of a lane in the data directory.
func (s *Manager) home(l protocol.Lane) string {
	return filepath.Join(s.options.Data, "sandboxes", directoryName(l))
}

// directoryName is the lane's own directory: the sandbox id if it is a plain token.
func directoryName(l protocol.Lane) string {
	if id, err := protocol.ParseSessionID(ID(l)); err == nil {
		return string(id)
	}
	return "lane." + string(wire.HashLane(l))
}

// temporaryOf begins the names of the temporary directories of a lane of another resource.
func temporaryOf(l protocol.Lane) string { return "lane." + string(wire.HashLane(l)) + "." }

// isTemporary reports whether a directory is one of [temporaryOf].
func isTemporary(name string) bool {
	parts := strings.Split(name, ".")
	return len(parts) == 3 && parts[0] == "lane" && len(parts[1]) == len(wire.HashLane(""))
}

// Open returns the sandbox of a lane that is held, by a claim with this epoch, until leaseEnd. It
// opens the sandbox if need be. On a lane of another resource the sandbox is a temporary one, of
// the calls with this sharer alone, and the caller calls [LaneSandbox.Leave] when its call has
// ended. Expected failures are a *[protocol.Error].
func (s *Manager) Open(ctx context.Context, l protocol.Lane, sharer string, epoch uint64, leaseEnd func() time.Time) (*LaneSandbox, sandbox.Sandbox, error) {
	at := key{lane: l}
	if ID(l) == "" {
		at.sharer = sharer
		s.closeUnused(l, at)
	}
	b := s.acquire(at)
	opened, err := s.openAcquired(ctx, b, epoch, leaseEnd)
	if err != nil {
		b.Leave()
		return nil, nil, err
	}
	return b, opened, nil
}

// openAcquired opens a sandbox that is acquired, if need be.
func (s *Manager) openAcquired(ctx context.Context, b *LaneSandbox, epoch uint64, leaseEnd func() time.Time) (sandbox.Sandbox, error) {
	b.leaseEnd.Store(&leaseEnd)
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.reuseIfCurrent(ctx, epoch); err != nil {
		return nil, err
	}
	if b.sandbox == nil {
		if err := s.open(ctx, b, epoch); err != nil {
			return nil, err
		}
	} else if err := b.copySettings(ctx); err != nil {
		return nil, err
	}
	return b.sandbox, nil
}

// measured is an open sandbox that is counted, with all commands in it: commands of calls, of
// background processes, of servers and of handlers.
type measured struct {
	sandbox.Sandbox

	metrics *telemetry.WorkerMetrics
}

// Exec implements [sandbox.Sandbox].
func (m measured) Exec(ctx context.Context, cmd sandbox.Cmd) (sandbox.Result, error) {
	r, err := m.Sandbox.Exec(ctx, cmd)
	if err == nil {
		m.metrics.CommandEnded(ctx, string(r.Reason))
	}
	return r, err
}

// Close implements [sandbox.Sandbox]. It is called once.
func (m measured) Close() error {
	m.metrics.Closed(context.Background()) //nolint:forbidigo // closing has no context
	return m.Sandbox.Close()
}

// open opens the sandbox of a lane, whose lock is held.
func (s *Manager) open(ctx context.Context, b *LaneSandbox, epoch uint64) (err error) {
	l := b.lane
	_, inPlace := s.InPlace(l)
	if s.options.Workspaces != nil && !inPlace && ID(l) != "" && (b.checkpoints == nil || b.checkpoints.Epoch() != epoch) {
		b.checkpoints, err = checkpoint.Open(ctx, checkpoint.Claim{
			Store: s.options.Workspaces, Lane: l, Path: s.home(l), Disk: s.Disk(), Epoch: epoch, Undos: &b.undos,
		})
		if err != nil {
			return err
		}
	}
	workspace, scratch, err := s.directories(l)
	if err != nil {
		return err
	}
	if ID(l) == "" {
		b.temporary = filepath.Dir(workspace)
	}
	protect, err := s.protected(ctx, l)
	if err != nil {
		return protocol.Errorf(protocol.CodeSandboxUnavailable, "the worker cannot open the sandbox: %v", err)
	}
	if s.options.Caps.Copies {
		protect.Copies = protect.Configs
	}
	b.protect, b.settings = protect.Protect, s.copiesOf(l, workspace, scratch, protect.Copies)
	if err := b.copySettings(ctx); err != nil {
		return err
	}
	opened, err := s.start(ctx, isolation.Spec{
		ID: cmp.Or(ID(l), string(wire.HashLane(l))), Workspace: workspace, Scratch: scratch, Env: s.env(l),
		Mounts: s.mounts(), Limits: s.options.Limits, Network: s.options.Network, Protection: protect.Protection, LeaseEnd: func() time.Time { return (*b.leaseEnd.Load())() },
	})
	if err != nil {
		err = errors.Join(err, b.close())
		return protocol.Errorf(protocol.CodeSandboxUnavailable, "the worker cannot open the sandbox: %v", err)
	}
	b.sandbox, b.epoch, b.workspace, b.scratch = opened, epoch, workspace, scratch
	return nil
}

// start opens a sandbox. If the system has no room for another one, idle ones are closed.
func (s *Manager) start(ctx context.Context, spec isolation.Spec) (sandbox.Sandbox, error) {
	begun := time.Now()
	opened, err := s.options.Driver.Open(ctx, spec)
	s.options.Metrics.Opened(ctx, time.Since(begun), err)
	if err != nil && ctx.Err() == nil && s.closeIdle(0) {
		return s.start(ctx, spec)
	}
	if err != nil {
		return nil, err
	}
	return measured{opened, s.options.Metrics}, nil
}

// directories returns the workspace and the scratch directory of a lane's sandbox. On a lane of
// another resource they are temporary, and removed with the sandbox.
func (s *Manager) directories(l protocol.Lane) (workspace, scratch string, err error) {
	home := s.home(l)
	temporary := ID(l) == ""
	if temporary {
		if home, err = os.MkdirTemp(filepath.Dir(home), temporaryOf(l)); err != nil {
			return "", "", protocol.Errorf(protocol.CodeSandboxUnavailable, "workspace directory: %v", err)
		}
	}
	scratch = filepath.Join(home, "scratch")
	if dir, inPlace := s.InPlace(l); inPlace {
		if err := os.MkdirAll(scratch, 0o700); err != nil {
			return "", "", protocol.Errorf(protocol.CodeSandboxUnavailable, "scratch directory: %v", err)
		}
		return dir, scratch, nil
	}
	workspace = filepath.Join(home, checkpoint.WorkspaceDir)
	if err := errors.Join(os.MkdirAll(workspace, 0o700), os.MkdirAll(scratch, 0o700)); err != nil {
		return "", "", protocol.Errorf(protocol.CodeSandboxUnavailable, "workspace directory: %v", err)
	}
	return workspace, scratch, nil
}

// mounts are what every sandbox sees outside its workspace, such as the folder of tools.
func (s *Manager) mounts() []isolation.Mount {
	if s.options.Tools == "" {
		return s.options.Mounts
	}
	return append(slices.Clone(s.options.Mounts), isolation.Mount{Host: s.options.Tools, Guest: s.ToolsPath()})
}

// guestTools is where sandboxes with a root of their own see the folder of tools.
const guestTools = "/tools"

// ToolsPath is where commands find the folder of tools; "" without one. Drivers with a root of
// their own show it under another name, because the sandbox's /tmp hides paths below the host's
// /tmp.
func (s *Manager) ToolsPath() string {
	if s.options.Tools != "" && s.options.Caps.Level >= isolation.LevelFull {
		return guestTools
	}
	return s.options.Tools
}

// Owner identifies this worker as the holder of a lane.
func (s *Manager) Owner(l protocol.Lane) string {
	return fmt.Sprintf("%s/%s", s.options.Worker, wire.HashLane(l))
}

// env is the environment of a lane's sandbox. Where commands see the host as it is they may start a
// coordinator in the directory that they have to themselves.
func (s *Manager) env(l protocol.Lane) map[string]string {
	if _, is := s.InPlace(l); !is || s.options.InPlace == nil || s.options.Caps.Level > isolation.LevelNone {
		return s.options.Env
	}
	env := maps.Clone(s.options.Env)
	env[inplace.Env] = s.options.InPlace.EnvOf(s.Owner(l))
	return env
}

// Lane returns the sandbox of a session's lane, open or closed; nil if it has none.
func (s *Manager) Lane(l protocol.Lane) *LaneSandbox {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.boxes[key{lane: l}]
}

// all returns the sandboxes of a lane, also the temporary ones.
func (s *Manager) all(l protocol.Lane) (all []*LaneSandbox) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if ID(l) != "" {
		if b := s.boxes[key{lane: l}]; b != nil {
			all = append(all, b)
		}
		return all
	}
	for at, b := range s.boxes {
		if at.lane == l {
			all = append(all, b)
		}
	}
	return all
}

// Busy reports whether background processes or servers live in a lane.
func (s *Manager) Busy(l protocol.Lane) bool {
	return slices.ContainsFunc(s.all(l), (*LaneSandbox).Busy)
}

// Kill closes the sandboxes of a lane at once, with everything that runs in them.
func (s *Manager) Kill(l protocol.Lane) error {
	var errs []error
	for _, b := range s.all(l) {
		errs = append(errs, b.Kill())
	}
	return errors.Join(errs...)
}

// acquire returns a sandbox of a lane that is held: it is not closed before the lane is released,
// and a temporary one not before its calls have ended.
func (s *Manager) acquire(at key) *LaneSandbox {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := at.lane
	b := s.boxes[at]
	if b == nil {
		b = &LaneSandbox{
			set: s, key: at, Digests: NewDigests(filepath.Join(s.home(l), checkpoint.DigestsFile)),
			Processes: background.New(filepath.Join(s.home(l), checkpoint.ProcessesFile)), Servers: toolserver.New(),
		}
		s.boxes[at] = b
	}
	b.calls++
	b.held, b.idle = true, time.Time{}
	return b
}

// closeUnused closes temporary sandboxes of a lane, if there are too many in addition to the one of
// at. It keeps those in which a call runs, and those that were used last.
func (s *Manager) closeUnused(l protocol.Lane, at key) {
	all := s.all(l)
	s.mu.Lock()
	unused := slices.DeleteFunc(all, func(b *LaneSandbox) bool { return b.calls > 0 || b.key == at })
	slices.SortFunc(unused, func(a, b *LaneSandbox) int { return b.left.Compare(a.left) })
	unused = unused[min(len(unused), maxTemporary-1):]
	for _, b := range unused {
		delete(s.boxes, b.key)
	}
	s.mu.Unlock()
	for _, b := range unused {
		if err := b.Kill(); err != nil {
			s.options.Logger.Warn("unused sandbox cannot be closed", slog.String("lane", string(l)), slog.Any("error", err))
		}
	}
}

// Leave notes that a call in the sandbox has ended.
func (b *LaneSandbox) Leave() {
	b.set.mu.Lock()
	defer b.set.mu.Unlock()
	b.calls--
	b.left = time.Now()
}

// LastAt names the data directory that had a lane's workspace last; "" if the sandbox is open here,
// or no directory had it.
func (s *Manager) LastAt(ctx context.Context, l protocol.Lane) string {
	if ID(l) == "" || s.Lane(l) != nil {
		return ""
	}
	disk, err := s.options.Workspaces.LastDisk(ctx, wire.HashLane(l))
	if err != nil { // the claim reports it
		return ""
	}
	return disk
}

// close closes the sandboxes of a lane.
func (s *Manager) close(l protocol.Lane) error {
	var errs []error
	for _, b := range s.all(l) {
		errs = append(errs, s.closeOne(b))
	}
	return errors.Join(errs...)
}

func (s *Manager) closeOne(b *LaneSandbox) error {
	l := b.lane
	s.mu.Lock()
	if s.boxes[b.key] == b {
		delete(s.boxes, b.key)
	}
	s.mu.Unlock()
	acts := b.Busy()
	b.mu.Lock()
	err := errors.Join(b.close(), b.checkpoints.Close())
	b.mu.Unlock()
	if acts { // a server may have written until now; each process was looked after when it ended
		s.SetAsideLater(context.Background(), l) //nolint:forbidigo // it is short, and must be done
	}
	return err
}

// closeParallel is how many sandboxes are closed at once when the worker stops.
const closeParallel = 8

// CloseAll closes all sandboxes, and ends the use of directories in place.
func (s *Manager) CloseAll() {
	s.mu.Lock()
	all := slices.Collect(maps.Values(s.boxes))
	s.mu.Unlock()
	var group errgroup.Group
	group.SetLimit(closeParallel)
	for _, b := range all {
		group.Go(func() error { return s.closeOne(b) })
	}
	if group.Wait() == nil { // else the process ends, and its children with it: the next one looks after them
		s.closeAside()
	}
}
