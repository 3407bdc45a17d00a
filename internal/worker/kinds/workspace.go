package kinds

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolfleet/toolfleet/internal/modeltext/plain"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/sandbox/snapshot"
	"github.com/toolfleet/toolfleet/internal/system"
	"github.com/toolfleet/toolfleet/internal/system/regular"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/internal/worker/checkpoint"
	"github.com/toolfleet/toolfleet/internal/worker/results"
	"github.com/toolfleet/toolfleet/internal/worker/sandboxes"
	fleetspace "github.com/toolfleet/toolfleet/internal/workspace"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
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
	used, err := a.laneSandbox.HasFiles()
	if err != nil {
		return nil, protocol.Errorf(protocol.CodeWorkspaceUnavailable, "open the workspace: %v", err)
	}
	if used {
		return wire.WorkspaceImportResult{}, nil
	}
	tree, at, err := e.receive(ctx, p, a.mayUpload(p.Upload))
	if err != nil {
		return nil, err
	}
	temp, err := a.laneSandbox.Staging()
	if err != nil {
		return nil, fmt.Errorf("import workspace: %w", err)
	}
	defer func() {
		if err != nil { // after success it is the workspace
			err = errors.Join(err, system.RemoveTree(temp)) // an upload may have made that hard
		}
	}()
	index, err := e.fill(ctx, temp, tree)
	if errors.Is(err, fleetspace.ErrMissing) || errors.Is(err, snapshot.ErrCorrupt) {
		return nil, sendWhole(err)
	}
	if err != nil {
		return nil, checkpoint.RestoreError(l, err)
	}
	if err := a.laneSandbox.ReplaceWorkspace(ctx, temp); err != nil {
		return nil, fmt.Errorf("import workspace: %w", err)
	}
	a.laneSandbox.Checkpoints().Filled(tree, index)
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

