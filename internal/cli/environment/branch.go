package environment

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/toolfleet/toolfleet/internal/inplace"
	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/internal/sandbox/process"
	"github.com/toolfleet/toolfleet/internal/session"
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
func (d *LocalDirectory) InPlace(id protocol.SessionID) (dir string, ok bool) {
	content, err := os.ReadFile(workspaceFile(d.data, id))
	return strings.TrimSuffix(string(content), "\n"), err == nil
}

// Compare is [public.Sessions.Compare], also for sessions that work in place. It waits for calls of
// other processes in their directories.
func (d *LocalDirectory) Compare(ctx context.Context, id, other protocol.SessionID, warn func(string)) (text string, err error) {
	files, err := session.OpenFiles(ctx, d.fleet, protocol.DefaultPool)
	if err != nil {
		return "", err
	}
	files.InPlace = d.InPlace
	dir, in := d.InPlace(id)
	if !in {
		dir, _ = d.InPlace(other)
	}
	err = inplace.Change(ctx, dir, "session diff", id, warn, func() (err error) {
		text, err = files.Compare(ctx, id, other)
		return err
	})
	return text, err
}

// Fork is [public.Sessions.Fork]. A fork has a workspace of its own in the same data directory. The
// fork of a session that works in place gets a copy of the directory as it was at the end of the
// turn, if that is stored, else as it is now, also if its conversation ends earlier. warn gets a
// sentence about that, and about calls of other processes that it waits for.
func (d *LocalDirectory) Fork(ctx context.Context, from protocol.SessionID, at public.At, to protocol.SessionID, warn func(string)) (turns int, err error) {
	own, box := filepath.Join(filepath.Dir(d.data), string(to)), filepath.Join(d.data, "sandboxes", string(to))
	err = os.Mkdir(own, 0o700)
	made := err == nil
	if _, of := dataOf(filepath.Dir(d.data), to); errors.Is(err, fs.ErrExist) && string(of) == filepath.Base(d.data) {
		err = nil // of a fork that was interrupted, maybe
	}
	if err != nil {
		return 0, fmt.Errorf("fork session %s: %w", from, err)
	}
	defer func() {
		if err != nil && made && !errors.Is(err, loop.ErrUncompleted) {
			turns, err = 0, errors.Join(err, os.RemoveAll(own), os.RemoveAll(box))
		}
	}()
	err = errors.Join(
		os.WriteFile(filepath.Join(own, originFile), []byte(filepath.Base(d.data)+"\n"), 0o600),
		// Without it the next turn would not know that the fork has a workspace of its own.
		os.MkdirAll(filepath.Join(box, "workspace"), 0o700))
	if err != nil {
		return 0, fmt.Errorf("fork session %s: %w", from, err)
	}
	if dir, in := d.InPlace(from); !in {
		turns, err = d.Sessions("").Fork(ctx, from, at, to)
	} else {
		note := "" // what the fork's files are, if it is made
		if at != (public.At{}) {
			here := d.InPlaceFiles(from)
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
			files, err := session.OpenFiles(ctx, d.fleet, protocol.DefaultPool)
			if err == nil {
				turns, err = files.ForkDirectory(ctx, d.fleet.Journal, from, dir, session.At(at), to)
			}
			return err
		})
		if err == nil && note != "" {
			warn(note)
		}
	}
	return turns, err
}

// Fork forks the session of this environment as it is now, as [LocalDirectory.Fork] does.
func (e *Environment) Fork(ctx context.Context, to protocol.SessionID) (turns int, err error) {
	o := &e.options
	switch {
	case o.Flags.Nats != "":
		return e.Client.Sessions("").Fork(ctx, o.ID, public.At{}, to)
	case o.Flags.Data != "":
		return 0, errors.New("sessions in a --data directory are in no list, so a fork could not be found again")
	default:
		here := &LocalDirectory{e.Client, e.Fleet, e.Data}
		return here.Fork(ctx, o.ID, public.At{}, to, o.Warn)
	}
}

// Has reports whether the directory is that of a session: its own, a fork or a sub-agent.
func (d *LocalDirectory) Has(ctx context.Context, id protocol.SessionID) (bool, error) {
	if _, of := dataOf(filepath.Dir(d.data), id); string(of) == filepath.Base(d.data) {
		return true, nil
	}
	ids, err := d.Sessions("").IDs(ctx)
	return slices.Contains(ids, id), err
}

// Work starts a worker that changes workspaces, and runs no command: it refuses to start if calls
// wait that a killed process has left, which belong to the next turn of their session.
func (d *LocalDirectory) Work(ctx context.Context) error {
	if err := session.Idle(ctx, d.fleet, protocol.DefaultPool); err != nil {
		return err
	}
	inPlace := func(sandbox string) (string, bool) { return d.InPlace(protocol.SessionID(sandbox)) }
	_, err := d.fleet.StartWorker(ctx, internal.Options{
		Options: lane.Options{Slots: 1, Linger: -1},
		Settings: sandboxes.Settings{
			Driver: unprotected{process.New(nil)}, Caps: isolation.Caps{Driver: process.Name, Protect: true}, Workspace: inPlace, CacheBytes: math.MaxInt64,
		},
		Data: d.data, Alone: true,
	})
	return err
}

// WorkAs closes d, and opens its directory with the worker that o describes, which runs commands,
// too. The caller calls done.
func (d *LocalDirectory) WorkAs(ctx context.Context, o Options) (opened *LocalDirectory, done func(), err error) {
	if err := session.Idle(ctx, d.fleet, protocol.DefaultPool); err != nil {
		return nil, nil, err
	}
	_ = d.Close() // nothing of it is left to lose
	o.Workspace, _ = d.InPlace(o.ID)
	o.Flags.Data = d.data
	_, env, err := Open(ctx, o)
	if err != nil {
		return nil, nil, err
	}
	return &LocalDirectory{env.Client, env.Fleet, env.Data}, func() { env.Close(nil) }, nil
}

// unprotected opens sandboxes in which no command runs, so that nothing has to be kept from
// changing protected paths but a merge, which leaves them.
type unprotected struct{ isolation.Driver }

// Open implements [isolation.Driver].
func (u unprotected) Open(ctx context.Context, spec isolation.Spec) (sandbox.Sandbox, error) {
	spec.Protection = isolation.Protection{}
	return u.Driver.Open(ctx, spec)
}
