package environment

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/gofrs/flock"
	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolfleet/toolfleet/internal/cli"
	"github.com/toolfleet/toolfleet/internal/fleet"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/natsio/shared"
	"github.com/toolfleet/toolfleet/internal/session"
	"github.com/toolfleet/toolfleet/internal/system"
	"github.com/toolfleet/toolfleet/internal/system/pause"
	"github.com/toolfleet/toolfleet/internal/system/regular"
	"github.com/toolfleet/toolfleet/internal/wire"
	public "github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/fleet/report"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// location is where this machine has sessions: the fleet that the processes of its user share (see
// package shared), or the directory of --data, whose server is inside the process.
//
// In the shared fleet each session has a directory of its own for what workers of this machine have
// of it, and a pool of its own: a process that runs a session, or changes it, holds the lock in
// that directory, and its worker is the only one of the pool. So calls run with the flags of the
// process that sent them. Sub-agents use the directory and the pool of their session.
type location struct {
	dir     string
	own     bool // of --data
	running bool // starts no server of the shared fleet
}

// locationOf returns the location of sessions without --nats.
func locationOf(data string) (location, error) {
	if data == "" {
		dir, err := cli.StateDir("local")
		return location{dir: dir}, err
	}
	dir, err := filepath.Abs(data)
	return location{dir: dir, own: true}, err
}

// data is the directory of a session.
func (p location) data(id protocol.SessionID) string {
	if p.own {
		return p.dir
	}
	return filepath.Join(p.dir, "sessions", string(id))
}

// pool is whose worker runs the calls of a session.
func (p location) pool(id protocol.SessionID) protocol.Pool {
	if p.own {
		return protocol.DefaultPool
	}
	const length = 26 // with the rest what a pool may have
	sum := sha256.Sum256([]byte(id))
	return protocol.Pool(localPools + hex.EncodeToString(sum[:])[:length])
}

// localPools begins the names of the pools of sessions.
const localPools = "local-"

// RemoveUnusedPools removes the pools of sessions that no process runs from the server of the
// shared fleet: a process that was killed leaves its pool, which a later process of the session
// makes again.
func RemoveUnusedPools(ctx context.Context, dir string, nc *nats.Conn) error {
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	pools, err := natsio.Pools(ctx, js, protocol.DefaultFleet)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil
	}
	p, held := location{dir: dir}, map[protocol.Pool]bool{}
	entries, _ := os.ReadDir(filepath.Join(dir, "sessions")) // none were run yet
	for _, entry := range entries {
		id := protocol.SessionID(entry.Name())
		held[p.pool(id)] = p.held(id)
	}
	errs := []error{err}
	for _, pool := range pools {
		if strings.HasPrefix(string(pool), localPools) && !held[pool] {
			errs = append(errs, natsio.RemovePool(ctx, js, protocol.DefaultFleet, pool))
		}
	}
	return errors.Join(errs...)
}

// Serve is the command line that has this program serve the shared fleet; it is hidden.
const Serve = "__serve-local"

// options add to those of a client how the location is reached.
func (p location) options(o *public.Options, failed func(error)) {
	if p.own {
		o.Data = p.dir
		return
	}
	o.Shared = &shared.Server{Dir: p.dir, Running: p.running, Command: []string{os.Args[0], Serve, p.dir}, Failed: failed}
}

// has reports whether a session has a directory of its own.
func (p location) has(id protocol.SessionID) bool {
	_, err := os.Stat(p.data(id)) //nolint:gosec // an id has no separators
	return err == nil
}

const (
	// sessionLock is the file that the process locks that runs a session, with its process id.
	sessionLock = "lock"
	maxLine     = 1 << 10
	// lockTime is how long the lock may be held by processes that only look whether it is held.
	lockTime  = 500 * time.Millisecond
	lockPause = 10 * time.Millisecond
)

// BusyError is the [public.ErrSessionBusy] of a session that another process of this machine runs.
type BusyError struct {
	Session protocol.SessionID
	Holder  string // the process
}

func (e *BusyError) Error() string { return e.Busy() + "; wait for its end, or stop it" }

