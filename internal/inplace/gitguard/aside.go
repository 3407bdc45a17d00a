package gitguard

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/toolfleet/toolfleet/internal/system"
	"github.com/toolfleet/toolfleet/internal/system/regular"
)

// asideSuffix ends the name of a file that was set aside. git runs no hook of such a name.
const asideSuffix = ".set-aside"

// maxAside is how many versions of one file have a number.
const maxAside = 100

// Aside sets aside what new repositories in a directory have git run: those that were not there
// when [NewAside] looked. Their settings that name programs, servers or other files are removed
// from their files, and a copy stays next to them; their hooks are renamed, also those in files of
// the repository if a setting of the person says that git runs them. It is safe for concurrent use.
//
// A record on disk has what was there at first. What this process cannot complete, because it is
// killed or because of an error, the next one completes that uses the directory.
type Aside struct {
	mu      sync.Mutex
	dir     string
	git     *reader
	before  []identity // directories of git's; a command may move one, and make another at its path
	keep    bool       // nothing is set aside
	earlier []string   // set aside for processes that have ended
	record  *held      // nil for the completion of a record
}

// NewAside completes what earlier processes did not set aside, looks which repositories a directory
// has, and stores that. nil without an error means that there is no git on this host.
func NewAside(ctx context.Context, dir string) (*Aside, error) {
	earlier, err := complete(ctx, dir, false)
	if err != nil {
		return nil, err
	}
	a, err := newAside(ctx, dir, nil, false)
	if a != nil {
		a.earlier = earlier.moved
	}
	return a, err
}

// newAside is NewAside after the completion. The record has what a watch saw.
func newAside(ctx context.Context, dir string, watch *Watch, keep bool) (*Aside, error) {
	git, err := newReader(dir)
	if err != nil {
		return nil, nil //nolint:nilnil,nilerr // see NewAside
	}
	if watch != nil {
		git = watch.git // which knows the directories
	}
	f, err := find(ctx, dir, git)
	if err != nil {
		return nil, err
	}
	a := &Aside{dir: f.dir, git: git, keep: keep}
	for _, r := range f.repositories {
		for _, dir := range directories(&r) {
			if info, err := os.Stat(dir); err == nil {
				a.before = append(a.before, identityOf(info, dir))
			}
		}
	}
	stored := record{Directory: f.dir, ID: identityOf(f.info, f.dir), Born: bornAt(f.dir), Keep: keep, Before: a.before}
	if watch != nil {
		stored.Runs = []recordedRun{}
		for finding, content := range watch.before {
			stored.Runs = append(stored.Runs, recordedRun{finding, []byte(content)})
		}
	}
	a.record, err = stored.store(ctx)
	return a, err
}

// Close ends the use of a directory, in which nothing of this process runs any more. It sets aside
// what there is, and removes the record unless there is an error.
func (a *Aside) Close(ctx context.Context) (moved []string, err error) {
	if a == nil {
		return nil, nil
	}
	if _, err := os.Stat(a.dir); missing(err) { // removed, or moved: then the record shows it where it is
		return nil, a.record.leave()
	}
	if moved, err = a.Move(ctx); err != nil {
		return moved, errors.Join(err, a.record.leave())
	}
	return moved, a.record.remove()
}

// directories are those of git's that a repository has, without symbolic links.
func directories(r *repository) []string {
	return slices.Compact([]string{followed(r.gitDir), followed(r.common)})
}

// Move sets aside what there is by now. It returns what was set aside, such as
// "lib/.git/config: core.fsmonitor" and "lib/.git/hooks/pre-commit", by now and for processes that
// have ended. What it cannot look at, or set aside, is an error, and hides nothing else.
func (a *Aside) Move(ctx context.Context) (moved []string, err error) {
	if a == nil {
		return nil, nil
	}
	earlier, earlierErr := complete(ctx, a.dir, false)
	moved, err = a.move(ctx)
	a.mu.Lock()
	defer a.mu.Unlock()
	moved = slices.Concat(a.earlier, earlier.moved, moved)
	a.earlier = nil
	return moved, errors.Join(earlierErr, err)
}

