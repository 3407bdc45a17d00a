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
	fleetspace "github.com/toolfleet/toolfleet/internal/workspace"
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
	blob, err := natsio.GetObject(ctx, w.js, w.options.Fleet.BlobsBucket(), name)
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
	_, stats, err := snapshot.Packed(ctx, root, nil, func(archive io.Reader) error {
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

// workspaceRestore makes a workspace what it was after an earlier call. When that fails, the next
// call finds it as it was before.
func (w *Worker) workspaceRestore(ctx context.Context, l protocol.Lane, p protocol.WorkspaceRestore) (protocol.Value, error) {
	c := w.sandboxes.checkpointsOf(l)
	if c == nil {
		return nil, protocol.Errorf(protocol.CodeWorkspaceUnavailable,
			"the workspace of %s is kept on this worker's disk alone, or used in place: it has no checkpoints to go back to", l)
	}
	if err := w.sandboxes.kill(l); err != nil {
		return nil, fmt.Errorf("close the sandbox: %w", err)
	}
	stats, err := c.goBack(ctx, l.Hash(), p.At)
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
	home, err = os.MkdirTemp(filepath.Join(s.options.Data, "sandboxes"), "lane."+string(l.Hash())+".")
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