// Busy says who runs the session.
func (e *BusyError) Busy() string {
	return fmt.Sprintf("session %s: %v: %s runs it, or changes it", e.Session, public.ErrSessionBusy, e.Holder)
}

func (*BusyError) Unwrap() error { return public.ErrSessionBusy }

// hold makes the directory of a session, and has this process alone run or change the session until
// it calls release. The error is a [BusyError] if another process does.
func (p location) hold(ctx context.Context, id protocol.SessionID) (release func(), err error) {
	if p.own {
		return func() {}, nil
	}
	if err := shared.Own(p.dir); err != nil {
		return nil, err
	}
	path := filepath.Join(p.data(id), sessionLock)
	for {
		if err := os.MkdirAll(p.data(id), 0o700); err != nil {
			return nil, fmt.Errorf("session %s: %w", id, err)
		}
		lock := flock.New(path)
		waiting, cancel := context.WithTimeout(ctx, lockTime)
		_, err := lock.TryLockContext(waiting, lockPause)
		cancel()
		switch {
		case errors.Is(err, fs.ErrNotExist): // the session was removed meanwhile
			continue
		case errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil:
			return nil, &BusyError{id, p.holder(id)}
		case err != nil:
			return nil, fmt.Errorf("session %s: %w", id, err)
		}
		mine, err := lock.Stat()
		there, statErr := os.Stat(path)
		if err == nil && statErr == nil && os.SameFile(mine, there) {
			_ = os.WriteFile(path, fmt.Append(nil, os.Getpid(), "\n"), 0o600) // else it has no name
			return func() { _ = lock.Unlock() }, nil                          // it ends with the process anyway
		}
		_ = lock.Unlock() // a removed file
	}
}

// holder names the process that runs a session.
func (p location) holder(id protocol.SessionID) string {
	content, err := regular.Read(filepath.Join(p.data(id), sessionLock), maxLine)
	if pid := strings.TrimSpace(string(content)); err == nil && pid != "" {
		return "process " + pid + " of this machine"
	}
	return "another process of this machine"
}

// held reports whether a process runs a session, or changes it.
func (p location) held(id protocol.SessionID) bool {
	return !p.own && shared.Locked(filepath.Join(p.data(id), sessionLock))
}

// earlier is an error about a session of an earlier version, which had a data directory with a
// server of its own; nil for any other one.
func (p location) earlier(id protocol.SessionID) error {
	dir, err := cli.StateDir(filepath.Join("sessions", string(id)))
	if err != nil || p.own || p.has(id) {
		return nil //nolint:nilerr // without a home there are none
	}
	if content, err := regular.Read(filepath.Join(dir, "origin"), maxLine); err == nil { // a fork was in the directory of its origin
		dir = filepath.Join(filepath.Dir(dir), filepath.Base(strings.TrimSpace(string(content))))
	}
	if _, err := os.Stat(filepath.Join(dir, fleet.ServerDir)); err != nil {
		return nil //nolint:nilerr // see above
	}
	word := cli.ShellWord(dir)
	return cli.Usagef("session %s is of an earlier version, and has a data directory of its own: use it there with --data %s, or copy its conversation: coordinator session export --data %s %s | coordinator session import --as %s -",
		id, word, word, id, id)
}

// Earlier is an error about a session of an earlier version; nil for any other one.
func Earlier(id protocol.SessionID) error {
	p, err := locationOf("")
	if err != nil {
		return nil //nolint:nilerr // there are none
	}
	return p.earlier(id)
}

// EarlierSessions says how many sessions of an earlier version there are, and where; "" without
// any.
func EarlierSessions() string {
	dir, err := cli.StateDir("sessions")
	if err != nil {
		return ""
	}
	found, _ := filepath.Glob(filepath.Join(dir, "*", fleet.ServerDir))
	if len(found) == 0 {
		return ""
	}
	return fmt.Sprintf("%d data directories of an earlier version are in %s, each named after its session, and are not listed here; --data DIR shows and continues one",
		len(found), dir)
}

// Local are the sessions of a location.
type Local struct {
	*public.Client

	fleet    *fleet.Fleet
	location location
}

