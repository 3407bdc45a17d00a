package environment

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"

	"github.com/toolfleet/toolfleet/internal/cli"
	"github.com/toolfleet/toolfleet/internal/inplace"
	"github.com/toolfleet/toolfleet/internal/inplace/gitguard"
	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/internal/sandbox/process"
	"github.com/toolfleet/toolfleet/internal/sandbox/snapshot"
	"github.com/toolfleet/toolfleet/internal/session"
	"github.com/toolfleet/toolfleet/internal/system/regular"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	internal "github.com/toolfleet/toolfleet/internal/worker"
	"github.com/toolfleet/toolfleet/internal/worker/sandboxes"
	"github.com/toolfleet/toolfleet/internal/workspace"
	"github.com/toolfleet/toolfleet/internal/workspace/backup"
	"github.com/toolfleet/toolfleet/internal/workspace/transfer"
	public "github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/fleet/report"
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

// Beginning is the Turn of the point before the first turn.
const Beginning = -1

// InPlaceFiles are the files of a session that works in place, as a conversation has stored them at
// the ends of turns.
type InPlaceFiles struct {
	Dir    string // where the session works
	states *backup.States
	data   string
	id     protocol.SessionID
}

// InPlaceFiles returns the stored files of a session that works in place; nil if it has a workspace
// of its own.
func (l *Local) InPlaceFiles(id protocol.SessionID) *InPlaceFiles {
	dir, in := l.InPlace(id)
	if !in {
		return nil
	}
	data := l.location.data(id)
	return &InPlaceFiles{dir, backup.Open(dir, backup.Folder(data, id)), data, id}
}

// Turns are the turns whose ends are stored.
func (f *InPlaceFiles) Turns() []int { return f.states.Turns() }

// At returns the state at the end of a turn; the zero At is the one that was stored last.
func (f *InPlaceFiles) At(point public.At) (state backup.State, err error) {
	switch {
	case point.Call != "":
		err = f.states.None("files are stored at the ends of turns, not of calls: name one as \"turn N\"")
	case point.Turn != 0:
		state, err = f.states.At(max(point.Turn, 0))
	default:
		state, err = f.states.Last()
	}
	return state, f.about(err)
}

// NoState is an error about what is not stored of the session. It names what is.
func (f *InPlaceFiles) NoState(what string) error { return f.about(f.states.None(what)) }

func (f *InPlaceFiles) about(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("session %s works in place in %s: %w", f.id, f.Dir, err)
}

// tree returns the files of a state as those of a workspace.
func (f *InPlaceFiles) tree(ctx context.Context, state backup.State) (snapshot.Tree, snapshot.Bodies, error) {
	files, bodies, err := f.states.Files(ctx, state)
	return workspace.TreeOf(files), bodies, f.about(err)
}

// List is [public.Sessions.Files].
func (f *InPlaceFiles) List(ctx context.Context, point public.At) ([]report.File, error) {
	state, err := f.At(point)
	if err != nil {
		return nil, err
	}
	tree, _, err := f.tree(ctx, state)
	return session.ListOf(tree), err
}

// Read is [public.Sessions.ReadFile].
func (f *InPlaceFiles) Read(ctx context.Context, path string, point public.At) ([]byte, error) {
	state, err := f.At(point)
	if err != nil {
		return nil, err
	}
	tree, bodies, err := f.tree(ctx, state)
	if err != nil {
		return nil, err
	}
	return session.ReadOf(ctx, bodies, tree, path)
}

// Diff returns what has changed from the beginning of a turn to its end.
func (f *InPlaceFiles) Diff(ctx context.Context, turn int) (string, error) {
	end, err := f.At(public.At{Turn: turn})
	if err != nil {
		return "", err
	}
	begin, err := f.states.Before(turn)
	if err != nil {
		return "", f.about(err)
	}
	before, _, err := f.tree(ctx, begin)
	if err != nil {
		return "", err
	}
	after, bodies, err := f.tree(ctx, end)
	if err != nil {
		return "", err
	}
	return session.Difference(ctx, bodies, f.id, before, after)
}

// Pull is [public.Sessions.Pull].
func (f *InPlaceFiles) Pull(ctx context.Context, dir string, point public.At) (report.Pulled, error) {
	state, err := f.At(point)
	if err != nil {
		return report.Pulled{}, err
	}
	if here, err := os.Stat(f.Dir); err == nil {
		if there, err := os.Stat(dir); err == nil && os.SameFile(here, there) {
			return report.Pulled{}, cli.Usagef("DIR %s: session %s works there; coordinator session restore %s --at \"turn N\" goes back there", dir, f.id, f.id)
		}
	}
	var base *backup.State
	var protect []string
	if entries, err := os.ReadDir(dir); err != nil {
		return report.Pulled{}, err
	} else if len(entries) > 0 { // it gets only what the session has changed
		first, err := f.states.First()
		if err != nil {
			return report.Pulled{}, f.about(err)
		}
		places, err := gitguard.Protected(ctx, dir)
		if err != nil {
			return report.Pulled{}, err
		}
		base, protect = &first, places.Protect
	}
	changes, err := f.states.Pull(ctx, state, base, dir, protect)
	return transfer.Pulled(dir, changes), f.about(err)
}

// Restore makes the directory what it was at a point; last is the session's last turn.
// What a person has changed since the end of that turn stays, and is in Conflicts where the session
// has changed it, too. If that end is not stored, because a process was lost, the present is stored
// as the end, and all of it is restored. It waits for calls of other processes in the directory.
func (f *InPlaceFiles) Restore(ctx context.Context, point public.At, last int, warn func(string)) (changes snapshot.Changes, err error) {
	to, err := f.At(point)
	if err != nil {
		return changes, err
	}
	places, err := gitguard.Protected(ctx, f.Dir)
	if err != nil {
		return changes, err
	}
	err = inplace.Change(ctx, f.Dir, "session restore", f.id, warn, func() (err error) {
		base, ok := f.states.Left(last)
		if !ok {
			base = f.states.Save(ctx, last, backup.End)
		}
		if changes, err = f.states.Restore(ctx, to, &base, places.Protect); err == nil {
			err = f.states.NoteRestored(last, to)
		}
		return err
	})
	return changes, f.about(err)
}

// fill writes the files at the end of a turn into a new directory, which the caller removes.
func (f *InPlaceFiles) fill(ctx context.Context, point public.At) (dir string, err error) {
	state, err := f.At(point)
	if err != nil {
		return "", err
	}
	if dir, err = os.MkdirTemp(f.data, "fork-"); err != nil {
		return "", err
	}
	if _, err = f.states.Pull(ctx, state, nil, dir, nil); err != nil {
		_ = os.RemoveAll(dir)
	}
	return dir, f.about(err)
}
