package worker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/sandbox/removal"
	"github.com/toolfleet/toolfleet/pkg/sandbox/snapshot"
)

// blobOf is the name of the archive that a payload is about; ok is false when it is about none.
func blobOf(p protocol.Payload) (name string, ok bool) {
	switch p := p.(type) {
	case protocol.WorkspaceImport:
		return p.Blob, true
	case protocol.WorkspaceExport:
		return p.Blob, true
	default:
		return "", false
	}
}

// workspaceImport fills an empty workspace from a stored archive, all or nothing. A
// workspace with anything in it was imported before, or used: it stays as it is.
func (w *Worker) workspaceImport(ctx context.Context, l protocol.Lane, p protocol.WorkspaceImport) (_ protocol.Value, err error) {
	workspace := w.sandboxes.workspace(l)
	used, err := w.sandboxes.used(workspace)
	if err != nil {
		return nil, protocol.Errorf(protocol.CodeWorkspaceUnavailable, "open the workspace: %v", err)
	}
	if used {
		return protocol.WorkspaceImportResult{}, nil
	}
	temp, err := w.sandboxes.staging(l)
	if err != nil {
		return nil, fmt.Errorf("import workspace: %w", err)
	}
	defer func() {
		if err != nil { // after success it is the workspace
			err = errors.Join(err, removal.Tree(temp)) // an archive may have made that hard
		}
	}()
	stats, err := w.unpack(ctx, temp, p.Blob)
	if err != nil {
		return nil, err
	}
	if err := w.sandboxes.replace(ctx, l, temp); err != nil {
		return nil, fmt.Errorf("import workspace: %w", err)
	}
	return protocol.WorkspaceImportResult{Files: stats.Files, Bytes: stats.Bytes}, nil
}

func (w *Worker) unpack(ctx context.Context, dir, name string) (_ snapshot.Stats, err error) {
	blob, err := natsio.GetObject(ctx, w.blobs, name)
	if errors.Is(err, jetstream.ErrObjectNotFound) {
		return snapshot.Stats{}, protocol.Errorf(protocol.CodeNotFound, "archive %q is not in the fleet's object store", name)
	}
	if err != nil {
		return snapshot.Stats{}, fmt.Errorf("get archive %s: %w", name, err)
	}
	defer func() { err = errors.Join(err, blob.Close()) }()
	root, err := os.OpenRoot(dir)
	if err != nil {
		return snapshot.Stats{}, fmt.Errorf("unpack archive %s: %w", name, err)
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	stats, err := snapshot.Unpack(ctx, root, blob, nil)
	if err != nil {
		return stats, protocol.Errorf(protocol.CodeWorkspaceUnavailable, "unpack the workspace: %v", err)
	}
	return stats, nil
}

// workspaceExport stores an archive of the workspace.
func (w *Worker) workspaceExport(ctx context.Context, l protocol.Lane, p protocol.WorkspaceExport) (_ protocol.Value, err error) {
	root, err := os.OpenRoot(w.sandboxes.workspace(l))
	if err != nil {
		return nil, protocol.Errorf(protocol.CodeWorkspaceUnavailable, "open the workspace: %v", err)
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	_, stats, err := snapshot.Packed(ctx, root, func(archive io.Reader) error {
		_, err := natsio.PutObject(ctx, w.js, w.options.Fleet.BlobsBucket(), p.Blob, archive)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("store archive %s: %w", p.Blob, err)
	}
	return protocol.WorkspaceExportResult{Blob: p.Blob, Files: stats.Files, Bytes: stats.Bytes}, nil
}

// workspaceRemove removes a sandbox with its workspace and forgets where it was.
func (w *Worker) workspaceRemove(ctx context.Context, l protocol.Lane) (protocol.Value, error) {
	w.dialogs.Release(l)
	if err := w.sandboxes.remove(ctx, l); err != nil {
		return nil, err
	}
	return protocol.WorkspaceRemoveResult{}, nil
}