// workspaceUnpack lays what an archive has over the workspace, all or nothing. When that fails, the
// next call finds the workspace as it was before; a directory without checkpoints may have part of
// the changes then, and the same call makes the rest.
func workspaceUnpack(ctx context.Context, a *Attempt, p wire.WorkspaceUnpack) (_ protocol.Value, err error) {
	e := a.env
	blob, err := natsio.GetObject(ctx, e.JS, wire.BlobsBucket(e.Fleet), p.Blob)
	if errors.Is(err, jetstream.ErrObjectNotFound) {
		return nil, protocol.Errorf(protocol.CodeNotFound, "archive %q is not in the fleet's object store: send it again", p.Blob)
	}
	if err != nil {
		return nil, fmt.Errorf("get archive %s: %w", p.Blob, err)
	}
	defer func() { err = errors.Join(err, blob.Close()) }()
	sum := sha256.New()
	from := io.TeeReader(io.LimitReader(blob, maxUpload), sum)
	upload, err := fleetspace.ReadUpload(from)
	if err == nil {
		_, err = io.Copy(io.Discard, from)
	}
	if err != nil {
		return nil, protocol.Errorf(protocol.CodeWorkspaceUnavailable, "archive %q cannot be read: %v", p.Blob, err)
	}
	if hex.EncodeToString(sum.Sum(nil)) != p.Digest {
		return nil, protocol.Errorf(protocol.CodeWorkspaceUnavailable, "archive %q is not the one of the call", p.Blob)
	}
	tree := upload.Delta.Set.Below(path.Clean(p.Path))
	if err := upload.Check(tree); err != nil {
		return nil, protocol.Errorf(codes.UnsafeEntry, "archive: %v", err)
	}
	root, err := os.OpenRoot(a.laneSandbox.Workspace())
	if err != nil {
		return nil, protocol.Errorf(protocol.CodeWorkspaceUnavailable, "open the workspace: %v", err)
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	changes, err := snapshot.Overlay(ctx, root, tree, e.Workspaces, &snapshot.Options{Protect: a.laneSandbox.Protected()})
	fault, is := errors.AsType[*snapshot.Error](err)
	switch {
	case errors.Is(err, fleetspace.ErrMissing):
		err = protocol.Errorf(protocol.CodeNotFound, "contents of the archive are missing: send it again: %v", err)
	case is && errors.Is(fault, snapshot.ErrUnsafe):
		err = protocol.Errorf(codes.UnsafeEntry, "archive: %v", fault)
	case err != nil:
		err = checkpoint.RestoreError(a.lane(), err)
	}
	if err != nil {
		a.laneSandbox.Reclaim()
		return nil, err
	}
	files, size := sizeOf(tree)
	return wire.WorkspaceUnpackResult{Files: files, Bytes: size, Written: len(changes.Written)}, nil
}

// workspaceExport keeps what the workspace has in the journal of an upload.
func workspaceExport(ctx context.Context, a *Attempt, p wire.WorkspaceExport) (protocol.Value, error) {
	e, store := a.env, a.env.Workspaces
	files, err := a.files(ctx, p.Upload)
	if err != nil {
		return nil, fmt.Errorf("export workspace: %w", err)
	}
	at, err := store.Bring(ctx, p.Upload, e.Sandboxes.Disk(), files, a.mayUpload(p.Upload))
	if err != nil {
		return nil, fmt.Errorf("export workspace: %w", err)
	}
	n, size := sizeOf(files)
	return wire.WorkspaceExportResult{Files: n, Bytes: size, Checkpoint: at.Checkpoint}, nil
}

// files stores what a workspace has. Most of it is known: of its checkpoints, or of the upload.
func (a *Attempt) files(ctx context.Context, upload string) (snapshot.Tree, error) {
	if c := a.laneSandbox.Checkpoints(); c != nil {
		return c.Files(ctx)
	}
	return checkpoint.Upload(ctx, a.env.Workspaces, a.laneSandbox.Workspace(), upload)
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
	c := a.laneSandbox.Checkpoints()
	if c == nil {
		return nil, protocol.Errorf(protocol.CodeWorkspaceUnavailable,
			"the workspace of %s is used in place: it has no checkpoints to go back to", l)
	}
	if err := a.laneSandbox.Kill(); err != nil {
		return nil, fmt.Errorf("close the sandbox: %w", err)
	}
	stats, err := c.Restore(ctx, wire.HashLane(l), p.At)
	if err == nil {
		return wire.WorkspaceRestoreResult{Written: stats.Written, Removed: stats.Removed}, nil
	}
	a.laneSandbox.Reclaim()
	if errors.Is(err, fleetspace.ErrNone) {
		return nil, protocol.Errorf(protocol.CodeNotFound, "%v", err)
	}
	return nil, checkpoint.RestoreError(l, err)
}

// fileOps is a payload about files of one session: what the payload says about the file that it
// reads or changes, and how much the caller is shown of what it finds.
type fileOps struct {
	session protocol.SessionID
	digests *sandboxes.Digests

	guard protocol.Guard
	path  string
	reads bool
	limit int
}

// fileRun does the file operation of a payload.
func fileRun(ctx context.Context, a *Attempt, payload protocol.Payload) (protocol.Value, error) {
	fs := a.sandbox.FS().Within(a.Run.Call.Roots...)
	f := &fileOps{session: a.Run.Call.SessionID, digests: a.laneSandbox.Digests}
	value, err := fs.Do(ctx, f.prepare(payload))
	if write, is := payload.(protocol.FilesWrite); is && err != nil && hasContent(ctx, fs, write) {
		value, err = protocol.FilesWriteResult{Path: write.Path, Bytes: int64(len(write.Content)), SHA256: digestOf(write.Content)}, nil
	}
	if fault, ok := errors.AsType[*protocol.Error](err); ok && f.reads && fault.Code == protocol.CodeNotFound {
		f.note("") // the session has seen that the file is gone, and may make it again
	}
	if err != nil {
		return nil, err
	}
	return f.finish(fs, value)
}

func (f *fileOps) note(sha256 string) { f.digests.Note(f.guard, f.session, f.path, sha256) }

// searchPatience is the longest time of a search. After it, the search returns what it has found.
const searchPatience = 15 * time.Second

// prepare returns the payload for the sandbox: with the digest that the file must have, and without
// the limit for what is shown, since the worker stores all that is found.
func (f *fileOps) prepare(payload protocol.Payload) protocol.Payload {
	guarded := func(guard protocol.Guard, path string, reads bool) { f.guard, f.path, f.reads = guard, path, reads }
	expected := func(sha256 string) string { return f.digests.Expect(f.guard, f.session, f.path, sha256) }
	switch p := payload.(type) {
	case protocol.FilesRead:
		guarded(p.Guard, p.Path, true)
	case protocol.FilesJSONRead:
		guarded(p.Guard, p.Path, true)
	case protocol.FilesWrite:
		guarded(p.Guard, p.Path, false)
		p.ExpectSHA256 = expected(p.ExpectSHA256)
		return p
	case protocol.FilesEdit:
		guarded(p.Guard, p.Path, false)
		p.ExpectSHA256 = expected(p.ExpectSHA256)
		return p
	case protocol.FilesJSONWrite:
		guarded(p.Guard, p.Path, false)
		p.ExpectSHA256 = expected(p.ExpectSHA256)
		return p
	case protocol.FilesTree:
		f.limit, p.Limit = p.Limit, 0
		return p
	case protocol.FilesGlob:
		f.limit, p.Limit = p.Limit, 0
		return p
	case protocol.FilesSearch:
		f.limit, p.Limit = p.Limit, 0
		return sandbox.FilesSearch{FilesSearch: p, Patience: searchPatience}
	}
	return payload
}

// finish notes what the session has seen of the file, and returns the value for the caller.
func (f *fileOps) finish(fs sandbox.FS, value protocol.Value) (protocol.Value, error) {
	switch all := value.(type) {
	case protocol.FilesReadResult:
		f.note(all.SHA256)
		return results.File(fs, all), nil
	case protocol.FilesJSONReadResult:
		f.note(all.SHA256)
		return results.JSON(all), nil
	case protocol.FilesWriteResult:
		f.note(all.SHA256)
	case protocol.FilesEditResult:
		f.note(all.SHA256)
	case protocol.FilesJSONWriteResult:
		f.note(all.SHA256)
	case protocol.FilesListResult:
		return results.List(all, len(all.Entries), all.Total, f.limit, func(v protocol.FilesListResult, n int) protocol.FilesListResult {
			v.Entries = v.Entries[:n]
			return v
		})
	case protocol.FilesTreeResult:
		return results.List(all, len(all.Entries), all.Total, f.limit, func(v protocol.FilesTreeResult, n int) protocol.FilesTreeResult {
			v.Entries = v.Entries[:n]
			return v
		})
	case protocol.FilesGlobResult:
		return results.List(all, len(all.Paths), all.Total, f.limit, func(v protocol.FilesGlobResult, n int) protocol.FilesGlobResult {
			v.Paths = v.Paths[:n]
			return v
		})
	case protocol.FilesSearchResult:
		return results.List(all, len(all.Matches), all.Total, f.limit, func(v protocol.FilesSearchResult, n int) protocol.FilesSearchResult {
			short := make([]protocol.Match, n)
			for i, m := range v.Matches[:n] {
				short[i] = plain.CutMatch(m)
			}
			v.Matches = short
			return v
		})
	}
	return value, nil
}

// hasContent reports whether the file already has the content that a guarded session may not write,
// for example from an earlier attempt whose worker was lost before it recorded that. Nothing would
// be changed.
func hasContent(ctx context.Context, fs sandbox.FS, p protocol.FilesWrite) bool {
	if p.Guard == "" || p.ExpectSHA256 != "" {
		return false
	}
	r, err := fs.Read(ctx, protocol.FilesRead{Path: p.Path, Limit: 1})
	content := p.Content
	if r.BOM && r.Encoding == "" {
		content = slices.Concat(protocol.Bytes("\uFEFF"), content) // which a write keeps
	}
	return err == nil && (r.SHA256 == digestOf(p.Content) || r.SHA256 == digestOf(content))
}

func digestOf(content []byte) string {
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:])
}

