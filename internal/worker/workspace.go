package worker

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/sandbox/removal"
	"github.com/toolfleet/toolfleet/internal/sandbox/snapshot"
	"github.com/toolfleet/toolfleet/internal/wire"
	fleetspace "github.com/toolfleet/toolfleet/internal/workspace"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

func checkImport(_ *Worker, p protocol.WorkspaceImport) *protocol.Error {
	return checkUpload(p, p.Upload)
}

func checkExport(_ *Worker, p protocol.WorkspaceExport) *protocol.Error {
	return checkUpload(p, p.Upload)
}

// checkUpload refuses an invalid name of an upload.
func checkUpload(p protocol.Payload, name string) *protocol.Error {
	if !fleetspace.IsUpload(name) {
		return protocol.Errorf(protocol.CodeInvalidPayload, "%s: upload %.100q: must be 1 to 64 lower case letters and digits", wire.KindOf(p), name)
	}
	return nil
}

// workspaceImport fills an empty workspace with an upload, all or nothing. A workspace with
// anything in it was imported before, or used: it stays as it is.
func workspaceImport(ctx context.Context, a *Attempt, p protocol.WorkspaceImport) (_ protocol.Value, err error) {
	w, l := a.worker, a.lane()
	used, err := w.sandboxes.used(w.sandboxes.workspace(l))
	if err != nil {
		return nil, protocol.Errorf(protocol.CodeWorkspaceUnavailable, "open the workspace: %v", err)
	}
	if used {
		return protocol.WorkspaceImportResult{}, nil
	}
	tree, at, err := w.receive(ctx, p)
	if err != nil {
		return nil, err
	}
	temp, err := w.sandboxes.staging(l)
	if err != nil {
		return nil, fmt.Errorf("import workspace: %w", err)
	}
	defer func() {
		if err != nil { // after success it is the workspace
			err = errors.Join(err, removal.Tree(temp)) // an upload may have made that hard
		}
	}()
	index, err := w.fill(ctx, temp, tree)
	if err != nil {
		return nil, untaken(l, err)
	}
	if err := w.sandboxes.replace(ctx, l, temp); err != nil {
		return nil, fmt.Errorf("import workspace: %w", err)
	}
	w.sandboxes.checkpointsOf(l).begin(tree, index)
	files, size := sizeOf(tree)
	return protocol.WorkspaceImportResult{Files: files, Bytes: size, Checkpoint: at.Checkpoint}, nil
}

// receive keeps an upload in its journal, and returns what it has.
func (w *Worker) receive(ctx context.Context, p protocol.WorkspaceImport) (tree snapshot.Tree, at fleetspace.Ref, err error) {
	blob, err := natsio.GetObject(ctx, w.js, wire.BlobsBucket(w.options.Fleet), p.Blob)
	if errors.Is(err, jetstream.ErrObjectNotFound) {
		return nil, at, protocol.Errorf(protocol.CodeNotFound, "upload %q is not in the fleet's object store", p.Blob)
	}
	if err != nil {
		return nil, at, fmt.Errorf("get upload %s: %w", p.Blob, err)
	}
	defer func() { err = errors.Join(err, blob.Close()) }()
	upload, err := fleetspace.ReadUpload(io.LimitReader(blob, maxUpload))
	if err != nil {
		return nil, at, protocol.Errorf(protocol.CodeWorkspaceUnavailable, "upload %q cannot be read: %v", p.Blob, err)
	}
	tree, at, err = w.sandboxes.workspaces.Receive(ctx, p.Upload, w.sandboxes.dataID, upload)
	switch {
	case errors.Is(err, fleetspace.ErrLost):
		return nil, at, protocol.Errorf(protocol.CodeNotFound, "the directory was uploaded once more meanwhile: send it again: %v", err)
	case errors.Is(err, fleetspace.ErrInvalid):
		return nil, at, protocol.Errorf(protocol.CodeWorkspaceUnavailable, "%v", err)
	}
	return tree, at, err
}

// maxUpload bounds what says what changed in an upload.
const maxUpload = 1 << 30

// fill makes an empty directory what a tree says.
func (w *Worker) fill(ctx context.Context, dir string, tree snapshot.Tree) (index snapshot.Index, err error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	index = snapshot.Index{}
	_, err = snapshot.Restore(ctx, root, tree, index, w.sandboxes.workspaces, nil)
	return index, err
}

// workspaceExport keeps what the workspace has in the journal of an upload.
func workspaceExport(ctx context.Context, a *Attempt, p protocol.WorkspaceExport) (protocol.Value, error) {
	w, l := a.worker, a.lane()
	store := w.sandboxes.workspaces
	files, err := w.files(ctx, l, p.Upload)
	if err != nil {
		return nil, fmt.Errorf("export workspace: %w", err)
	}
	at, err := store.Bring(ctx, p.Upload, w.sandboxes.dataID, files)
	if err != nil {
		return nil, fmt.Errorf("export workspace: %w", err)
	}
	n, size := sizeOf(files)
	return protocol.WorkspaceExportResult{Files: n, Bytes: size, Checkpoint: at.Checkpoint}, nil
}

