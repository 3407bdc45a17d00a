package snapshot

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/toolfleet/toolfleet/internal/modeltext/prose"
	"github.com/toolfleet/toolfleet/internal/system"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Changes says what [Sync] did. Every list is of paths, sorted; a path that was
// what it should be already is in none.
type Changes struct {
	// Written were made or changed; directories that were made for them count.
	Written []string
	// Merged are those of Written that have the changes of both sides ([Merge]).
	Merged []string
	// Removed are no longer there.
	Removed []string
	// Conflicts changed on both sides and were left alone.
	Conflicts []string
	// Protected were to be changed and are in [Options].Protect: they were left alone.
	Protected []string
	// Theirs are the files and links that hold what the tree has for conflicts.
	Theirs []string
	// Base is what the tree has: the base of the next Sync of the two.
	Base Manifest
}

// Sync brings into root what changed in tree, which has passed [Tree.Validate], since base, which
// is what root contained when the two were last the same; nil is nothing. The table in the package
// comment says what happens to a path. Nothing is lost: of a file or link in conflict, the tree's
// version is put next to it as NAME.toolfleet-theirs, with a number when that exists and is
// another; when there is no directory for it, into the nearest one above, with "-" for "/". A
// directory that goes but still holds something stays.
//
// All contents are fetched before anything changes, so one that is missing or damaged changes
// nothing; until then they take space in a directory .toolfleet-*.tmp below root. Each file changes
// by rename. After another error, or a crash, part of the changes are made: the same Sync again
// makes the rest. A crash leaves the temporary directory behind, and a Sync removes one that is a
// day old. A concurrent writer can lose a write to a path at the moment when Sync changes it.
func Sync(ctx context.Context, root *os.Root, base Manifest, tree Tree, bodies Bodies, options *Options) (Changes, error) {
	changes, err := syncTree(ctx, root, base, tree, bodies, options.withDefaults())
	if err != nil {
		return changes, fmt.Errorf("sync %s: %w", root.Name(), err)
	}
	return changes, nil
}

func syncTree(ctx context.Context, root *os.Root, base Manifest, tree Tree, bodies Bodies, opts Options) (c Changes, err error) {
	for name := range base {
		if err := checkName(name); err != nil {
			return Changes{}, fmt.Errorf("base: %w", err)
		}
	}
	to, err := findOwner(root)
	if err != nil {
		return Changes{}, err
	}
	all, err := tree.Manifest(ctx, bodies)
	if err != nil {
		return Changes{}, err
	}
	theirs := withoutSkipped(all, opts.Skip)
	if err := removeStages(root); err != nil {
		return Changes{}, err
	}
	st := &stage{root: root, owner: to}
	defer st.remove(&err)
	staged, err := st.fetch(ctx, base, theirs, tree, bodies)
	if err != nil {
		return Changes{}, err
	}
	m := &merge{
		root: root, owner: to, local: &local{root: root, buf: make([]byte, copyBuffer), locked: map[string]fs.FileMode{}},
		base: withoutSkipped(base, opts.Skip), theirs: theirs, staged: staged, protect: opts.Protect,
		modes: map[string]fs.FileMode{}, conflicts: map[string]bool{},
	}
	err = m.run(ctx)
	m.changes.Base = theirs
	for _, list := range []*[]string{&m.changes.Written, &m.changes.Removed, &m.changes.Conflicts, &m.changes.Theirs, &m.changes.Protected} {
		slices.Sort(*list)
		*list = slices.Compact(*list)
	}
	return m.changes, err
}

// withoutSkipped returns a manifest without the paths that are skipped.
func withoutSkipped(m Manifest, skip func(string, bool) bool) Manifest {
	kept := Manifest{}
	out := map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(m)) {
		isDir := m[name].Type == protocol.TypeDir
		if out[parent(name)] || skip(name, isDir) {
			out[name] = true
			continue
		}
		kept[name] = m[name]
	}
	return kept
}

// merge is the second half of [Sync]: all contents are fetched, now the directory changes.
type merge struct {
	root   *os.Root
	owner  system.Owner
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
	return m.owner.GiveIn(m.root, name)
}

func (m *merge) link(name string, want Entry) error {
	temp := path.Join(parent(name), system.TempName())
	if err := m.root.Symlink(want.Target, temp); err != nil {
		return err
	}
	err := m.owner.GiveIn(m.root, temp)
	if err == nil {
		err = m.root.Rename(temp, name)
	}
	if err != nil {
		return errors.Join(err, m.root.Remove(temp))
	}
	return nil
}

const (
	// theirsSuffix marks the tree's content of a file in conflict.
	theirsSuffix = ".toolfleet-theirs"
	// maxTheirs is how many different ones are kept of one file.
	maxTheirs = 1000
)

func (m *merge) conflict(name string) {
	m.conflicts[name] = true
	m.changes.Conflicts = append(m.changes.Conflicts, name)
}

// keepTheirs puts a file or link of the tree that is in conflict next to its path. One that is
// there already with the same content will do.
func (m *merge) keepTheirs(ctx context.Context, name string) error {
	want := m.theirs[name]
	if want.Type != protocol.TypeFile && want.Type != protocol.TypeSymlink {
		return nil
	}
	dir, err := m.local.standing(parent(name))
	if err != nil {
		return err
	}
	rest := strings.TrimPrefix(name, dir+"/")
	for n := 1; n <= maxTheirs; n++ {
		beside := path.Join(dir, theirsName(rest, n))
		mine, err := m.local.at(ctx, beside)
		if err == nil && mine == (Entry{}) {
			if mine = want; want.Type == protocol.TypeSymlink {
				err = m.link(beside, want)
			} else {
				err = m.place(m.staged[name], beside)
			}
		}
		switch {
		case errors.Is(err, fs.ErrExist):
			continue
		case err != nil:
			return err
		case mine.Type == want.Type && mine.SHA256 == want.SHA256 && mine.Target == want.Target:
			m.changes.Theirs = append(m.changes.Theirs, beside)
			return nil
		default:
		}
	}
	return fmt.Errorf("%q: there are %d other versions beside it: remove them", name, maxTheirs)
}

// place puts a staged file at a path where nothing was seen. A link replaces nothing that
// came there since; where there are no links, a rename must do.
func (m *merge) place(staged, name string) error {
	err := m.root.Link(staged, name)
	if err == nil || errors.Is(err, fs.ErrExist) {
		return err
	}
	return m.root.Rename(staged, name)
}

// theirsName returns the n-th name for a version of a file.
func theirsName(rest string, n int) string {
	suffix := theirsSuffix
	if n > 1 {
		suffix += fmt.Sprintf(".%d", n)
	}
	base := strings.ReplaceAll(rest, "/", "-")
	base = base[:min(len(base), maxName-len(suffix))]
	return base[:prose.Border(base)] + suffix
}
