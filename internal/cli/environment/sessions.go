package environment

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/toolfleet/toolfleet/internal/cli"
	"github.com/toolfleet/toolfleet/internal/fleet"
	"github.com/toolfleet/toolfleet/internal/natsio/embedded"
	"github.com/toolfleet/toolfleet/internal/sandbox/removal"
	"github.com/toolfleet/toolfleet/internal/session"
	public "github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/fleet/report"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// LocalSessions are the sessions of this machine that ran without a fleet. Each has a data
// directory, named after it, with a server of its own. Its sub-agents and its forks are sessions of
// the same directory. Those of a directory that a process uses are [public.ErrSessionBusy], and one
// that does not exist is [public.ErrNotFound].
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

// List is [public.Sessions.List]. It opens the data directories that changed last, at most limit.
func (l LocalSessions) List(ctx context.Context, limit int) (list []report.Session, leftOut int, err error) {
	all, err := l.directories()
	if err != nil {
		return nil, 0, err
	}
	for i, d := range all {
		if i >= limit {
			leftOut += 1 + len(d.forks)
			continue
		}
		found, err := l.sessionsIn(ctx, d)
		if err != nil {
			return nil, 0, err
		}
		list = append(list, found...)
	}
	slices.SortStableFunc(list, func(a, b report.Session) int {
		return cmp.Or(b.UpdatedAt.Compare(a.UpdatedAt), cmp.Compare(a.SessionID, b.SessionID))
	})
	shown := min(len(list), limit)
	return list[:shown], leftOut + len(list) - shown, nil
}

// sessionsIn describes the sessions of a data directory, sub-agents and forks included.
func (l LocalSessions) sessionsIn(ctx context.Context, d directory) (list []report.Session, err error) {
	own := report.Session{SessionID: d.id, UpdatedAt: d.changed, DiskBytes: d.bytes}
	opened, err := l.Open(ctx, d.id)
	switch {
	case errors.Is(err, public.ErrSessionBusy):
		own.State = report.StateInUse
		list = []report.Session{own}
		for _, fork := range d.forks {
			list = append(list, report.Session{SessionID: fork, UpdatedAt: d.changed, State: report.StateInUse})
		}
		return list, nil
	case errors.Is(err, public.ErrNotFound): // it was begun, and nothing came of it
		return []report.Session{own}, nil
	case err != nil:
		return nil, err
	}
	defer func() { _ = opened.Close() }()
	list, _, err = opened.Sessions("").List(ctx, math.MaxInt)
	if at := slices.IndexFunc(list, func(s report.Session) bool { return s.SessionID == d.id }); at >= 0 {
		list[at].DiskBytes = d.bytes
	} else {
		list = append(list, own)
	}
	return list, err
}

// IDs is [public.Sessions.IDs], without sub-agents. It opens only directories with forks.
func (l LocalSessions) IDs(ctx context.Context) (ids []protocol.SessionID, err error) {
	all, err := l.directories()
	if err != nil {
		return nil, err
	}
	for _, d := range all {
		own := append([]protocol.SessionID{d.id}, d.forks...)
		if len(d.forks) > 0 {
			opened, err := l.Open(ctx, d.id)
			var changed []protocol.SessionID
			if err == nil {
				changed, err = opened.Sessions("").IDs(ctx)
				_ = opened.Close() // it was only read
			}
			if err != nil && !errors.Is(err, public.ErrSessionBusy) {
				return nil, err
			}
			slices.SortStableFunc(own, func(a, b protocol.SessionID) int { return slices.Index(changed, a) - slices.Index(changed, b) })
		}
		ids = append(ids, own...)
	}
	return ids, nil
}

// Agents returns the ids of sub-agents, as far as no process uses their directories.
func (l LocalSessions) Agents(ctx context.Context) (ids []protocol.SessionID, err error) {
	all, err := l.directories()
	for _, d := range all {
		opened, openErr := l.Open(ctx, d.id)
		if openErr != nil {
			continue // it is in use, or has none
		}
		found, idsErr := opened.Sessions("").IDs(ctx)
		err = errors.Join(err, idsErr, opened.Close())
		ids = append(ids, slices.DeleteFunc(found, func(id protocol.SessionID) bool { return id == d.id || slices.Contains(d.forks, id) })...)
	}
	return ids, err
}

// Last returns the session that changed last of those that no process uses: one with a turn, or
// else one without. It is "" when there is none.
func (l LocalSessions) Last(ctx context.Context) (protocol.SessionID, error) {
	ids, err := l.IDs(ctx)
	var begun protocol.SessionID // and nothing came of it, or single calls alone did
	for _, id := range ids {
		info, err := l.Show(ctx, id)
		switch none := errors.Is(err, public.ErrNotFound); {
		case err != nil && !none:
			return "", err
		case !none && info.State == report.StateInUse:
		case !none && info.Turns > 0:
			return info.SessionID, nil
		default:
			begun = cmp.Or(begun, id)
		}
	}
	return begun, err
}