// OpenLocal opens the sessions of this machine, or those of a --data directory; "" is none. With
// running set it is an error if their server does not run.
func OpenLocal(ctx context.Context, c *Connection, data string, running bool, logger *slog.Logger) (l *Local, err error) {
	l = &Local{}
	if l.location, err = locationOf(data); err != nil {
		return nil, err
	}
	l.location.running = running
	if _, err := os.Stat(filepath.Join(l.location.dir, fleet.ServerDir)); l.location.own && err != nil { // and looking makes none
		return nil, cli.Usagef("--data %s: has no sessions: %v", data, err)
	}
	o := c.options("", "coordinator session", logger, func(f *fleet.Fleet) { l.fleet = f })
	l.location.options(&o, nil)
	l.Client, err = public.Connect(ctx, o)
	return l, err
}

// Hold has this process alone change some sessions until it calls release.
func (l *Local) Hold(ctx context.Context, ids ...protocol.SessionID) (release func(), err error) {
	var all []func()
	release = func() {
		for _, one := range all {
			one()
		}
	}
	ids = slices.Clone(ids)
	for i, id := range ids {
		ids[i] = l.owner(ctx, id)
	}
	slices.Sort(ids) // so that two processes do not wait for each other
	for _, id := range slices.Compact(ids) {
		if err := l.Known(ctx, id); err != nil { // and a name that is no session's makes none
			release()
			return nil, err
		}
		one, err := l.location.hold(ctx, id)
		if err != nil {
			release()
			return nil, err
		}
		all = append(all, one)
	}
	return release, nil
}

// Known returns an error that wraps [public.ErrNotFound] if there is no such session.
func (l *Local) Known(ctx context.Context, id protocol.SessionID) error {
	if !l.location.own && l.location.has(id) {
		return nil
	}
	_, err := l.Sessions("").Show(ctx, id)
	return err
}

// owner is the session whose process runs a session: itself, or that of a sub-agent.
func (l *Local) owner(ctx context.Context, id protocol.SessionID) protocol.SessionID {
	for of := id; !l.location.own; {
		if l.location.has(of) {
			return of
		}
		info, err := l.Sessions("").Show(ctx, of)
		if err != nil || info.Parent == "" || info.Parent == of {
			break
		}
		of = info.Parent
	}
	return id
}

// Pool is the pool that has the sandbox of a session.
func (l *Local) Pool(ctx context.Context, id protocol.SessionID) protocol.Pool {
	return l.location.pool(l.owner(ctx, id))
}

// Make makes the directory of a session that is not run here.
func (l *Local) Make(id protocol.SessionID) error {
	if l.location.own {
		return nil
	}
	return os.MkdirAll(l.location.data(id), 0o700) //nolint:gosec // an id has no separators
}

// Import is [public.Sessions.Import]. A session that is not made leaves no directory.
func (l *Local) Import(ctx context.Context, events []loop.Event, id protocol.SessionID) (turns int, err error) {
	made := !l.location.has(id)
	if err := l.Make(id); err != nil {
		return 0, err
	}
	turns, err = l.Sessions("").Import(ctx, events, id)
	if err != nil && made && !l.location.own && !errors.Is(err, loop.ErrUncompleted) {
		_ = os.Remove(l.location.data(id)) // another process may use it
	}
	return turns, err
}

// without are the sessions that have a directory and no journal: those of single calls, and those
// that were begun and nothing came of. The one that changed last is first.
func (l *Local) without(ids []protocol.SessionID) (list []report.Session) {
	if l.location.own {
		return nil
	}
	journaled := make(map[protocol.SessionID]bool, len(ids))
	for _, id := range ids {
		journaled[id] = true
	}
	entries, _ := os.ReadDir(filepath.Join(l.location.dir, "sessions")) // none were run yet
	for _, entry := range entries {
		id, err := protocol.ParseSessionID(entry.Name())
		if err != nil || journaled[id] {
			continue
		}
		info, err := os.Stat(filepath.Join(l.location.data(id), sessionLock)) // written whenever a process holds it
		if err != nil {
			info, err = entry.Info()
		}
		if err == nil { // else it is removed now
			list = append(list, report.Session{SessionID: id, UpdatedAt: info.ModTime()})
		}
	}
	slices.SortStableFunc(list, byChange)
	return list
}

