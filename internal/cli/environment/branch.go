package environment

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"

	"github.com/toolfleet/toolfleet/internal/inplace"
	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/internal/sandbox/process"
	"github.com/toolfleet/toolfleet/internal/session"
	"github.com/toolfleet/toolfleet/internal/system/regular"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	internal "github.com/toolfleet/toolfleet/internal/worker"
	"github.com/toolfleet/toolfleet/internal/worker/sandboxes"
	"github.com/toolfleet/toolfleet/internal/workspace/backup"
	public "github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// InPlace returns the directory in which a session works in place; ok is false if it has a
// workspace of its own.
func (l *Local) InPlace(id protocol.SessionID) (dir string, ok bool) {
	content, err := regular.Read(workspaceFile(l.location.data(id), id), maxWorkspaceFile)
	return strings.TrimSuffix(string(content), "\n"), err == nil
}

// Compare is [public.Sessions.Compare], also for sessions that work in place. It waits for calls of
// other processes in their directories.
func (l *Local) Compare(ctx context.Context, id, other protocol.SessionID, warn func(string)) (text string, err error) {
	files, err := session.OpenFiles(ctx, l.fleet, protocol.DefaultPool)
	if err != nil {
		return "", err
	}
	files.InPlace = l.InPlace
	dir, in := l.InPlace(id)
	if !in {
		dir, _ = l.InPlace(other)
	}
	err = inplace.Change(ctx, dir, "session diff", id, warn, func() (err error) {
		text, err = files.Compare(ctx, id, other)
		return err
	})
	return text, err
}

// Fork is [public.Sessions.Fork]. A fork has a workspace of its own. The fork of a session that
// works in place gets a copy of the directory as it was at the end of the turn, if that is stored,
// else as it is now, also if its conversation ends earlier. warn gets a sentence about that, and
// about calls of other processes that it waits for.
func (l *Local) Fork(ctx context.Context, from protocol.SessionID, at public.At, to protocol.SessionID, warn func(string)) (turns int, err error) {
	own := l.location.data(to)
	box := filepath.Join(own, "sandboxes", string(to))
	if l.location.own {
		own = box
	}
	_, missing := os.Stat(own)
	made := missing != nil
	defer func() {
		if err != nil && made && !errors.Is(err, loop.ErrUncompleted) {
			turns, err = 0, errors.Join(err, os.RemoveAll(own))
		}
	}()
	// Without it the next turn would not know that the fork has a workspace of its own.
	if err = os.MkdirAll(ownWorkspace(l.location.data(to), to), 0o700); err != nil {
		return 0, fmt.Errorf("fork session %s: %w", from, err)
	}
	if dir, in := l.InPlace(from); !in {
		turns, err = l.Sessions("").Fork(ctx, from, at, to)
	} else {
		note := "" // what the fork's files are, if it is made
		if at != (public.At{}) {
			here := l.InPlaceFiles(from)
			switch then, err := here.fill(ctx, at); {
			case err == nil:
				defer func() { _ = os.RemoveAll(then) }() // a temporary copy
				dir = then
				note = fmt.Sprintf("the fork gets the files that were in %s at the end of turn %d", here.Dir, at.Turn)
			case !errors.Is(err, codes.ErrNotFound):
				return 0, err
			default:
				note = fmt.Sprintf("only the conversation goes back, not the files: the fork gets the files that are in %s now (%s)", here.Dir,
					strings.TrimSuffix(err.Error(), backup.ForkInstead))
			}
		}
		err = inplace.Change(ctx, dir, "session fork", from, warn, func() error {
			files, err := session.OpenFiles(ctx, l.fleet, protocol.DefaultPool)
			if err == nil {
				turns, err = files.ForkDirectory(ctx, l.fleet.Journal, from, dir, session.At(at), to)
			}
			return err
		})
		if err == nil && note != "" {
			warn(note)
		}
	}
	return turns, err
}

// Fork forks the session of this environment as it is now, as [Local.Fork] does.
func (e *Environment) Fork(ctx context.Context, to protocol.SessionID) (turns int, err error) {
	o := &e.options
	if o.Flags.Nats != "" {
		return e.Client.Sessions("").Fork(ctx, o.ID, public.At{}, to)
	}
	here := &Local{e.Client, e.Fleet, e.location}
	return here.Fork(ctx, o.ID, public.At{}, to, o.Warn)
}

// Work starts a worker that changes the workspaces of a session and its forks, and runs no command:
// it refuses to start if calls wait that a killed process has left, which belong to the next turn
// of their session. The caller holds the session.
func (l *Local) Work(ctx context.Context, id protocol.SessionID) error {
	if err := session.Idle(ctx, l.fleet, l.Pool(ctx, id)); err != nil {
		return err
	}
	return l.work(ctx, l.owner(ctx, id))
}

func (l *Local) work(ctx context.Context, id protocol.SessionID) error {
	inPlace := func(sandbox string) (string, bool) { return l.InPlace(protocol.SessionID(sandbox)) }
	pool := l.location.pool(id)
	if !l.location.own {
		l.fleet.Origin = origin(id)
		l.fleet.EndPool(ctx, pool)
	}
	_, err := l.fleet.StartWorker(ctx, internal.Options{
		Options: lane.Options{Pool: pool, Slots: 1, Linger: -1},
		Settings: sandboxes.Settings{
			Driver: unprotected{process.New(nil)}, Caps: isolation.Caps{Driver: process.Name, Protect: true}, Workspace: inPlace, CacheBytes: math.MaxInt64,
		},
		Data: l.location.data(id), Alone: true,
	})
	return err
}

// WorkAs closes l, and opens its location with the worker that o describes, which runs commands,
// too. The caller does not hold the session, and calls done.
func (l *Local) WorkAs(ctx context.Context, o Options) (opened *Local, done func(), err error) {
	if err := session.Idle(ctx, l.fleet, l.Pool(ctx, o.ID)); err != nil {
		return nil, nil, err
	}
	_ = l.Close() // nothing of it is left to lose
	o.Workspace, _ = l.InPlace(o.ID)
	if l.location.own {
		o.Flags.Data = l.location.dir
	}
	_, env, err := Open(ctx, o)
	if err != nil {
		return nil, nil, err
	}
	return &Local{env.Client, env.Fleet, l.location}, func() { env.Close(nil) }, nil
}

// unprotected opens sandboxes in which no command runs, so that nothing has to be kept from
// changing protected paths but a merge, which leaves them.
type unprotected struct{ isolation.Driver }

// Open implements [isolation.Driver].
func (u unprotected) Open(ctx context.Context, spec isolation.Spec) (sandbox.Sandbox, error) {
	spec.Protection = isolation.Protection{}
	return u.Driver.Open(ctx, spec)
}
