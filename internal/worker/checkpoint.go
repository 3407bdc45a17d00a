package worker

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/internal/sandbox/snapshot"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/workspace"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// Durability says what of a workspace outlives its worker.
type Durability string

// The kinds of durability.
const (
	// DurabilityCheckpoint keeps workspaces with the fleet: the result of a call that may have
	// changed something is stored after what it changed. Any worker goes on.
	DurabilityCheckpoint Durability = "checkpoint"
	// DurabilityLocal keeps workspaces in the data directory, for the workers that share it. Calls
	// of a session wait for one of those.
	DurabilityLocal Durability = "local"
	// DurabilityNone keeps workspaces in the data directory, and the fleet does not know where: a
	// worker with another one begins an empty one.
	DurabilityNone Durability = "none"
)

// What of a sandbox's directory is in its checkpoints, relative to it.
const (
	workspaceDir  = workspace.Dir
	shellName     = "shell"
	seenName      = "seen.jsonl"
	processesName = "processes.json"
	indexName     = "index.json"
)

// state are the files beside the workspace that belong to it.
func state() []string { return []string{shellName, seenName, processesName} }

// outside reports whether a path of a sandbox's directory is in no checkpoint.
func outside(name string, _ bool) bool {
	return !strings.Contains(name, "/") && name != workspaceDir && !slices.Contains(state(), name)
}

// checkpoints are those of a box, while its lane is held under one claim. It is safe for concurrent
// use.
type checkpoints struct {
	store *workspace.Store
	home  string
	epoch uint64
	undos *atomic.Int64 // of the box

	saving sync.Mutex // held by who uses what follows
	taken  *workspace.Workspace
	index  snapshot.Index
	back   *snapshot.Delta // what leads back to an earlier checkpoint, until that is committed
	noted  bool            // the index is on the disk

	mu      sync.Mutex
	queue   []*waiting
	busy    bool
	settled []protocol.CallID // whose results are stored since the last commit
}

// waiting is a call that ended and waits for its commit.
type waiting struct {
	only   []string // what it may have changed; nil is everything
	undos  int64    // of the box, when it began
	result *protocol.Result
	done   chan error
}

// checkpoints reports whether workspaces are kept with the fleet.
func (s *sandboxes) checkpoints() bool { return s.options.Durability == DurabilityCheckpoint }

// take takes the workspace of a lane and makes its directory what it has to be.
func (s *sandboxes) take(ctx context.Context, l protocol.Lane, epoch uint64, undos *atomic.Int64) (*checkpoints, error) {
	taken, err := s.workspaces.Take(ctx, wire.HashLane(l), s.dataID, epoch)
	if err != nil {
		return nil, err
	}
	c := &checkpoints{store: s.workspaces, home: s.home(l), epoch: epoch, undos: undos, taken: taken, index: snapshot.Index{}}
	if err := os.MkdirAll(c.home, 0o700); err != nil {
		return nil, err
	}
	if len(taken.Tree()) == 0 { // maybe of a time in which it was kept here only
		place, err := s.placeOf(ctx, string(wire.HashLane(l)))
		switch {
		case err != nil:
			return nil, err
		case place == s.dataID:
			return c, nil
		case place != "":
			return nil, protocol.Errorf(protocol.CodeWorkspaceUnavailable,
				"the workspace of %s is in another data directory (%s), of a worker with --durability local", l, place)
		}
	}
	if left := readLeft(filepath.Join(c.home, indexName)); left.Files != nil {
		c.index = left.Files
	}
	if err := c.restore(ctx); err != nil {
		return nil, err
	}
	return c, nil
}

// untaken is the error of a workspace that cannot be taken.
func untaken(l protocol.Lane, err error) error {
	if fault, ok := errors.AsType[*protocol.Error](err); ok {
		return fault
	}
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return protocol.Errorf(protocol.CodeWorkspaceUnavailable, "the disk of this worker has no room for the workspace of %s: %v", l, err)
	}
	return protocol.Errorf(protocol.CodeWorkspaceUnavailable, "the checkpoint of %s cannot be restored: %v", l, err)
}

// restore makes the directory what it was after the last commit.
func (c *checkpoints) restore(ctx context.Context) (err error) {
	root, err := os.OpenRoot(c.home)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	_, err = snapshot.Restore(ctx, root, c.taken.Tree(), c.index, c.store, outside)
	return err
}

