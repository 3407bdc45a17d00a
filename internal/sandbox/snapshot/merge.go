package snapshot

import (
	"context"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"

	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// parent returns the directory that a path is in, "." for the root.
func parent(name string) string { return path.Dir(name) }

// merge is the second half of [Sync]: all contents are fetched, now the directory changes.
type merge struct {
	root   *os.Root
	owner  owner
	local  *local
	base   Manifest
	theirs Manifest
	staged map[string]string      // files of theirs that differ from base
	modes  map[string]fs.FileMode // of directories, to be set in the end

	protect []string

	changes   Changes
	conflicts map[string]bool
}

// run makes the changes, and leaves directories with the right modes in any case.
func (m *merge) run(ctx context.Context) error {
	err := m.apply(ctx)
	return errors.Join(err, m.local.relock(m.modes))
}

// apply removes from the leaves to the root, then makes from the root to the leaves.
func (m *merge) apply(ctx context.Context) error {
	for _, name := range slices.Backward(slices.Sorted(maps.Keys(m.base))) {
		if _, there := m.theirs[name]; !there {
			if err := m.remove(ctx, name); err != nil {
				return err
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(m.theirs)) {
		if m.theirs[name] != m.base[name] {
			if err := m.write(ctx, name); err != nil {
				return err
			}
		}
	}
	// Only now it shows which directories there are to put them into.
	for _, name := range m.changes.Conflicts {
		if err := m.keepTheirs(ctx, name); err != nil {
			return err
		}
	}
	return nil
}

// remove removes a path that the tree no longer has.
func (m *merge) remove(ctx context.Context, name string) error {
	mine, err := m.local.at(ctx, name)
	switch {
	case err != nil:
		return err
	case mine == Entry{}:
		return nil
	case guarded(m.protect, name, mine.Type):
		m.changes.Protected = append(m.changes.Protected, name)
		return nil
	case mine != m.base[name]:
		m.conflict(name)
		return nil
	default:
	}
	err = m.root.Remove(name)
	if mine.Type == protocol.TypeDir && notEmpty(err) {
		return nil
	}
	if err == nil {
		m.changes.Removed = append(m.changes.Removed, name)
	}
	return err
}

// write changes a path to its state in the tree, if that differs from base.
func (m *merge) write(ctx context.Context, name string) error {
	want := m.theirs[name]
	mine, err := m.local.at(ctx, name)
	switch {
	case err != nil:
		return err
	case mine == want:
		return nil
	case guarded(m.protect, name, want.Type):
		m.changes.Protected = append(m.changes.Protected, name)
		return nil
	case mine != m.base[name]:
		m.conflict(name)
		return nil
	default:
	}
	room, err := m.makeRoom(name, mine, want)
	if err != nil {
		return err
	}
	if !room {
		m.conflict(name)
		return nil
	}
	if err := m.put(name, want); err != nil {
		return err
	}
	m.changes.Written = append(m.changes.Written, name)
	return nil
}

// makeRoom prepares the place for an entry: the directories above it, and nothing there
// that a rename would not replace. It returns false when something stands in the way.
func (m *merge) makeRoom(name string, mine, want Entry) (bool, error) {
	if ok, err := m.makeParents(parent(name)); err != nil || !ok {
		return false, err
	}
	if (mine == Entry{}) || (mine.Type == protocol.TypeDir) == (want.Type == protocol.TypeDir) {
		return true, nil
	}
	err := m.root.Remove(name)
	if notEmpty(err) {
		return false, nil
	}
	return err == nil, err
}

// makeParents makes the directories up to dir that are missing. It returns false when
// something else stands there.
func (m *merge) makeParents(dir string) (bool, error) {
	for {
		stands, err := m.local.standing(dir)
		if err != nil || stands == dir {
			return err == nil, err
		}
		next := dir
		for parent(next) != stands {
			next = parent(next)
		}
		if m.conflicts[next] {
			return false, nil
		}
		if err := m.mkdir(next, m.theirs[next]); err != nil {
			if errors.Is(err, fs.ErrExist) {
				return false, nil
			}
			return false, err
		}
		m.changes.Written = append(m.changes.Written, next)
	}
}

// put makes an entry where nothing, or what can be replaced by a rename, is.
func (m *merge) put(name string, want Entry) error {
	switch want.Type {
	case protocol.TypeDir:
		return m.directory(name, want)
	case protocol.TypeSymlink:
		return m.link(name, want)
	default:
		return m.root.Rename(m.staged[name], name)
	}
}

func (m *merge) directory(name string, want Entry) error {
	err := m.mkdir(name, want)
	if errors.Is(err, fs.ErrExist) {
		m.modes[name] = want.Mode
		return nil
	}
	return err
}

// mkdir makes a directory that only we may use, until run ends.
func (m *merge) mkdir(name string, want Entry) error {
	if err := m.root.Mkdir(name, 0o700); err != nil {
		return err
	}
	m.modes[name] = want.Mode
	return m.owner.adoptName(m.root, name)
}

func (m *merge) link(name string, want Entry) error {
	temp := path.Join(parent(name), tempName())
	if err := m.root.Symlink(want.Target, temp); err != nil {
		return err
	}
	err := m.owner.adoptName(m.root, temp)
	if err == nil {
		err = m.root.Rename(temp, name)
	}
	if err != nil {
		return errors.Join(err, m.root.Remove(temp))
	}
	return nil
}