func (a *Aside) move(ctx context.Context) (moved []string, err error) {
	if a.keep {
		return nil, nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	f, findErr := find(ctx, a.dir, a.git)
	if errors.Is(findErr, fs.ErrPermission) {
		reopen(ctx, a.dir)
		f, findErr = find(ctx, a.dir, a.git)
	}
	if f == nil {
		return nil, findErr
	}
	root, err := os.OpenRoot(f.dir)
	if err != nil {
		return nil, errors.Join(findErr, err)
	}
	defer func() { err = errors.Join(findErr, err, root.Close()) }()
	m := &mover{survey: &survey{found: f}, root: root}
	for _, r := range f.repositories {
		isNew := false
		for _, dir := range directories(&r) {
			info, statErr := os.Stat(dir)
			if missing(statErr) || !system.Within(f.dir, dir) || statErr == nil && slices.Contains(a.before, identityOf(info, dir)) {
				continue
			}
			isNew = true
			if moveErr := m.directory(ctx, &r, dir); moveErr != nil && err == nil {
				err = fmt.Errorf("set aside what git runs in %s: %w", dir, moveErr)
			}
		}
		if isNew {
			for _, dir := range f.hooksOfPerson(&r) {
				name := f.name(dir)
				if moveErr := m.hooksAt(root, name, name); moveErr != nil && err == nil {
					err = fmt.Errorf("set aside hooks in %s: %w", dir, moveErr)
				}
			}
		}
	}
	return m.moved, err
}

// What a user needs to change what is in a directory, and a file.
const (
	userDirectory fs.FileMode = 0o700
	userFile      fs.FileMode = 0o600
)

// allow gives this user rights that a command may have taken away. Who cannot do that finds out
// when the rights are used.
func allow(in *os.Root, name string, rights fs.FileMode) {
	if info, err := in.Lstat(name); err == nil && (info.IsDir() || info.Mode().IsRegular()) && info.Mode()&rights != rights {
		_ = in.Chmod(name, info.Mode()|rights)
	}
}

// reopen lets this user list and enter a directory and those in it, as at the start: git uses a
// repository in a directory that can be entered and not listed. What stays closed, [find] reports.
func reopen(ctx context.Context, dir string) {
	if info, err := os.Stat(dir); err == nil && info.Mode()&userDirectory != userDirectory {
		_ = os.Chmod(dir, info.Mode()|userDirectory)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return
	}
	defer func() { _ = root.Close() }() // it was only read
	entries := 0
	var walk func(name string, level int)
	walk = func(name string, level int) {
		const look = 0o500
		if info, err := root.Lstat(name); err == nil && info.Mode()&look != look {
			allow(root, name, userDirectory)
		}
		at, err := root.OpenFile(name, os.O_RDONLY|system.NonBlock|onlyDirectory, 0)
		if err != nil {
			return
		}
		all, _ := at.ReadDir(-1)
		_ = at.Close()
		if entries += len(all); entries > maxEntries || level > maxLevels || ctx.Err() != nil {
			return
		}
		for _, entry := range all {
			if entry.IsDir() {
				walk(filepath.Join(name, entry.Name()), level+1)
			}
		}
	}
	walk(".", 0)
}

// mover sets aside what it finds in a directory of git's.
type mover struct {
	*survey

	root  *os.Root
	moved []string
}

func (m *mover) directory(ctx context.Context, r *repository, path string) error {
	name, err := filepath.Rel(m.dir, path)
	if err != nil {
		return err
	}
	allow(m.root, name, userDirectory)
	dir, err := m.root.OpenRoot(name)
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }() // what was written there has its own errors
	for _, file := range []string{"config", "config.worktree"} {
		if err := m.settingsOf(ctx, r, dir, filepath.Join(name, file), file); err != nil {
			return err
		}
	}
	return m.hooksAt(dir, "hooks", filepath.Join(name, "hooks"))
}

// settingsOf sets the settings of a file aside that have git run something.
func (m *mover) settingsOf(ctx context.Context, r *repository, dir *os.Root, shown, file string) error {
	allow(dir, file, userFile)
	info, err := dir.Lstat(file)
	if missing(err) {
		return nil
	}
	var content []byte
	if err == nil && info.Mode().IsRegular() {
		content, err = readSettings(dir, file)
	}
	switch {
	case err == nil && !info.Mode().IsRegular(), errors.Is(err, regular.ErrNot), errors.Is(err, regular.ErrLarge):
		m.moved = append(m.moved, shown) // a link, too: git makes none, and it may lead to another user's
		return rename(dir, file)
	case err != nil:
		return err
	}
	entries, err := m.git.list(ctx, content)
	if errors.Is(err, errRefused) { // another git may read it
		m.moved = append(m.moved, shown)
		return rename(dir, file)
	}
	if err != nil {
		return err
	}
	changes, has := values{}, values{}
	for _, e := range entries {
		has[e.key] = append(has[e.key], e.value)
	}
	for _, e := range entries {
		if m.runsBy(r, setting{entry: e}) {
			changes[e.key] = slices.DeleteFunc(slices.Clone(has[e.key]), func(value string) bool { return m.runsBy(r, setting{entry: entry{e.key, value}}) })
		}
	}
	if len(changes) == 0 {
		return nil
	}
	m.moved = append(m.moved, changes.named(shown)...)
	left, err := edit(ctx, m.dir, content, changes)
	if err == nil {
		entries, err = m.git.list(ctx, left)
	}
	if err != nil || slices.ContainsFunc(entries, func(e entry) bool { return m.runsBy(r, setting{entry: e}) }) {
		return rename(dir, file) // what git cannot take out is taken out whole
	}
	return replace(dir, file, content, left)
}