func byChange(a, b report.Session) int {
	return cmp.Or(b.UpdatedAt.Compare(a.UpdatedAt), cmp.Compare(a.SessionID, b.SessionID))
}

// IDs is [public.Sessions.IDs]. Sessions without a journal are last.
func (l *Local) IDs(ctx context.Context) ([]protocol.SessionID, error) {
	ids, err := l.Sessions("").IDs(ctx)
	for _, info := range l.without(ids) {
		ids = append(ids, info.SessionID)
	}
	return ids, err
}

// Last returns the session that changed last of those that no process runs, which a person began;
// "" when there is none.
func (l *Local) Last(ctx context.Context) (protocol.SessionID, error) {
	ids, err := l.IDs(ctx)
	for _, id := range ids {
		if l.location.own || l.location.has(id) && !l.location.held(id) {
			return id, err
		}
	}
	return "", err
}

// List is [public.Sessions.List].
func (l *Local) List(ctx context.Context, limit int) (list []report.Session, leftOut int, err error) {
	list, leftOut, err = l.Sessions("").List(ctx, limit)
	if err != nil {
		return nil, 0, err
	}
	ids, err := l.Sessions("").IDs(ctx)
	if err != nil {
		return nil, 0, err
	}
	shown := len(list)
	for _, info := range l.without(ids) {
		if !slices.ContainsFunc(list[:shown], func(s report.Session) bool { return s.SessionID == info.SessionID }) { // with a workspace
			list = append(list, info)
		}
	}
	slices.SortStableFunc(list, byChange)
	if len(list) > limit {
		leftOut, list = leftOut+len(list)-limit, list[:limit]
	}
	for i := range list {
		l.see(&list[i])
	}
	return list, leftOut, nil
}

// see adds to an open session whether a process runs it, or was lost.
func (l *Local) see(info *report.Session) {
	if info.State != report.StateOpen {
		return
	}
	if info.State = report.StateLost; l.location.held(info.SessionID) || info.Parent != "" && !l.location.has(info.SessionID) && l.location.held(info.Parent) {
		info.State = report.StateInUse
	}
}

// Show is [public.Sessions.Show].
func (l *Local) Show(ctx context.Context, id protocol.SessionID) (*report.Session, error) {
	info, err := l.Sessions("").Show(ctx, id)
	if err != nil {
		return nil, err
	}
	l.see(info)
	if l.location.own || l.location.has(id) {
		info.DiskBytes = sizeOf(l.location.data(id))
	}
	if here := l.InPlaceFiles(id); here != nil {
		info.StoredTurns = here.Turns()
	} else if _, err := os.Stat(ownWorkspace(l.location.data(id), id)); err == nil {
		info.Workspace = "" // of a fork, which has that of its origin in its journal
	}
	return info, nil
}

// sizeOf is the size of all files in a directory, as far as they can be read.
func sizeOf(dir string) (bytes int64) {
	_ = filepath.WalkDir(dir, func(_ string, entry fs.DirEntry, err error) error { //nolint:gosec // an id has no separators
		if err != nil || !entry.Type().IsRegular() {
			return nil //nolint:nilerr // what cannot be read, or goes away, is not counted
		}
		if info, err := entry.Info(); err == nil {
			bytes += info.Size()
		}
		return nil
	})
	return bytes
}

// stopSubject is where a process of this machine is asked to stop the turn of a session.
func stopSubject(f *fleet.Fleet, id protocol.SessionID) string {
	return string(f.Name) + ".stop." + string(id)
}

// Stoppable has [Local.Cancel] of any process stop a turn that this process runs, until end.
func (e *Environment) Stoppable(stop func()) (end func(), err error) {
	if !e.shared() {
		return func() {}, nil
	}
	asked, err := e.Fleet.NC.Subscribe(stopSubject(e.Fleet, e.options.ID), func(m *nats.Msg) {
		stop()
		_ = m.Respond(nil) // who asked sees in the journal whether the turn ends
	})
	return func() { _ = asked.Unsubscribe() }, err // the connection may be gone
}

