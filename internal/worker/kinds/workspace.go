package kinds

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/sandbox/removal"
	"github.com/toolfleet/toolfleet/internal/sandbox/snapshot"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/internal/worker/checkpoint"
	fleetspace "github.com/toolfleet/toolfleet/internal/workspace"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

func checkImport(_ *Env, p wire.WorkspaceImport) *protocol.Error {
	return checkUpload(p, p.Upload)
}

func checkExport(_ *Env, p wire.WorkspaceExport) *protocol.Error {
	return checkUpload(p, p.Upload)
}

// checkUpload refuses an invalid name of an upload.
func checkUpload(p protocol.Payload, name string) *protocol.Error {
	if !fleetspace.IsUpload(name) {
		return protocol.Errorf(codes.InvalidPayload, "%s: upload %.100q: must be 1 to 64 lower case letters and digits", wire.KindOf(p), name)
	}
	return nil
}

// workspaceImport fills an empty workspace with an upload, all or nothing. A workspace with
// anything in it was imported before, or used: it stays as it is.
func workspaceImport(ctx context.Context, a *Attempt, p wire.WorkspaceImport) (_ protocol.Value, err error) {
	e, l := a.env, a.lane()
	used, err := a.box.HasFiles()
	if err != nil {
		return nil, protocol.Errorf(protocol.CodeWorkspaceUnavailable, "open the workspace: %v", err)
	}
	if used {
		return wire.WorkspaceImportResult{}, nil
	}
	tree, at, err := e.receive(ctx, p, a.ownsUpload(ofUpload+p.Upload))
	if err != nil {
		return nil, err
	}
	temp, err := a.box.Staging()
	if err != nil {
		return nil, fmt.Errorf("import workspace: %w", err)
	}
	defer func() {
		if err != nil { // after success it is the workspace
			err = errors.Join(err, removal.Tree(temp)) // an upload may have made that hard
		}
	}()
	index, err := e.fill(ctx, temp, tree)
	if errors.Is(err, fleetspace.ErrMissing) || errors.Is(err, snapshot.ErrCorrupt) {
		return nil, sendWhole(err)
	}
	if err != nil {
		return nil, checkpoint.RestoreError(l, err)
	}
	if err := a.box.ReplaceWorkspace(ctx, temp); err != nil {
		return nil, fmt.Errorf("import workspace: %w", err)
	}
	a.box.Checkpoints().Filled(tree, index)
	files, size := sizeOf(tree)
	return wire.WorkspaceImportResult{Files: files, Bytes: size, Checkpoint: at.Checkpoint}, nil
}

// receive keeps an upload in its journal, and returns what it has.
func (e *Env) receive(ctx context.Context, p wire.WorkspaceImport, owned fleetspace.Owned) (tree snapshot.Tree, at fleetspace.Ref, err error) {
	blob, err := natsio.GetObject(ctx, e.JS, wire.BlobsBucket(e.Fleet), p.Blob)
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
	tree, at, err = e.Workspaces.Receive(ctx, p.Upload, e.Sandboxes.Disk(), upload, owned)
	switch {
	case errors.Is(err, fleetspace.ErrLost):
		return nil, at, protocol.Errorf(protocol.CodeNotFound, "the directory was uploaded once more meanwhile: send it again: %v", err)
	case errors.Is(err, fleetspace.ErrMissing):
		return nil, at, sendWhole(err)
	case errors.Is(err, fleetspace.ErrInvalid):
		return nil, at, protocol.Errorf(protocol.CodeWorkspaceUnavailable, "%v", err)
	}
	return tree, at, err
}

// sendWhole has the sender of an upload send all of it.
func sendWhole(err error) error {
	return protocol.Errorf(protocol.CodeNotFound, "contents of the upload are missing: send it whole: %v", err)
}

// maxUpload bounds what says what changed in an upload.
const maxUpload = 1 << 30

// fill makes an empty directory what a tree says.
func (e *Env) fill(ctx context.Context, dir string, tree snapshot.Tree) (index snapshot.Index, err error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	index = snapshot.Index{}
	_, err = snapshot.Restore(ctx, root, tree, index, e.Workspaces, nil)
	return index, err
}

// workspaceExport keeps what the workspace has in the journal of an upload.
func workspaceExport(ctx context.Context, a *Attempt, p wire.WorkspaceExport) (protocol.Value, error) {
	e, store := a.env, a.env.Workspaces
	files, err := a.files(ctx, p.Upload)
	if err != nil {
		return nil, fmt.Errorf("export workspace: %w", err)
	}
	at, err := store.Bring(ctx, p.Upload, e.Sandboxes.Disk(), files, a.ownsUpload(ofUpload+p.Upload))
	if err != nil {
		return nil, fmt.Errorf("export workspace: %w", err)
	}
	n, size := sizeOf(files)
	return wire.WorkspaceExportResult{Files: n, Bytes: size, Checkpoint: at.Checkpoint}, nil
}

// files stores what a workspace has. Most of it is known: of its checkpoints, or of the upload.
func (a *Attempt) files(ctx context.Context, upload string) (snapshot.Tree, error) {
	if c := a.box.Checkpoints(); c != nil {
		return c.Files(ctx)
	}
	return checkpoint.Upload(ctx, a.env.Workspaces, a.box.Workspace(), upload)
}

// sizeOf counts the files of a tree, and their bytes.
func sizeOf(tree snapshot.Tree) (files int, size int64) {
	for _, node := range tree {
		if node.Type == protocol.TypeFile {
			files, size = files+1, size+node.Size
		}
	}
	return files, size
}

// workspaceRemove removes a sandbox with its workspace and forgets where it was.
func workspaceRemove(ctx context.Context, a *Attempt, _ wire.WorkspaceRemove) (protocol.Value, error) {
	e, l := a.env, a.lane()
	e.dialogs.Release(l)
	if err := e.Sandboxes.Remove(ctx, l, a.Run.Fence); err != nil {
		return nil, err
	}
	return wire.WorkspaceRemoveResult{}, nil
}

// workspaceRestore makes a workspace what it was after an earlier call. When that fails, the next
// call finds it as it was before.
func workspaceRestore(ctx context.Context, a *Attempt, p wire.WorkspaceRestore) (protocol.Value, error) {
	l := a.lane()
	c := a.box.Checkpoints()
	if c == nil {
		return nil, protocol.Errorf(protocol.CodeWorkspaceUnavailable,
			"the workspace of %s is used in place: it has no checkpoints to go back to", l)
	}
	if err := a.box.Kill(); err != nil {
		return nil, fmt.Errorf("close the sandbox: %w", err)
	}
	stats, err := c.Restore(ctx, wire.HashLane(l), p.At)
	if err == nil {
		return wire.WorkspaceRestoreResult{Written: stats.Written, Removed: stats.Removed}, nil
	}
	a.box.Reclaim()
	if errors.Is(err, fleetspace.ErrNone) {
		return nil, protocol.Errorf(protocol.CodeNotFound, "%v", err)
	}
	return nil, checkpoint.RestoreError(l, err)
}
