package session

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/toolfleet/toolfleet/internal/fleet"
	"github.com/toolfleet/toolfleet/internal/natsio/embedded"
	"github.com/toolfleet/toolfleet/internal/sandbox/removal"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Local is the sessions of one machine that ran without a fleet: each has a directory, named
// after it, with a server and a worker of its own.
type Local struct {
	// Dir is the directory that has them.
	Dir string
	// Fleet is the name of the fleet that they were run with.
	Fleet protocol.Fleet
	// Logger is required.
	Logger *slog.Logger
}

// List is [Reader.List].
func (l Local) List(ctx context.Context, limit int) (list []Info, leftOut int, err error) {
	list, err = l.measured()
	if err != nil {
		return nil, 0, err
	}
	leftOut = max(0, len(list)-limit)
	list = list[:len(list)-leftOut]
	for i := range list {
		info, err := l.Show(ctx, list[i].SessionID)
		if errors.Is(err, ErrNone) { // it was begun, and nothing came of it
			continue
		}
		if err != nil {
			return nil, 0, err
		}
		info.History = nil
		list[i] = *info
	}
	l.sort(list)
	return list, leftOut, nil
}

// IDs is [Reader.IDs].
func (l Local) IDs(context.Context) (ids []protocol.SessionID, err error) {
	list, err := l.measured()
	for i := range list {
		ids = append(ids, list[i].SessionID)
	}
	return ids, err
}

// Last returns the session that changed last of those that no process uses: one with a turn, or
// else one without. It is "" when there is none.
func (l Local) Last(ctx context.Context) (protocol.SessionID, error) {
	list, err := l.measured()
	var begun protocol.SessionID // and nothing came of it, or single calls alone did
	for i := range list {
		info, err := l.Show(ctx, list[i].SessionID)
		switch none := errors.Is(err, ErrNone); {
		case err != nil && !none:
			return "", err
		case !none && info.State == StateInUse:
		case !none && info.Turns > 0:
			return info.SessionID, nil
		default:
			begun = cmp.Or(begun, list[i].SessionID)
		}
	}
	return begun, err
}

// measured are the sessions, those that changed last first, with their sizes alone.
func (l Local) measured() (list []Info, err error) {
	entries, err := os.ReadDir(l.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	for _, entry := range entries {
		id, err := protocol.ParseSessionID(entry.Name())
		if err != nil || !entry.IsDir() {
			continue
		}
		size, changed := l.measure(id)
		list = append(list, Info{SessionID: id, UpdatedAt: changed, Size: Size{DiskBytes: size}})
	}
	l.sort(list)
	return list, nil
}

func (Local) sort(list []Info) {
	slices.SortStableFunc(list, func(a, b Info) int {
		return cmp.Or(b.UpdatedAt.Compare(a.UpdatedAt), cmp.Compare(a.SessionID, b.SessionID))
	})
}

// Show is [Reader.Show].
func (l Local) Show(ctx context.Context, id protocol.SessionID) (*Info, error) {
	size, changed := l.measure(id)
	f, err := l.Open(ctx, id)
	if errors.Is(err, ErrBusy) {
		return &Info{SessionID: id, State: StateInUse, UpdatedAt: changed, Size: Size{DiskBytes: size}}, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	reader, err := NewReader(ctx, f)
	if err != nil {
		return nil, fmt.Errorf("session %s: %w", id, err)
	}
	info, err := reader.Show(ctx, id)
	if err == nil {
		info.DiskBytes = size
	}
	return info, err
}

// Open starts the session's own server. The error wraps [ErrNone] when there is no such session,
// and [ErrBusy] when a process runs it.
func (l Local) Open(ctx context.Context, id protocol.SessionID) (*fleet.Fleet, error) {
	if _, err := os.Stat(filepath.Join(l.dir(id), fleet.ServerDir)); errors.Is(err, fs.ErrNotExist) { // and looking makes none
		return nil, fmt.Errorf("session %s: %w", id, ErrNone)
	}
	f, err := fleet.Connect(ctx, fleet.Options{Name: l.Fleet, Embedded: fleet.Embedded{Data: l.dir(id)}, Client: "coordinator session", Logger: l.Logger})
	if errors.Is(err, embedded.ErrInUse) {
		return nil, fmt.Errorf("session %s: %w: a process of this machine runs it, and alone reads its journal", id, ErrBusy)
	}
	if err != nil {
		return nil, fmt.Errorf("session %s: %w", id, err)
	}
	return f, nil
}

// Create starts the server of a session that this machine does not have.
func (l Local) Create(ctx context.Context, id protocol.SessionID) (*fleet.Fleet, error) {
	if _, err := os.Stat(l.dir(id)); !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("session %s exists: give another id", id)
	}
	return fleet.Connect(ctx, fleet.Options{Name: l.Fleet, Embedded: fleet.Embedded{Data: l.dir(id)}, Client: "coordinator session", Logger: l.Logger})
}

// Workspace returns the directory of a session's workspace. One that works on a directory of the
// user's has none of its own, which is an error that names that directory.
func (l Local) Workspace(ctx context.Context, id protocol.SessionID) (string, error) {
	dir := filepath.Join(l.dir(id), "sandboxes", string(id), "workspace")
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		return dir, err
	}
	info, err := l.Show(ctx, id)
	switch {
	case err != nil:
		return "", err
	case info.Workspace != "":
		return "", fmt.Errorf("session %s works on %s itself: what it changed is there", id, info.Workspace)
	default:
		return "", fmt.Errorf("session %s has no workspace of its own", id)
	}
}