// hooksAt sets the hooks of a directory aside.
func (m *mover) hooksAt(in *os.Root, name, shown string) error {
	info, err := in.Lstat(name)
	if missing(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if !info.IsDir() { // a link leads to files that may be somebody else's
		m.moved = append(m.moved, shown)
		return rename(in, name)
	}
	allow(in, name, userDirectory)
	hooks, err := in.OpenRoot(name)
	if err != nil {
		return err
	}
	defer func() { _ = hooks.Close() }() // as above
	entries, err := fs.ReadDir(hooks.FS(), ".")
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if name := entry.Name(); runsIn(hooks.Name(), name) {
			m.moved = append(m.moved, filepath.Join(shown, name))
			if err := rename(hooks, name); err != nil {
				return err
			}
		}
	}
	return nil
}

// hookDirs are the directories in which git finds hooks because of a value of core.hooksPath. A
// relative one is below the worktree, and below the repository for hooks of a push to it. What is
// in husky's directory _ runs the files next to it.
func hookDirs(r *repository, value string) []string {
	dirs := []string{expand(r.dir, value)}
	if r.gitDir != "" {
		dirs = append(dirs, expand(r.gitDir, value))
	}
	for _, dir := range dirs {
		if filepath.Base(dir) == "_" {
			dirs = append(dirs, filepath.Dir(dir))
		}
	}
	slices.Sort(dirs)
	return slices.Compact(dirs)
}

// hooksOfPerson are the directories below the guarded one in which git finds hooks of a new
// repository because of the person's settings.
func (f *found) hooksOfPerson(r *repository) (dirs []string) {
	for _, set := range f.person {
		if set.key != "core.hookspath" || filepath.IsAbs(expand("", set.value)) { // one of all repositories is no new one's
			continue
		}
		for _, dir := range hookDirs(r, set.value) {
			if _, here := f.inside(dir); here {
				dirs = append(dirs, dir)
			}
		}
	}
	return dirs
}

// runsIn reports whether git runs a file of a directory as a hook, itself or through husky.
func runsIn(dir, name string) bool {
	info, err := os.Stat(filepath.Join(dir, name))
	if err != nil || filepath.Ext(name) == asideSuffix {
		return false
	}
	return runs(name, info) || info.Mode().IsRegular() && exists(filepath.Join(dir, "_", name))
}

// runs reports whether git runs a file as a hook.
func runs(name string, info fs.FileInfo) bool {
	return info.Mode().IsRegular() && info.Mode()&0o111 != 0 && filepath.Ext(name) != ".sample"
}

// free is a name that nothing has, for what is set aside.
func free(dir *os.Root, name string) string {
	for n := range maxAside {
		at := name + asideSuffix
		if n > 0 {
			at = fmt.Sprintf("%s.%d%s", name, n+1, asideSuffix)
		}
		if _, err := dir.Lstat(at); missing(err) {
			return at
		}
	}
	return name + "." + rand.Text() + asideSuffix
}

// rename sets a whole file aside.
func rename(dir *os.Root, name string) error {
	return dir.Rename(name, free(dir, name))
}

// replace sets a file with this content aside, and has another one in its place.
func replace(dir *os.Root, name string, content, left []byte) error {
	at := free(dir, name)
	fresh := strings.TrimSuffix(at, asideSuffix) + ".new"
	owner, err := dir.Stat(".")
	if err != nil {
		return err
	}
	for file, content := range map[string][]byte{at: content, fresh: left} {
		if err := dir.Remove(file); err != nil && !missing(err) {
			return err
		}
		if err := writeNew(dir, file, content); err != nil {
			return err
		}
		if err := system.OwnerOf(owner).GiveIn(dir, file); err != nil {
			return err
		}
	}
	return dir.Rename(fresh, name)
}

func writeNew(dir *os.Root, name string, content []byte) error {
	file, err := dir.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	_, err = file.Write(content)
	return errors.Join(err, file.Close())
}

// aside collects what was set aside in a directory of git's.
func (s *survey) aside(dir string) {
	if _, here := s.inside(filepath.Join(dir, "config")); !here {
		return
	}
	for _, sub := range []string{dir, filepath.Join(dir, "hooks")} {
		entries, _ := os.ReadDir(sub) // there may be none
		for _, entry := range entries {
			if path := filepath.Join(sub, entry.Name()); filepath.Ext(path) == asideSuffix {
				s.add(path, "was set aside, so that git does not run what it names", digest(path))
			}
		}
	}
}
