// Package checkpoint stores what the calls of a sandbox change with the fleet, and restores it.
//
//	Open ──► claim the journal, restore its last checkpoint into the directory
//	call ends ──► Commit ──► changed files ──► journal of the workspace ──► result
//	                 │ fails ──► Undo: the directory is restored, the call fails
//	lane held again ──► Reclaim: no other worker has written the journal, nothing is restored
//
// The journal of package workspace is authoritative; the directory is a copy of its last state,
// with what running calls change. Calls that end at the same time share a commit. A checkpoint has
// the results of its calls until they are stored: a call whose worker was lost in between is not
// run again, but answered with that result. Commits happen within the [Lease] of the lane only.
package checkpoint

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
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

	"github.com/toolfleet/toolfleet/internal/judge"
	"github.com/toolfleet/toolfleet/internal/sandbox/snapshot"
	"github.com/toolfleet/toolfleet/internal/system/regular"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/workspace"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// What a sandbox's directory contains. All but the index is stored in checkpoints.
const (
	WorkspaceDir  = workspace.Dir
	ShellFile     = "shell"          // state of the shell
	DigestsFile   = "seen.jsonl"     // digests of the files that sessions have read or written
	ProcessesFile = "processes.json" // background processes that have ended
	MergedFile    = "merged.json"    // the checkpoint of each fork that was merged last
	indexFile     = "index.json"     // digests of the workspace's files, so that only changes are read
)

// state are the files next to the workspace that belong to it.
func state() []string { return []string{ShellFile, DigestsFile, ProcessesFile, MergedFile} }

// outside reports whether a path of a sandbox's directory is in no checkpoint.
func outside(name string, _ bool) bool {
	return !strings.Contains(name, "/") && name != WorkspaceDir && !slices.Contains(state(), name)
}

// Directory is the directory of a held lane's sandbox, whose states are stored with the fleet. A
// nil Directory belongs to a sandbox without checkpoints. It is safe for concurrent use.
type Directory struct {
	store *workspace.Store
	path  string
	undos *atomic.Int64 // how often changes of this lane's calls were undone

	epoch uint64

	contents

	mu      sync.Mutex
	queue   []*ended
	busy    bool
	settled []protocol.CallID // whose results were stored since the last commit
}

// contents is what is known about the files of a directory. The user of the fields holds saving.
type contents struct {
	saving  sync.Mutex
	claimed *workspace.Workspace
	index   snapshot.Index
	pending *snapshot.Delta // changes that are known without a scan, until they are committed
	noted   bool            // the index is on the disk
}

// Claim is what a directory is claimed with.
type Claim struct {
	Store *workspace.Store
	Lane  protocol.Lane
	Path  string // of the directory
	Disk  string // id of the data directory that has it
	Epoch uint64 // of the lane's claim
	// Undos counts how often changes of this lane's calls were undone; it outlives the claim.
	Undos *atomic.Int64
}

// Open claims the workspace of a lane, and restores its last checkpoint into the directory. The
// error is a *[protocol.Error].
func Open(ctx context.Context, c Claim) (*Directory, error) {
	d, err := open(ctx, c)
	if err != nil {
		return nil, RestoreError(c.Lane, err)
	}
	return d, nil
}

func open(ctx context.Context, c Claim) (*Directory, error) {
	claimed, err := c.Store.Take(ctx, c.Lane, c.Disk, c.Epoch)
	if err != nil {
		return nil, err
	}
	d := &Directory{store: c.Store, path: c.Path, epoch: c.Epoch, undos: c.Undos, contents: contents{claimed: claimed, index: snapshot.Index{}}}
	if err := os.MkdirAll(d.path, 0o700); err != nil {
		return nil, err
	}
	if known := readIndex(filepath.Join(d.path, indexFile)); known.Files != nil {
		d.index = known.Files
	}
	if err := d.restore(ctx); err != nil {
		return nil, err
	}
	if err := d.noteUse(); err != nil && !isFull(err) { // what needs room on a full disk says so
		return nil, err
	}
	return d, nil
}

