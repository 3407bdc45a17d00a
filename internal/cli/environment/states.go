package environment

import (
	"context"
	"fmt"
	"os"

	"github.com/toolfleet/toolfleet/internal/cli"
	"github.com/toolfleet/toolfleet/internal/inplace"
	"github.com/toolfleet/toolfleet/internal/inplace/gitguard"
	"github.com/toolfleet/toolfleet/internal/sandbox/snapshot"
	"github.com/toolfleet/toolfleet/internal/session"
	"github.com/toolfleet/toolfleet/internal/workspace"
	"github.com/toolfleet/toolfleet/internal/workspace/backup"
	"github.com/toolfleet/toolfleet/internal/workspace/transfer"
	public "github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/fleet/report"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

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