func checkFork(_ *Env, p wire.WorkspaceFork) *protocol.Error { return checkSandbox(p, "to", p.To) }

func checkMerge(_ *Env, p wire.WorkspaceMerge) *protocol.Error {
	return checkSandbox(p, "from", p.From)
}

// checkSandbox refuses an invalid id of a sandbox.
func checkSandbox(p protocol.Payload, field, id string) *protocol.Error {
	if _, err := protocol.ParseResourceKey(string(protocol.SandboxKey(id))); err != nil || sandboxes.ID(protocol.SandboxKey(id).Lane()) != id {
		return protocol.Errorf(codes.InvalidPayload, "%s: %s %.100q: must be the id of a sandbox", wire.KindOf(p), field, id)
	}
	return nil
}

func laneOf(sandbox string) protocol.Lane { return protocol.SandboxKey(sandbox).Lane() }

func hashOf(sandbox string) wire.LaneHash { return wire.HashLane(laneOf(sandbox)) }

// workspaceFork begins another workspace with the files of this one.
func workspaceFork(ctx context.Context, a *Attempt, p wire.WorkspaceFork) (protocol.Value, error) {
	e, lane := a.env, wire.HashLane(a.lane())
	there, err := e.Workspaces.Has(ctx, hashOf(p.To))
	if err != nil || there { // an earlier attempt has made it
		return wire.WorkspaceForkResult{}, err
	}
	var files snapshot.Tree
	if c := a.laneSandbox.Checkpoints(); c == nil {
		files, err = checkpoint.ForkDirectory(ctx, e.Workspaces, a.laneSandbox.Workspace(), e.Sandboxes.Disk(),
			lane, laneOf(p.To), a.Run.Call.ID, a.mayUpload("of the directory"))
	} else if files, err = c.Files(ctx); err == nil {
		err = e.Workspaces.ForkFiles(ctx, lane, files, laneOf(p.To), a.Run.Call.ID)
	}
	if err != nil && !errors.Is(err, fleetspace.ErrExists) {
		return nil, fmt.Errorf("fork workspace: %w", err)
	}
	n, size := sizeOf(files)
	return wire.WorkspaceForkResult{Files: n, Bytes: size}, nil
}

