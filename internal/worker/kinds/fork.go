package kinds

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/toolfleet/toolfleet/internal/sandbox/snapshot"
	"github.com/toolfleet/toolfleet/internal/system/regular"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/internal/worker/checkpoint"
	"github.com/toolfleet/toolfleet/internal/worker/sandboxes"
	fleetspace "github.com/toolfleet/toolfleet/internal/workspace"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

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
		files, err = checkpoint.ForkDirectory(ctx, e.Workspaces, a.laneSandbox.Workspace(), e.Sandboxes.Disk(), lane, laneOf(p.To), a.Run.Call.ID, a.mayUpload("of the directory"))
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