// directory is the data directory of a session.
type directory struct {
	id      protocol.SessionID
	forks   []protocol.SessionID // of it and its forks, sorted
	changed time.Time            // when a message was stored last, or it was made
	bytes   int64
}

// originFile is the file that names, in the directory of a fork, the session that has the data
// directory.
const originFile = "origin"

// dataOf returns the data directory of a session below dir, and whose directory that is.
func dataOf(dir string, id protocol.SessionID) (data string, of protocol.SessionID) {
	if content, err := os.ReadFile(filepath.Join(dir, string(id), originFile)); err == nil {
		if origin, err := protocol.ParseSessionID(strings.TrimSpace(string(content))); err == nil {
			id = origin
		}
	}
	return filepath.Join(dir, string(id)), id
}

// owners are the sessions that have a data directory, and their forks.
func (l LocalSessions) owners() (ids []protocol.SessionID, forks map[protocol.SessionID][]protocol.SessionID, err error) {
	entries, err := os.ReadDir(l.dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, nil, err
	}
	forks = map[protocol.SessionID][]protocol.SessionID{}
	for _, entry := range entries {
		id, err := protocol.ParseSessionID(entry.Name())
		if err != nil || !entry.IsDir() {
			continue
		}
		if _, of := dataOf(l.dir, id); of != id {
			forks[of] = append(forks[of], id)
		} else {
			ids = append(ids, id)
		}
	}
	return ids, forks, nil
}

// directories are the data directories, the one that changed last first.
func (l LocalSessions) directories() (all []directory, err error) {
	ids, forks, err := l.owners()
	for _, id := range ids {
		d := l.measure(id)
		d.forks = forks[id]
		all = append(all, d)
	}
	slices.SortStableFunc(all, func(a, b directory) int { return cmp.Or(b.changed.Compare(a.changed), cmp.Compare(a.id, b.id)) })
	return all, err
}

// measure returns the directory of a session with its size.
func (l LocalSessions) measure(id protocol.SessionID) directory {
	d := directory{id: id}
	path := filepath.Join(l.dir, string(id))
	_ = filepath.WalkDir(path, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return nil //nolint:nilerr // what cannot be read, or goes away, is not counted
		}
		info, err := entry.Info()
		if err != nil || !entry.Type().IsRegular() {
			return nil //nolint:nilerr // as above
		}
		d.bytes += info.Size()
		if filepath.Ext(path) == messageBlock && info.ModTime().After(d.changed) {
			d.changed = info.ModTime()
		}
		return nil
	})
	if made, err := os.Stat(path); err == nil && d.changed.IsZero() {
		d.changed = made.ModTime()
	}
	return d
}

// Show is [public.Sessions.Show].
func (l LocalSessions) Show(ctx context.Context, id protocol.SessionID) (*report.Session, error) {
	opened, err := l.Open(ctx, id)
	if errors.Is(err, public.ErrSessionBusy) {
		_, of := dataOf(l.dir, id)
		d := l.measure(of)
		return &report.Session{SessionID: id, UpdatedAt: d.changed, DiskBytes: d.bytes, State: report.StateInUse}, nil
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = opened.Close() }()
	info, err := opened.Sessions("").Show(ctx, id)
	if err != nil {
		return nil, err
	}
	switch _, of := dataOf(l.dir, id); {
	case of != id:
		info.Workspace = "" // that of its origin
	case opened.data == filepath.Join(l.dir, string(id)):
		info.DiskBytes = l.measure(id).bytes
		if here := opened.InPlaceFiles(id); here != nil {
			info.StoredTurns = here.Turns()
		}
	}
	return info, nil
}

// LocalDirectory is an open data directory, with its server.
type LocalDirectory struct {
	*public.Client

	fleet *fleet.Fleet
	data  string
}

// Open opens the data directory that has a session. A sub-agent is looked for in those that no
// process uses.
func (l LocalSessions) Open(ctx context.Context, id protocol.SessionID) (*LocalDirectory, error) {
	data, of := dataOf(l.dir, id)
	if _, err := os.Stat(filepath.Join(l.dir, string(id))); errors.Is(err, fs.ErrNotExist) {
		return l.search(ctx, id)
	}
	if _, err := os.Stat(filepath.Join(data, fleet.ServerDir)); errors.Is(err, fs.ErrNotExist) { // and looking makes none
		return nil, fmt.Errorf("session %s: %w", id, session.ErrNone)
	}
	opened, err := l.start(ctx, data)
	switch {
	case errors.Is(err, embedded.ErrInUse) && of != id:
		return nil, fmt.Errorf("session %s: %w: a process of this machine uses its directory, which is that of session %s", id, public.ErrSessionBusy, of)
	case errors.Is(err, embedded.ErrInUse):
		return nil, fmt.Errorf("session %s: %w: a process of this machine runs it, and alone reads its journal", id, public.ErrSessionBusy)
	case err != nil:
		return nil, fmt.Errorf("session %s: %w", id, err)
	}
	return opened, nil
}

