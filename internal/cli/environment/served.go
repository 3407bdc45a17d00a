package environment

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gofrs/flock"

	"github.com/toolfleet/toolfleet/internal/cli"
	"github.com/toolfleet/toolfleet/internal/judge"
	"github.com/toolfleet/toolfleet/internal/natsio/shared"
	"github.com/toolfleet/toolfleet/internal/session"
	"github.com/toolfleet/toolfleet/internal/system"
	"github.com/toolfleet/toolfleet/internal/system/regular"
	public "github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/fleet/report"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Served are the sessions of this machine's fleet, as one process serves them over HTTP: it sees
// those of all processes, and its worker runs the calls of those that clients have begun here.
type Served struct {
	*Local

	id        protocol.SessionID // of this process
	workspace string
}

// servedFile is the file of a session that clients over HTTP have begun, with the session of the
// process that served them.
const servedFile = "served"

// Served returns the sessions of this machine; nil if the session is not of the shared fleet: then
// all sessions are those of this process.
func (e *Environment) Served() *Served {
	if !e.shared() {
		return nil
	}
	return &Served{&Local{Client: e.Client, fleet: e.Fleet, location: e.location}, e.options.ID, e.options.Workspace}
}

// mine reports whether this process runs the calls of a session.
func (s *Served) mine(id protocol.SessionID) bool {
	content, err := regular.Read(filepath.Join(s.location.data(id), servedFile), maxLine)
	return id == s.id || err == nil && strings.TrimSpace(string(content)) == string(s.id)
}

// Pool is the pool that has the sandbox of a session.
func (s *Served) Pool(ctx context.Context, id protocol.SessionID) protocol.Pool {
	owner := s.owner(ctx, id)
	if s.mine(owner) {
		owner = s.id
	}
	return s.location.pool(owner)
}

// Use returns the pool that has the sandbox of a session. If there is none it is begun here, or
// without begin the error wraps [public.ErrNotFound]. It wraps [public.ErrSessionBusy] if no
// process runs the calls of the session; and for a turn, if another one does.
func (s *Served) Use(ctx context.Context, id protocol.SessionID, begin, turn bool) (protocol.Pool, error) {
	if _, err := protocol.ParseSessionID(string(id)); err != nil {
		return "", err
	}
	if err := session.May(ctx, s.fleet, judge.See, id); err != nil { // before an answer says anything of it
		if refusal, is := errors.AsType[*judge.RefusalError](err); is && refusal.Hides() {
			err = fmt.Errorf("%w: there is no such session: %s", public.ErrNotFound, id)
		}
		return "", err
	}
	owner := s.owner(ctx, id)
	if s.mine(owner) {
		return s.location.pool(s.id), nil
	}
	switch known := s.begun(judge.With(ctx, judge.Principal{}), id); {
	case errors.Is(known, public.ErrNotFound) && !begin:
		return "", known
	case errors.Is(known, public.ErrNotFound):
		if err := judge.Judge(ctx, judge.Make, judge.Object{Kind: judge.Session, ID: string(id), Owner: judge.Of(ctx).Owner()}); err != nil {
			return "", err
		}
		return s.location.pool(s.id), s.begin(id)
	case known != nil:
		return "", known
	case !s.location.held(owner):
		return "", fmt.Errorf("session %s: %w: the process that ran it is gone, and nothing takes its calls; coordinator chat --session %s continues it",
			id, public.ErrSessionBusy, id)
	case turn:
		return "", fmt.Errorf("session %s: %w: %s runs it; say it there, or wait for its end", id, public.ErrSessionBusy, s.location.holder(owner))
	}
	return s.location.pool(owner), nil
}

// begun is [Local.Known], but for a directory that no process has held and that has no journal: the
// process that made it was killed before it used it, and it is made again.
func (s *Served) begun(ctx context.Context, id protocol.SessionID) error {
	if _, err := os.Stat(filepath.Join(s.location.data(id), sessionLock)); err == nil {
		return nil
	}
	_, err := s.Sessions("").Show(ctx, id)
	return err
}

// begin makes the directory of a session that clients begin here: commands find it, and continue it
// in the workspace of this process.
func (s *Served) begin(id protocol.SessionID) error {
	if err := s.Make(id); err != nil {
		return err
	}
	if s.workspace != "" {
		if err := rememberWorkspace(s.location.data(id), id, s.workspace); err != nil {
			return err
		}
	}
	return regular.Replace(filepath.Join(s.location.data(id), servedFile), []byte(string(s.id)+"\n"))
}

// Remove is [public.Sessions.Remove], also of the directory of a session that clients have begun
// here.
func (s *Served) Remove(ctx context.Context, id protocol.SessionID, force bool) (removed report.Removed, err error) {
	pool, err := s.Use(ctx, id, false, false)
	if errors.Is(err, public.ErrNotFound) { // nothing is left to be removed, or it is hidden
		pool, err = s.location.pool(s.id), nil
	}
	if err == nil {
		removed, err = s.Sessions(pool).Remove(ctx, id, force)
	}
	if err == nil && id != s.id && s.mine(id) {
		err = system.RemoveTree(s.location.data(id))
	}
	return removed, err
}

// Run has this process alone run a turn of a session until release.
func (s *Served) Run(ctx context.Context, id protocol.SessionID) (release func(), err error) {
	return s.location.hold(ctx, s.owner(ctx, id))
}

// List is [Local.List], without sessions that have no owner for a principal of one tenant.
func (s *Served) List(ctx context.Context, limit int) (list []report.Session, leftOut int, err error) {
	if who := judge.Of(ctx); who.Known == judge.ByProcess && who.Tenant == "" {
		return s.Local.List(ctx, limit)
	}
	list, leftOut, err = s.Sessions("").List(ctx, limit)
	for i := range list {
		s.see(&list[i])
	}
	return slices.Clip(list), leftOut, err
}

// Show is [Local.Show].
func (s *Served) Show(ctx context.Context, id protocol.SessionID) (*report.Session, error) {
	info, err := s.Sessions("").Show(ctx, id)
	if err == nil {
		s.see(info)
	}
	return info, err
}

// Alone has this process alone take the turns of this machine's fleet, until end.
func (s *Served) Alone() (end func(), err error) {
	if err := shared.Own(s.location.dir); err != nil {
		return nil, err
	}
	lock := flock.New(filepath.Join(s.location.dir, "http.lock"))
	free, err := lock.TryLock()
	if err != nil {
		return nil, err
	}
	if !free {
		pid, _ := regular.Read(lock.Path(), maxLine) // it may have no name yet
		return nil, cli.Usagef("coordinator http runs already, as process %s, and runs the turns of this machine's sessions: use it, or give --data DIR for a fleet of its own",
			strings.TrimSpace(string(pid)))
	}
	_ = os.WriteFile(lock.Path(), fmt.Append(nil, os.Getpid(), "\n"), 0o600) // else it has no name
	return func() { _ = lock.Unlock() }, nil
}