// files stores what a workspace has. Most of it is known: of its checkpoints, or of the upload.
func (w *Worker) files(ctx context.Context, l protocol.Lane, upload string) (_ snapshot.Tree, err error) {
	store := w.sandboxes.workspaces
	if c := w.sandboxes.checkpointsOf(l); c != nil {
		return c.files(ctx)
	}
	last, err := store.Last(ctx, upload)
	if err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(w.sandboxes.workspace(l))
	if err != nil {
		return nil, protocol.Errorf(protocol.CodeWorkspaceUnavailable, "open the workspace: %v", err)
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	return saved(ctx, root, last, snapshot.Index{}, store, nil)
}

// saved stores what a directory has, and returns it.
func saved(ctx context.Context, root *os.Root, last snapshot.Tree, index snapshot.Index, store *fleetspace.Store, skip func(string, bool) bool) (snapshot.Tree, error) {
	delta, err := snapshot.Save(ctx, root, last, index, store, &snapshot.SaveOptions{Skip: skip})
	if err == nil {
		err = delta.Outline(ctx, store)
	}
	if err != nil {
		return nil, err
	}
	return last.With(delta), nil
}

// sizeOf counts the files of a tree, and their bytes.
func sizeOf(tree snapshot.Tree) (files int, size int64) {
	for _, node := range tree {
		if node.Type == sandbox.TypeFile {
			files, size = files+1, size+node.Size
		}
	}
	return files, size
}

// workspaceRemove removes a sandbox with its workspace and forgets where it was.
func workspaceRemove(ctx context.Context, a *Attempt, _ protocol.WorkspaceRemove) (protocol.Value, error) {
	w, l := a.worker, a.lane()
	w.dialogs.Release(l)
	if err := w.sandboxes.remove(ctx, l); err != nil {
		return nil, err
	}
	return protocol.WorkspaceRemoveResult{}, nil
}

// workspaceRestore makes a workspace what it was after an earlier call. When that fails, the next
// call finds it as it was before.
func workspaceRestore(ctx context.Context, a *Attempt, p protocol.WorkspaceRestore) (protocol.Value, error) {
	w, l := a.worker, a.lane()
	c := w.sandboxes.checkpointsOf(l)
	if c == nil {
		return nil, protocol.Errorf(protocol.CodeWorkspaceUnavailable,
			"the workspace of %s is kept on this worker's disk alone, or used in place: it has no checkpoints to go back to", l)
	}
	if err := w.sandboxes.kill(l); err != nil {
		return nil, fmt.Errorf("close the sandbox: %w", err)
	}
	stats, err := c.goBack(ctx, wire.HashLane(l), p.At)
	if err == nil {
		return protocol.WorkspaceRestoreResult{Written: stats.Written, Removed: stats.Removed}, nil
	}
	w.sandboxes.retake(l)
	if errors.Is(err, fleetspace.ErrNone) {
		return nil, protocol.Errorf(protocol.CodeNotFound, "%v", err)
	}
	return nil, untaken(l, err)
}

// ephemeral makes the directories of a sandbox for a lane that is none's: of a tool
// whose resource is something else. They are empty, and removed with the sandbox.
func (s *sandboxes) ephemeral(l protocol.Lane) (home string, err error) {
	home, err = os.MkdirTemp(filepath.Join(s.options.Data, "sandboxes"), "lane."+string(wire.HashLane(l))+".")
	if err != nil {
		return "", protocol.Errorf(protocol.CodeSandboxUnavailable, "workspace directory: %v", err)
	}
	return home, nil
}

// removeUnmounted removes a lane's directory, unless something is mounted in it: the
// files of others are not ours to remove.
func removeUnmounted(home string) error { return removeWhile(func() error { return nil }, home) }

// removeWhile is removeUnmounted as long as may returns nil.
func removeWhile(may func() error, home string) error {
	mounted, err := mountedBelow(home)
	if err != nil {
		return err
	}
	if mounted != "" {
		return fmt.Errorf("%s is mounted below %s, which is left as it is", mounted, home)
	}
	return removal.TreeWhile(may, home) // commands may have made that hard
}

// mountedBelow returns a mount point at or below a directory; "" when there is none, or
// no way to know.
func mountedBelow(dir string) (string, error) {
	table, err := os.Open("/proc/self/mountinfo")
	if os.IsNotExist(err) {
		return "", nil // not Linux
	}
	if err != nil {
		return "", err
	}
	defer func() { _ = table.Close() }() // it was only read
	resolved, err := filepath.EvalSymlinks(dir)
	if os.IsNotExist(err) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	escaped := strings.NewReplacer(" ", `\040`, "\t", `\011`, "\n", `\012`, `\`, `\134`).Replace(resolved)
	lines := bufio.NewScanner(table)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) > 4 && (fields[4] == escaped || strings.HasPrefix(fields[4], escaped+"/")) {
			return fields[4], nil
		}
	}
	return "", lines.Err()
}