// search opens the data directory that has the journal of a session.
func (l LocalSessions) search(ctx context.Context, id protocol.SessionID) (*LocalDirectory, error) {
	all, err := l.directories()
	if err != nil {
		return nil, err
	}
	none := fmt.Errorf("session %s: %w", id, session.ErrNone)
	for _, d := range all {
		opened, err := l.Open(ctx, d.id)
		if errors.Is(err, public.ErrSessionBusy) {
			none = fmt.Errorf("session %s: %w, unless it is a sub-agent of one that a process runs, such as %s", id, session.ErrNone, d.id)
		}
		if err != nil {
			continue // one that cannot be opened says so itself
		}
		ids, err := opened.Sessions("").IDs(ctx)
		if err == nil && slices.Contains(ids, id) {
			return opened, nil
		}
		if err = errors.Join(err, opened.Close()); err != nil {
			return nil, err
		}
	}
	return nil, none
}

func (l LocalSessions) start(ctx context.Context, data string) (*LocalDirectory, error) {
	d := &LocalDirectory{data: data}
	o := public.Options{Fleet: l.fleet, Data: data, Logger: l.logger}
	o.Client, o.Opened = "coordinator session", func(f *fleet.Fleet) { d.fleet = f }
	var err error
	if d.Client, err = public.Connect(ctx, o); err != nil {
		return nil, err
	}
	return d, nil
}

// Create starts the server of a session that this machine does not have, or whose import was
// interrupted.
func (l LocalSessions) Create(ctx context.Context, id protocol.SessionID) (*LocalDirectory, error) {
	data, of := dataOf(l.dir, id)
	if of != id {
		return nil, fmt.Errorf("session %s exists: give another id", id)
	}
	return l.start(ctx, data)
}

// Remove is [public.Sessions.Remove]. With a session goes its data directory, which has its forks;
// if it has some, that must be forced. Nothing is removed of a directory that a process uses. The
// error wraps [public.ErrNotFound] if there is no such session.
func (l LocalSessions) Remove(ctx context.Context, id protocol.SessionID, force bool) (report.Removed, error) {
	own := filepath.Join(l.dir, string(id))
	_, missing := os.Stat(own)
	if _, of := dataOf(l.dir, id); of != id || errors.Is(missing, fs.ErrNotExist) {
		return l.removeIn(ctx, id, force)
	}
	_, forks, err := l.owners()
	if err != nil {
		return report.Removed{}, fmt.Errorf("remove session %s: %w", id, err)
	}
	info, err := l.Show(ctx, id)
	switch {
	case errors.Is(err, public.ErrNotFound):
		info = &report.Session{}
	case err != nil && !force:
		return report.Removed{}, fmt.Errorf("remove session %s: %w", id, err)
	case err != nil:
		info = &report.Session{}
	case info.State == report.StateInUse:
		return report.Removed{}, fmt.Errorf("remove session %s: %w: a process runs it; stop that first", id, public.ErrSessionBusy)
	case session.IsOpen(info.State) && !force:
		return report.Removed{}, fmt.Errorf("remove session %s: %w: turn %d is open; continue it, or force the removal", id, public.ErrSessionBusy, info.Turns)
	}
	if len(forks[id]) > 0 && !force {
		return report.Removed{}, fmt.Errorf("remove session %s: %w: its directory has its forks, such as %s: remove them first, or force the removal of all", id, public.ErrSessionBusy, forks[id][0])
	}
	_, err = os.Stat(filepath.Join(own, "sandboxes", string(id)))
	workspace := err == nil
	for _, fork := range append(forks[id], id) {
		if err := removal.Tree(filepath.Join(l.dir, string(fork))); err != nil {
			return report.Removed{}, fmt.Errorf("remove session %s: %w; some of it may be left: remove it again", id, err)
		}
	}
	return report.Removed{Events: info.Messages, Results: info.Results, Bodies: info.Bodies, Workspace: workspace}, nil
}

// removeIn removes a fork or a sub-agent from the data directory of another session.
func (l LocalSessions) removeIn(ctx context.Context, id protocol.SessionID, force bool) (removed report.Removed, err error) {
	opened, err := l.Open(ctx, id)
	if err != nil {
		return removed, err
	}
	defer func() { _ = opened.Close() }()
	if err := opened.Work(ctx); err != nil {
		return removed, fmt.Errorf("remove session %s: %w", id, err)
	}
	if removed, err = opened.Sessions("").Remove(ctx, id, force); err != nil {
		return removed, err
	}
	return removed, errors.Join(removal.Tree(filepath.Join(opened.data, "sandboxes", string(id))), removal.Tree(filepath.Join(l.dir, string(id))))
}

// messageBlock is the extension of the server's files that have messages.
const messageBlock = ".blk"
