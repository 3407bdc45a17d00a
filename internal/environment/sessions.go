package environment

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

	"github.com/toolfleet/toolfleet/internal/cli"
	"github.com/toolfleet/toolfleet/internal/fleet"
	"github.com/toolfleet/toolfleet/internal/natsio/embedded"
	"github.com/toolfleet/toolfleet/internal/sandbox/removal"
	"github.com/toolfleet/toolfleet/internal/session"
	"github.com/toolfleet/toolfleet/internal/transfer"
	public "github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/fleet/report"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// LocalSessions are the sessions of this machine that ran without a fleet: each has a directory,
// named after it, with a server and a worker of its own. One that a process runs is
// [public.ErrSessionBusy], and one that does not exist [public.ErrNotFound].
type LocalSessions struct {
	dir    string
	fleet  protocol.Fleet
	logger *slog.Logger
}

// Local returns the sessions of this machine that were run with a name of a fleet.
func Local(name protocol.Fleet, logger *slog.Logger) (LocalSessions, error) {
	dir, err := cli.StateDir("sessions")
	return LocalSessions{dir, name, logger}, err
}

// List is [public.Sessions.List].
func (l LocalSessions) List(ctx context.Context, limit int) (list []report.Session, leftOut int, err error) {
	list, err = l.measured()
	if err != nil {
		return nil, 0, err
	}
	leftOut = max(0, len(list)-limit)
	list = list[:len(list)-leftOut]
	for i := range list {
		info, err := l.show(ctx, list[i])
		if errors.Is(err, public.ErrNotFound) { // it was begun, and nothing came of it
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

// IDs is [public.Sessions.IDs].
func (l LocalSessions) IDs(context.Context) (ids []protocol.SessionID, err error) {
	list, err := l.measured()
	for i := range list {
		ids = append(ids, list[i].SessionID)
	}
	return ids, err
}

// Last returns the session that changed last of those that no process uses: one with a turn, or
// else one without. It is "" when there is none.
func (l LocalSessions) Last(ctx context.Context) (protocol.SessionID, error) {
	list, err := l.measured()
	var begun protocol.SessionID // and nothing came of it, or single calls alone did
	for i := range list {
		info, err := l.show(ctx, list[i])
		switch none := errors.Is(err, public.ErrNotFound); {
		case err != nil && !none:
			return "", err
		case !none && info.State == session.StateInUse:
		case !none && info.Turns > 0:
			return info.SessionID, nil
		default:
			begun = cmp.Or(begun, list[i].SessionID)
		}
	}
	return begun, err
}

// measured are the sessions, those that changed last first, with their sizes alone.
func (l LocalSessions) measured() (list []report.Session, err error) {
	entries, err := os.ReadDir(l.dir)
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
		list = append(list, l.measure(id))
	}
	l.sort(list)
	return list, nil
}

func (LocalSessions) sort(list []report.Session) {
	slices.SortStableFunc(list, func(a, b report.Session) int {
		return cmp.Or(b.UpdatedAt.Compare(a.UpdatedAt), cmp.Compare(a.SessionID, b.SessionID))
	})
}

// Show is [public.Sessions.Show].
func (l LocalSessions) Show(ctx context.Context, id protocol.SessionID) (*report.Session, error) {
	return l.show(ctx, l.measure(id))
}

// show is Show of a session that is measured.
func (l LocalSessions) show(ctx context.Context, measured report.Session) (*report.Session, error) {
	f, err := l.Open(ctx, measured.SessionID)
	if errors.Is(err, public.ErrSessionBusy) {
		measured.State = session.StateInUse
		return &measured, nil
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	info, err := f.Sessions("").Show(ctx, measured.SessionID)
	if err == nil {
		info.DiskBytes = measured.DiskBytes
	}
	return info, err
}

// noSessionError is the error about a session that is not there, as the client has it.
type noSessionError struct{ error }

func (noSessionError) Is(target error) bool { return target == public.ErrNotFound }

func (e noSessionError) Unwrap() error { return e.error }

// Open starts the session's own server.
func (l LocalSessions) Open(ctx context.Context, id protocol.SessionID) (*public.Client, error) {
	if _, err := os.Stat(filepath.Join(l.dirOf(id), fleet.ServerDir)); errors.Is(err, fs.ErrNotExist) { // and looking makes none
		return nil, fmt.Errorf("session %s: %w", id, noSessionError{session.ErrNone})
	}
	client, err := l.start(ctx, id)
	if errors.Is(err, embedded.ErrInUse) {
		return nil, fmt.Errorf("session %s: %w: a process of this machine runs it, and alone reads its journal", id, public.ErrSessionBusy)
	}
	if err != nil {
		return nil, fmt.Errorf("session %s: %w", id, err)
	}
	return client, nil
}

func (l LocalSessions) start(ctx context.Context, id protocol.SessionID) (*public.Client, error) {
	return public.Connect(ctx, public.Options{Name: l.fleet, Data: l.dirOf(id), Logger: l.logger})
}

// Create starts the server of a session that this machine does not have.
func (l LocalSessions) Create(ctx context.Context, id protocol.SessionID) (*public.Client, error) {
	if _, err := os.Stat(l.dirOf(id)); !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("session %s exists: give another id", id)
	}
	return l.start(ctx, id)
}

// Pull is [public.Sessions.Pull] for the last state of a workspace.
func (l LocalSessions) Pull(ctx context.Context, id protocol.SessionID, dir string, options public.Copy) (report.Pulled, error) {
	from, err := l.workspace(ctx, id)
	if err != nil {
		return report.Pulled{}, err
	}
	return transfer.PullFrom(ctx, transfer.Options{
		Session: id, Dir: dir, IncludeIgnored: options.IncludeIgnored, Warn: options.Warn, Busy: func(string) {},
	}, from)
}

// workspace returns the directory of a session's workspace. One that works on a directory of the
// user's has none of its own, which is an error that names that directory.
func (l LocalSessions) workspace(ctx context.Context, id protocol.SessionID) (string, error) {
	dir := filepath.Join(l.dirOf(id), "sandboxes", string(id), "workspace")
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

// Remove is [public.Sessions.Remove] for a session of this machine: its directory is removed.
// One that a process runs is not, forced or not. The error wraps [public.ErrNotFound] if there is
// none.
func (l LocalSessions) Remove(ctx context.Context, id protocol.SessionID, force bool) (report.Removed, error) {
	if _, err := os.Stat(l.dirOf(id)); errors.Is(err, fs.ErrNotExist) {
		return report.Removed{}, fmt.Errorf("session %s: %w", id, noSessionError{session.ErrNone})
	}
	info, err := l.Show(ctx, id)
	switch {
	case errors.Is(err, public.ErrNotFound):
		info = &report.Session{}
	case err != nil && !force:
		return report.Removed{}, fmt.Errorf("remove session %s: %w", id, err)
	case err != nil:
		info = &report.Session{}
	case info.State == session.StateInUse:
		return report.Removed{}, fmt.Errorf("remove session %s: %w: a process runs it; stop that first", id, public.ErrSessionBusy)
	case session.IsOpen(info.State) && !force:
		return report.Removed{}, fmt.Errorf("remove session %s: %w: turn %d is open; go on with it, or force the removal", id, public.ErrSessionBusy, info.Turns)
	}
	_, err = os.Stat(filepath.Join(l.dirOf(id), "sandboxes", string(id)))
	workspace := err == nil
	if err := removal.Tree(l.dirOf(id)); err != nil {
		return report.Removed{}, fmt.Errorf("remove session %s: %w; some of it may be left: remove it again", id, err)
	}
	return report.Removed{Events: info.Messages, Results: info.Results, Bodies: info.Bodies, Workspace: workspace}, nil
}

func (l LocalSessions) dirOf(id protocol.SessionID) string { return filepath.Join(l.dir, string(id)) }

// measure returns a session with the size of its directory, and when a message was stored last, or
// it was made.
func (l LocalSessions) measure(id protocol.SessionID) report.Session {
	var size int64
	var changed time.Time
	_ = filepath.WalkDir(l.dirOf(id), func(path string, entry fs.DirEntry, err error) error {
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
	if made, err := os.Stat(l.dirOf(id)); err == nil && changed.IsZero() {
		changed = made.ModTime()
	}
	return report.Session{SessionID: id, UpdatedAt: changed, DiskBytes: size}
}

// messageBlock is the extension of the server's files that have messages.
const messageBlock = ".blk"