// Cancel is [public.Sessions.Cancel]. A process of this machine that runs the turn stops it.
func (l *Local) Cancel(ctx context.Context, id protocol.SessionID) ([]protocol.CallID, error) {
	ids, err := l.Sessions("").Cancel(ctx, id)
	if !errors.Is(err, session.ErrElsewhere) {
		return ids, err
	}
	for asked := (*loop.Event)(nil); ; {
		log, logErr := l.Sessions("").Log(ctx, id)
		if logErr != nil {
			return nil, logErr
		}
		switch open := loop.StateOf(log.Events).Turn; {
		case asked != nil && (open == nil || open.Turn != asked.Turn):
			return []protocol.CallID{asked.CallID}, nil
		case open == nil:
			return nil, nil
		case asked == nil:
			if _, none := l.fleet.NC.RequestWithContext(ctx, stopSubject(l.fleet, id), nil); none != nil {
				return nil, err
			}
			asked = open
		case !pause.For(ctx, pause.Retry):
			return nil, fmt.Errorf("session %s: turn %d was asked to stop, and has not ended yet: %w", id, open.Turn, context.Cause(ctx))
		}
	}
}

// Remove is [public.Sessions.Remove]. With a session go its sub-agents and its directory. The error
// wraps [public.ErrNotFound] if there is no such session.
func (l *Local) Remove(ctx context.Context, id protocol.SessionID, force bool) (removed report.Removed, err error) {
	release, err := l.Hold(ctx, id)
	if err != nil {
		return removed, err
	}
	defer release()
	owner := l.owner(ctx, id)
	pool := l.location.pool(owner)
	if session.Idle(ctx, l.fleet, pool) == nil { // else what waits is cancelled first
		if err := l.work(ctx, owner); err != nil {
			return removed, err
		}
	}
	remove := func(ctx context.Context, one protocol.SessionID, o session.Options) (removed report.Removed, err error) {
		o.Pool = pool
		if removed, err = session.Remove(ctx, l.fleet, one, o); err != nil {
			return removed, err
		}
		if err := system.RemoveTree(filepath.Join(l.location.data(owner), "sandboxes", string(one))); err != nil {
			return removed, fmt.Errorf("remove session %s: %w; some of it may be left: remove it again", one, err)
		}
		return removed, nil
	}
	removed, err = remove(ctx, id, session.Options{Force: force, Before: func(ctx context.Context) error {
		for _, agent := range slices.Backward(l.withAgents(ctx, id, "")[1:]) { // which are found by the journals of their parents
			if _, err := remove(ctx, agent, session.Options{Force: true}); err != nil {
				return err
			}
		}
		return nil
	}})
	if err != nil {
		return removed, err
	}
	if !l.location.own && l.location.has(id) {
		_ = l.Close() // with the worker, which uses the directory
		if err := system.RemoveTree(l.location.data(id)); err != nil {
			return removed, fmt.Errorf("remove session %s: %w; some of it may be left: remove it again", id, err)
		}
	}
	return removed, nil
}

// withAgents returns a session and its sub-agents with their own, each behind its parent; none if
// its journal does not name the parent that is given: a call of a fork, or of an import, has the id
// of another session's sub-agent, or of any session.
func (l *Local) withAgents(ctx context.Context, id, parent protocol.SessionID) []protocol.SessionID {
	history, _ := l.fleet.Journal.Load(ctx, id) // of one that is removed in part, too
	if parent != "" && (len(history.Events) == 0 || history.Events[0].Parent == nil || history.Events[0].Parent.SessionID != parent) {
		return nil
	}
	all := []protocol.SessionID{id}
	for i := range history.Events {
		if e := &history.Events[i]; e.Type == loop.EventToolCall && e.Name == wire.AgentTool && e.CallID != "" {
			all = append(all, l.withAgents(ctx, protocol.SessionID(e.CallID), id)...)
		}
	}
	return all
}

// origin names what runs the calls of a session in this process: the lock of the session says that
// a process before has ended.
func origin(id protocol.SessionID) string { return "session-" + string(id) + "#" + uuid.NewString() }
