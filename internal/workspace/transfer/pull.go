package transfer

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/toolfleet/toolfleet/internal/sandbox/snapshot"
	"github.com/toolfleet/toolfleet/internal/session"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/workspace"
	"github.com/toolfleet/toolfleet/pkg/fleet/report"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Pull copies a session's workspace, as it was after a call or is now, into a directory, which is
// made. One with files gets only the session's changes.
func Pull(ctx context.Context, o Options, at protocol.CallID) (report.Pulled, error) {
	w, err := into(ctx, o)
	if err != nil {
		return report.Pulled{}, err
	}
	fetch, err := w.source(ctx, at)
	if err != nil {
		return report.Pulled{}, err
	}
	if err := os.MkdirAll(w.Dir, 0o777); err != nil { //nolint:gosec // as mkdir does; the umask says who else may read it
		return report.Pulled{}, fmt.Errorf("DIR: %w", err)
	}
	changes, err := fetch(ctx)
	if err != nil {
		return report.Pulled{}, err
	}
	return Pulled(w.Dir, changes), nil
}

// Pulled are changes that were made in a directory, with lists that are not nil.
func Pulled(dir string, c snapshot.Changes) report.Pulled {
	list := func(names []string) []string { return append([]string{}, names...) }
	return report.Pulled{
		Dir: dir, Written: list(c.Written), Removed: list(c.Removed), Conflicts: list(c.Conflicts),
		Theirs: list(c.Theirs), Protected: list(c.Protected),
	}
}

// into prepares to copy a session's workspace into a directory. It is not made yet. One with files
// gets only the session's changes.
func into(ctx context.Context, o Options) (w *Workspace, err error) {
	w = &Workspace{Options: o}
	w.Protect = []string{}
	if w.everything, err = isEmpty(o.Dir); err == nil && !w.everything {
		err = w.protect(ctx)
	}
	return w, err
}

// isEmpty reports whether a directory is empty or missing.
func isEmpty(dir string) (bool, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("DIR: %w", err)
	}
	return len(entries) == 0, nil
}

// source returns what fetches the workspace from the fleet: a checkpoint, after a call or the last
// one, or the worker that has the workspace on its disk.
func (w *Workspace) source(ctx context.Context, at protocol.CallID) (fetch func(context.Context) (snapshot.Changes, error), err error) {
	if w.store, err = workspace.Open(ctx, w.Fleet.Conn(w.Pool), w.Fleet.Name, w.Fleet.Bodies); err != nil {
		return nil, err
	}
	checkpoint, err := w.store.Ref(ctx, wire.HashLane(protocol.SandboxKey(string(w.Session)).Lane()), at)
	switch {
	case err == nil:
		fetch = func(ctx context.Context) (snapshot.Changes, error) { return w.take(ctx, checkpoint) }
	case at != "" || !errors.Is(err, workspace.ErrNone):
		return nil, fmt.Errorf("session %s: %w", w.Session, err)
	default:
		if there, hasErr := session.HasWorkspace(ctx, w.part(), w.Session); hasErr != nil || !there {
			return nil, errors.Join(hasErr, fmt.Errorf("session %s has no workspace in fleet %s", w.Session, w.Fleet.Name))
		}
		fetch = func(ctx context.Context) (snapshot.Changes, error) {
			changes, _, err := w.Fetch(ctx)
			return changes, err
		}
	}
	if !w.everything {
		w.base, err = w.loadBase(ctx, nil)
		return fetch, err
	}
	return fetch, nil
}