// workspaceMerge brings the changes of a fork into the workspace, and notes up to which checkpoint,
// in one commit: another merge has only what came later. When that fails, the next call finds the
// workspace as it was before; a directory in place has part of the changes then, and the same call
// makes the rest.
func workspaceMerge(ctx context.Context, a *Attempt, p wire.WorkspaceMerge) (_ protocol.Value, err error) {
	store := a.env.Workspaces
	merged, err := readMerged(a.laneSandbox.MergedFile())
	if err != nil {
		return nil, checkpoint.RestoreError(a.lane(), err)
	}
	base, files, at, err := store.Forked(ctx, hashOf(p.From), wire.HashLane(a.lane()), cmp.Or(p.After, merged[p.From]))
	switch {
	case errors.Is(err, fleetspace.ErrNone):
		return nil, protocol.Errorf(protocol.CodeNotFound, "merge workspace of %s: %v", p.From, err)
	case errors.Is(err, fleetspace.ErrNoFork):
		return nil, protocol.Errorf(protocol.CodeInvalidArguments, "merge workspace of %s: %v", p.From, err)
	case err != nil:
		return nil, fmt.Errorf("merge workspace: %w", err)
	}
	root, err := os.OpenRoot(a.laneSandbox.Workspace())
	if err != nil {
		return nil, protocol.Errorf(protocol.CodeWorkspaceUnavailable, "open the workspace: %v", err)
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	changes, err := snapshot.Merge(ctx, root, base, files, store, &snapshot.Options{Protect: a.laneSandbox.Protected(), Skip: inRepository})
	if err == nil {
		noteMerged(merged, p.From, at.Checkpoint)
		err = writeMerged(a.laneSandbox.MergedFile(), merged)
	}
	if err != nil {
		a.laneSandbox.Reclaim()
		return nil, checkpoint.RestoreError(a.lane(), err)
	}
	return wire.WorkspaceMergeResult{
		Written: changes.Written, Removed: changes.Removed, Merged: changes.Merged,
		Conflicts: changes.Conflicts, Theirs: changes.Theirs, Protected: changes.Protected,
		Commits: committed(base, files), Checkpoint: at.Checkpoint,
	}, nil
}

// readMerged reads the checkpoint of each fork that was merged last.
func readMerged(path string) (merged map[string]uint64, err error) {
	body, err := regular.Read(path, maxMergedBytes)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		err = nil
	case err == nil:
		err = json.Unmarshal(body, &merged)
	}
	if merged == nil { // without a file, or if the file says null
		merged = map[string]uint64{}
	}
	return merged, err
}

const (
	// maxMerged bounds the forks that a workspace notes: each sub-agent on a fork is one.
	maxMerged = 1000
	// maxMergedBytes bounds the file; each fork takes much less than 1 KiB of it.
	maxMergedBytes = 1 << 20
)

// noteMerged notes the checkpoint of a fork that was merged, in the place of the oldest one if
// there are too many.
func noteMerged(merged map[string]uint64, from string, at uint64) {
	merged[from] = at
	for len(merged) > maxMerged {
		oldest := ""
		for fork, at := range merged {
			if fork != from && (oldest == "" || at < merged[oldest]) {
				oldest = fork
			}
		}
		delete(merged, oldest)
	}
}

func writeMerged(path string, merged map[string]uint64) error {
	body, err := json.Marshal(merged)
	if err != nil {
		return err
	}
	return regular.Replace(path, body) // part of one would end all merges in place
}

// inRepository reports whether a path is the database of a git repository, or in it. Two of them
// cannot be merged file by file.
func inRepository(name string, _ bool) bool {
	name = strings.ToLower(name) // which are one on some file systems
	return name == ".git" || strings.HasPrefix(name, ".git/") || strings.HasSuffix(name, "/.git") || strings.Contains(name, "/.git/")
}

// committed reports whether the references of a repository changed.
func committed(base, files snapshot.Tree) bool {
	for _, trees := range [][2]snapshot.Tree{{base, files}, {files, base}} {
		for name, node := range trees[0] {
			_, in, is := strings.Cut("/"+name, "/.git/")
			if is && (in == "HEAD" || in == "packed-refs" || strings.HasPrefix(in, "refs/")) && node.Type == protocol.TypeFile && !node.Same(trees[1][name]) {
				return true
			}
		}
	}
	return false
}