// isFull reports that a disk has no room.
func isFull(err error) bool { return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) }

// RestoreError says why a workspace cannot be restored: a *[protocol.Error].
func RestoreError(l protocol.Lane, err error) error {
	if answer, ok := errors.AsType[*protocol.Error](err); ok {
		return answer
	}
	if isFull(err) {
		return protocol.Errorf(protocol.CodeWorkspaceUnavailable, "the disk of this worker has no room for the workspace of %s: %v", l, err)
	}
	return protocol.Errorf(protocol.CodeWorkspaceUnavailable, "the checkpoint of %s cannot be restored: %v", l, err)
}

// Owner is the owner of the workspace.
func (d *Directory) Owner() judge.Owner { return d.claimed.Owner() }

// Epoch is the epoch of the claim under which the directory is used. It must not overlap with
// [Directory.Reclaim].
func (d *Directory) Epoch() uint64 { return d.epoch }

// restore makes the directory what it was after the last commit.
func (d *Directory) restore(ctx context.Context) (err error) {
	root, err := os.OpenRoot(d.path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	_, err = snapshot.Restore(ctx, root, d.claimed.Tree(), d.index, d.store, outside)
	return err
}

// Restore makes the directory what it was after an earlier call. The next commit stores that.
func (d *Directory) Restore(ctx context.Context, lane wire.LaneHash, call protocol.CallID) (stats snapshot.RestoreStats, err error) {
	d.saving.Lock()
	defer d.saving.Unlock()
	tree, err := d.store.At(ctx, lane, call)
	if err != nil {
		return stats, err
	}
	for _, name := range []string{DigestsFile, ProcessesFile} { // they describe the present
		delete(tree, name)
		if node, is := d.claimed.Tree()[name]; is {
			tree[name] = node
		}
	}
	skip := func(name string, isDir bool) bool {
		return outside(name, isDir) || name == DigestsFile || name == ProcessesFile
	}
	root, err := os.OpenRoot(d.path)
	if err != nil {
		return stats, err
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	d.pending = d.claimed.Tree().To(tree)
	return snapshot.Restore(ctx, root, tree, d.index, d.store, skip)
}

// Filled has the next commit store an upload with which an empty workspace was filled, without
// reading it.
func (d *Directory) Filled(files snapshot.Tree, index snapshot.Index) {
	if d == nil {
		return
	}
	d.saving.Lock()
	defer d.saving.Unlock()
	next := maps.Clone(d.claimed.Tree())
	maps.DeleteFunc(next, func(name string, _ snapshot.Node) bool { return strings.HasPrefix(name, WorkspaceDir+"/") })
	next[WorkspaceDir] = snapshot.Node{Type: protocol.TypeDir, Mode: 0o700}
	for name, node := range files {
		next[path.Join(WorkspaceDir, name)] = node
	}
	for name, known := range index {
		d.index[path.Join(WorkspaceDir, name)] = known
	}
	d.pending = d.claimed.Tree().To(next)
	d.pending.Stored = files.Bodies()
}

// Files stores the present files of the workspace, also changes that no call is known to have made.
func (d *Directory) Files(ctx context.Context) (_ snapshot.Tree, err error) {
	d.saving.Lock()
	defer d.saving.Unlock()
	root, err := os.OpenRoot(d.path)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	tree, err := Save(ctx, root, d.claimed.Tree(), d.index, d.store, outside)
	return workspace.FilesOf(tree), err
}

// Save stores the files of a directory, and returns them.
func Save(ctx context.Context, root *os.Root, last snapshot.Tree, known snapshot.Index, store *workspace.Store, skip func(string, bool) bool) (snapshot.Tree, error) {
	delta, err := snapshot.Save(ctx, root, last, known, store, &snapshot.Options{Skip: skip})
	if err == nil {
		err = delta.Outline(ctx, store)
	}
	if err != nil {
		return nil, err
	}
	return last.With(delta), nil
}

// Upload stores the files of a directory without checkpoints, and returns them. What the upload of
// that name has is not stored again.
func Upload(ctx context.Context, store *workspace.Store, dir, name string) (_ snapshot.Tree, err error) {
	last, err := store.Last(ctx, name)
	if err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, protocol.Errorf(protocol.CodeWorkspaceUnavailable, "open the workspace: %v", err)
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	return Save(ctx, root, last, snapshot.Index{}, store, nil)
}

// Present stores the files of a directory without checkpoints, which a lane uses, and returns them.
// They stay until another state of it is stored, so that this stores only what changed.
func Present(ctx context.Context, store *workspace.Store, dir, disk string, of wire.LaneHash, owned workspace.Owned) (snapshot.Tree, error) {
	name := "fork" + string(of)
	files, err := Upload(ctx, store, dir, name)
	if err == nil {
		_, err = store.Bring(ctx, name, disk, files, owned)
	}
	return files, err
}

// ForkDirectory begins the workspace of a lane with the files of a directory without checkpoints,
// which another lane uses, and returns them. The error wraps [workspace.ErrExists] if the lane has
// a workspace.
func ForkDirectory(
	ctx context.Context, store *workspace.Store, dir, disk string, of wire.LaneHash, to protocol.Lane, call protocol.CallID, owned workspace.Owned,
) (snapshot.Tree, error) {
	files, err := Present(ctx, store, dir, disk, of, owned)
	if err != nil {
		return nil, err
	}
	return files, store.ForkFiles(ctx, of, files, to, call)
}

// index is the content of the index file.
type index struct {
	Files snapshot.Index `json:"files"`
	Bytes int64          `json:"bytes"` // of all files
}

// readIndex reads an index; files that are not in it are read again.
func readIndex(path string) (known index) {
	body, err := os.ReadFile(path)
	if err != nil || json.Unmarshal(body, &known) != nil {
		return index{}
	}
	return known
}

// Known returns when a directory was opened or closed last, and the size that its files had then.
// ok is false for one without checkpoints, or of an earlier version that was never closed.
func Known(path string) (at time.Time, bytes int64, ok bool, err error) {
	path = filepath.Join(path, indexFile)
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return at, 0, false, nil
	}
	if err != nil {
		return at, 0, false, err
	}
	return info.ModTime(), readIndex(path).Bytes, true, nil
}

// Reclaim claims the workspace under a later epoch. It reports false if another worker may have
// changed it meanwhile.
func (d *Directory) Reclaim(ctx context.Context, epoch uint64) bool {
	d.saving.Lock()
	defer d.saving.Unlock()
	d.mu.Lock()
	settled := d.settled
	d.settled = nil
	d.mu.Unlock()
	for _, call := range settled {
		d.claimed.Settled(call)
	}
	if d.claimed.Again(ctx, epoch) != nil { // it is opened again, which reports the error
		return false
	}
	d.epoch = epoch
	return true
}

// noteUse has [Known] find the directory also if this worker is killed: without an index it writes
// one that has the size alone.
func (d *Directory) noteUse() error {
	path := filepath.Join(d.path, indexFile)
	err := os.Chtimes(path, time.Time{}, time.Now())
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	body, err := json.Marshal(index{Bytes: d.size()})
	if err != nil {
		return err
	}
	return regular.Replace(path, body)
}

// size is the size of all files as of the last commit.
func (d *Directory) size() (n int64) {
	for _, node := range d.claimed.Tree() {
		n += node.Size
	}
	return n
}

// Close writes the index, for the next holder of the lane on this disk.
func (d *Directory) Close() error {
	if d == nil {
		return nil
	}
	d.saving.Lock()
	defer d.saving.Unlock()
	path := filepath.Join(d.path, indexFile)
	if d.noted {
		return os.Chtimes(path, time.Time{}, time.Now()) // it was used
	}
	body, err := json.Marshal(index{Files: d.index, Bytes: d.size()})
	if err != nil {
		return err
	}
	err = regular.Replace(path, body)
	d.noted = err == nil
	return err
}