// Remove is the function [Remove] for a session of this machine: its directory is removed.
// One that a process runs is not, forced or not. The error wraps [ErrNone] if there is none.
func (l Local) Remove(ctx context.Context, id protocol.SessionID, force bool) (Removed, error) {
	if _, err := os.Stat(l.dir(id)); errors.Is(err, fs.ErrNotExist) {
		return Removed{}, fmt.Errorf("session %s: %w", id, ErrNone)
	}
	info, err := l.Show(ctx, id)
	switch {
	case errors.Is(err, ErrNone):
		info = &Info{}
	case err != nil && !force:
		return Removed{}, fmt.Errorf("remove session %s: %w", id, err)
	case err != nil:
		info = &Info{}
	case info.State == StateInUse:
		return Removed{}, fmt.Errorf("remove session %s: %w: a process runs it; stop that first", id, ErrBusy)
	case info.State.open() && !force:
		return Removed{}, fmt.Errorf("remove session %s: %w: turn %d is open; go on with it, or force the removal", id, ErrBusy, info.Turns)
	}
	_, err = os.Stat(filepath.Join(l.dir(id), "sandboxes", string(id)))
	workspace := err == nil
	if err := removal.Tree(l.dir(id)); err != nil {
		return Removed{}, fmt.Errorf("remove session %s: %w; some of it may be left: remove it again", id, err)
	}
	return Removed{Events: info.Messages, Results: info.Results, Bodies: info.Bodies, Workspace: workspace}, nil
}

func (l Local) dir(id protocol.SessionID) string { return filepath.Join(l.Dir, string(id)) }

// measure returns the size of a session's directory, and when a message was stored last, or it was
// made.
func (l Local) measure(id protocol.SessionID) (size int64, changed time.Time) {
	_ = filepath.WalkDir(l.dir(id), func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return nil //nolint:nilerr // what cannot be read, or goes away, is not counted
		}
		info, err := entry.Info()
		if err != nil || !entry.Type().IsRegular() {
			return nil //nolint:nilerr // as above
		}
		size += info.Size()
		if filepath.Ext(path) == messageBlock && info.ModTime().After(changed) {
			changed = info.ModTime()
		}
		return nil
	})
	if made, err := os.Stat(l.dir(id)); err == nil && changed.IsZero() {
		changed = made.ModTime()
	}
	return size, changed
}

// messageBlock is the extension of the server's files that have messages.
const messageBlock = ".blk"