// goBack makes the directory what it was after an earlier call, for the next commit to keep.
func (c *checkpoints) goBack(ctx context.Context, lane wire.LaneHash, call protocol.CallID) (stats snapshot.RestoreStats, err error) {
	c.saving.Lock()
	defer c.saving.Unlock()
	tree, err := c.store.At(ctx, lane, call)
	if err != nil {
		return stats, err
	}
	for _, name := range []string{seenName, processesName} { // they are about now
		delete(tree, name)
		if node, is := c.taken.Tree()[name]; is {
			tree[name] = node
		}
	}
	skip := func(name string, isDir bool) bool {
		return outside(name, isDir) || name == seenName || name == processesName
	}
	root, err := os.OpenRoot(c.home)
	if err != nil {
		return stats, err
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	c.back = c.taken.Tree().To(tree)
	return snapshot.Restore(ctx, root, tree, c.index, c.store, skip)
}

// begin has the next commit keep an upload with which an empty workspace was filled, without
// reading it. It does nothing without checkpoints.
func (c *checkpoints) begin(files snapshot.Tree, index snapshot.Index) {
	if c == nil {
		return
	}
	c.saving.Lock()
	defer c.saving.Unlock()
	next := maps.Clone(c.taken.Tree())
	maps.DeleteFunc(next, func(name string, _ snapshot.Node) bool { return strings.HasPrefix(name, workspaceDir+"/") })
	next[workspaceDir] = snapshot.Node{Type: sandbox.TypeDir, Mode: 0o700}
	for name, node := range files {
		next[path.Join(workspaceDir, name)] = node
	}
	for name, known := range index {
		c.index[path.Join(workspaceDir, name)] = known
	}
	c.back = c.taken.Tree().To(next)
	c.back.Stored = files.Bodies()
}

// files stores what the workspace has now, with what no call is known to have changed.
func (c *checkpoints) files(ctx context.Context) (_ snapshot.Tree, err error) {
	c.saving.Lock()
	defer c.saving.Unlock()
	root, err := os.OpenRoot(c.home)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	tree, err := saved(ctx, root, c.taken.Tree(), c.index, c.store, outside)
	return workspace.FilesOf(tree), err
}

// leftBehind is what is known of a workspace that stays on this disk.
type leftBehind struct {
	Files snapshot.Index `json:"files"`
	Bytes int64          `json:"bytes"` // of all files
}

// readLeft reads it; what is not known of files has them read.
func readLeft(path string) (left leftBehind) {
	body, err := os.ReadFile(path)
	if err != nil || json.Unmarshal(body, &left) != nil {
		return leftBehind{}
	}
	return left
}

// again takes the workspace under a later claim. It reports false when it may not be what it was.
func (c *checkpoints) again(ctx context.Context, epoch uint64) bool {
	c.saving.Lock()
	defer c.saving.Unlock()
	c.mu.Lock()
	settled := c.settled
	c.settled = nil
	c.mu.Unlock()
	for _, call := range settled {
		c.taken.Settled(call)
	}
	if c.taken.Again(ctx, epoch) != nil { // it is taken anew, and what is wrong is told then
		return false
	}
	c.epoch = epoch
	return true
}

// close writes down what is known of the files, for a holder that comes back here. It does nothing
// without checkpoints.
func (c *checkpoints) close() error {
	if c == nil {
		return nil
	}
	c.saving.Lock()
	defer c.saving.Unlock()
	path := filepath.Join(c.home, indexName)
	if c.noted {
		return os.Chtimes(path, time.Time{}, time.Now()) // it was used
	}
	left := leftBehind{Files: c.index}
	for _, node := range c.taken.Tree() {
		left.Bytes += node.Size
	}
	body, err := json.Marshal(left)
	if err != nil {
		return err
	}
	err = writeAside(path, body)
	c.noted = err == nil
	return err
}

// result is the stored result of a call that had its effects before its worker was lost; nil when
// it is to run.
func (c *checkpoints) result(ctx context.Context, call protocol.CallID) (*protocol.Result, error) {
	c.saving.Lock()
	defer c.saving.Unlock()
	return c.taken.Result(ctx, call)
}

// errUndone says that what a call changed was taken back together with what another could not keep.
var errUndone = errors.New("what it changed was taken back")

// commit stores what a call has changed that began after so many undos, together with other calls
// that end meanwhile.
func (c *checkpoints) commit(ctx context.Context, only []string, undos int64, r *protocol.Result) error {
	w := &waiting{only: only, undos: undos, result: r, done: make(chan error, 1)}
	c.mu.Lock()
	c.queue = append(c.queue, w)
	leads := !c.busy
	c.busy = true
	c.mu.Unlock()
	if leads {
		c.lead(ctx)
	}
	return <-w.done
}

// lead commits until nobody waits.
func (c *checkpoints) lead(ctx context.Context) {
	for {
		c.mu.Lock()
		calls, settled := c.queue, c.settled
		c.queue, c.settled = nil, nil
		c.busy = len(calls) > 0
		c.mu.Unlock()
		if len(calls) == 0 {
			return
		}
		c.saving.Lock()
		calls = slices.DeleteFunc(calls, func(w *waiting) bool {
			undone := w.undos != c.undos.Load()
			if undone {
				w.done <- errUndone
			}
			return undone
		})
		err := c.save(ctx, calls, settled)
		c.saving.Unlock()
		for _, w := range calls {
			w.done <- err
		}
	}
}

// save stores what calls have changed. The lock saving is held.
func (c *checkpoints) save(ctx context.Context, calls []*waiting, settled []protocol.CallID) (err error) {
	for _, call := range settled {
		c.taken.Settled(call)
	}
	root, err := os.OpenRoot(c.home)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	options := &snapshot.SaveOptions{Skip: outside, Only: state()}
	results := make([]*protocol.Result, 0, len(calls))
	for _, w := range calls {
		results = append(results, w.result)
		if w.only == nil || options.Only == nil {
			options.Only = nil
			continue
		}
		options.Only = append(options.Only, w.only...)
	}
	c.noted = false
	delta := c.back
	if c.back = nil; delta == nil {
		delta, err = snapshot.Save(ctx, root, c.taken.Tree(), c.index, c.store, options)
	}
	if err != nil || delta.Empty() { // what changed nothing may run again
		return err
	}
	return c.taken.Commit(ctx, delta, results...)
}

// changes are the paths that a call may have changed, relative to the sandbox's directory: nil is
// everything. ok is false when it changes nothing.
func changes(call *protocol.Call) (only []string, ok bool) {
	lane := protocol.ResourceKey(call.Lane())
	for _, use := range call.Resources {
		if use.Access != protocol.Exclusive {
			continue
		}
		below, is := strings.CutPrefix(string(use.Key), string(lane)+"/")
		if !is {
			return nil, true
		}
		only, ok = append(only, path.Join(workspaceDir, below)), true
	}
	return only, ok
}

// committed is the result of a call whose effects are in the workspace already, because the worker
// that ran it was lost before it stored the result; nil when the call is to run.
func (w *Worker) committed(ctx context.Context, call *protocol.Call) (*protocol.Result, error) {
	c := w.sandboxes.checkpointsOf(call.Lane())
	if c == nil {
		return nil, nil //nolint:nilnil // it is to run
	}
	return c.result(ctx, call.ID)
}

// CommittedResult implements [lane.Host]. It opens the sandbox first: that of a call that does not
// run again, or that a handler executes, may not be open yet.
func (w *Worker) CommittedResult(ctx context.Context, run *lane.Run) *protocol.Result {
	if w.options.Caps.Driver == NoSandboxes || sandboxOf(run.Call.Lane()) == "" || !w.sandboxes.checkpoints() {
		return nil
	}
	_, err := w.sandboxes.get(ctx, run.Call.Lane(), run.Fence, run.LeaseEnd)
	var done *protocol.Result
	if err == nil {
		done, err = w.committed(ctx, run.Call)
	}
	if err != nil {
		w.options.Logger.WarnContext(ctx, "checkpoint of a call cannot be read", slog.String("call_id", string(run.Call.ID)), slog.Any("error", err))
	}
	return done
}

// commit has what a call changed kept with the fleet before its result is stored.
func (w *Worker) commit(run *lane.Run, t *tenure, r *protocol.Result) {
	c := w.sandboxes.checkpointsOf(run.Call.Lane())
	only, mutates := changes(run.Call)
	if !mutates || r.Status == protocol.StatusRejected {
		return
	}
	if c == nil {
		if t != nil && t.undos != w.sandboxes.undos(run.Call.Lane()) {
			w.abandon(run)
		}
		return
	}
	if r.WorkerID == "" {
		r.WorkerID, r.Attempt = w.options.ID, run.Attempt
	}
	t.look()
	lost := r.Error != nil && r.Error.Code == protocol.CodeSandboxLost && run.Call.Delivery != protocol.AtMostOnce
	if t.ctx.Err() != nil || lost { // it was killed, and runs again in the workspace as it was
		w.abandon(run)
		return
	}
	err := c.commit(t.ctx, only, t.undos, r)
	switch {
	case err == nil:
	case errors.Is(err, workspace.ErrLost) || errors.Is(err, errUndone) || t.ctx.Err() != nil:
		w.abandon(run)
	default:
		*r = w.failed(t.ctx, run.Call, nil, w.undo(t.ctx, run.Call.Lane(), c, err))
	}
}

// abandon gives up a call whose changes were not kept, and with it the sandbox in which they are.
func (w *Worker) abandon(run *lane.Run) {
	run.Abandon()
	if err := w.sandboxes.kill(run.Call.Lane()); err != nil { // what is left dies with the release
		w.options.Logger.Warn("sandbox of a lane that is given up cannot be closed", slog.String("lane", string(run.Call.Lane())), slog.Any("error", err))
	}
}

// undo takes back what a call changed that cannot be kept, and says so.
func (w *Worker) undo(ctx context.Context, l protocol.Lane, c *checkpoints, cause error) error {
	err := w.sandboxes.kill(l)
	c.saving.Lock()
	c.undos.Add(1) // for calls that end beside it
	if err == nil {
		err = c.restore(ctx)
	}
	c.saving.Unlock()
	if err != nil {
		w.sandboxes.retake(l)
		return protocol.Errorf(protocol.CodeWorkspaceUnavailable,
			"the call ran, but what it changed could not be kept with the fleet, and is taken back before the next one: %v", errors.Join(cause, err))
	}
	return protocol.Errorf(protocol.CodeWorkspaceUnavailable, "the call ran, but what it changed could not be kept with the fleet, and was taken back: %v", cause)
}

// tenure is the time in which a run surely has its lane.
type tenure struct {
	ctx    context.Context //nolint:containedctx // ends with it; that a call is cancelled or out of time does not end it
	cancel context.CancelCauseFunc
	runs   context.Context //nolint:containedctx // of the run
	run    *lane.Run
	undos  int64 // of the box, when it began

	mu    sync.Mutex
	timer *time.Timer
}

// watchLease begins a tenure, which ends with its lane or when its lease has passed, also when that
// is renewed later.
func watchLease(ctx context.Context, run *lane.Run) (t *tenure, stop func()) {
	t = &tenure{run: run, runs: ctx}
	t.ctx, t.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	lost := context.AfterFunc(ctx, t.look)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.timer = time.AfterFunc(time.Until(run.LeaseEnd()), t.look)
	return t, func() {
		lost()
		t.mu.Lock()
		defer t.mu.Unlock()
		t.timer.Stop()
		t.cancel(nil)
	}
}

// look ends the tenure when its lane is given up, or the lease has passed. What was killed for
// that has to look first, and not count on having been told.
func (t *tenure) look() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if cause := context.Cause(t.runs); errors.Is(cause, lane.ErrLost) || errors.Is(cause, lane.ErrDraining) {
		t.cancel(cause)
		return
	}
	left := time.Until(t.run.LeaseEnd())
	if left <= 0 {
		t.cancel(lane.ErrLost)
	} else if t.ctx.Err() == nil {
		t.timer.Reset(left)
	}
}

// checkpointsOf are those of the sandbox of a lane; nil when it has none.
func (s *sandboxes) checkpointsOf(l protocol.Lane) *checkpoints {
	b := s.opened(l)
	if b == nil {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.checkpoints
}

// undos is how often what calls of a lane had changed was taken back.
func (s *sandboxes) undos(l protocol.Lane) int64 {
	if b := s.opened(l); b != nil {
		return b.undos.Load()
	}
	return 0
}

// settledCall tells the checkpoints of a lane that the result of a call is stored.
func (s *sandboxes) settledCall(call *protocol.Call) {
	if c := s.checkpointsOf(call.Lane()); c != nil {
		c.mu.Lock()
		c.settled = append(c.settled, call.ID)
		c.mu.Unlock()
	}
}
