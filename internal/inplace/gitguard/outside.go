package gitguard

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/gofrs/flock"

	"github.com/toolfleet/toolfleet/internal/system"
	"github.com/toolfleet/toolfleet/internal/system/regular"
)

// Outside is a repository that has a directory and is not in it.
type Outside struct {
	// NamesBack is set for a linked worktree or a submodule that its repository names, too.
	NamesBack bool
	// Dir is where a person would use the repository: the main worktree of a linked one, the
	// repository around a submodule or a subdirectory.
	Dir string
	// GitDir and Common are set if NamesBack is. GitDir is the directory's own part of the
	// repository. Common is the part that it shares with other worktrees; a submodule shares
	// nothing, so they are the same. Named is how its file .git names GitDir.
	GitDir, Common, Named string

	kind string // "" for a file .git that is of neither kind
}

// FindOutside returns the repository of a directory that is elsewhere; nil where there is none, or
// the directory has it. A directory cannot make itself a linked worktree or a submodule: its
// repository has to name it, too.
func FindOutside(ctx context.Context, dir string) *Outside {
	dir, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return nil
	}
	r, isDir, ok, err := dotGit(dir)
	switch {
	case err != nil:
		return &Outside{Dir: filepath.Join(dir, ".git")}
	case !ok || !isDir && r.gitDir == "": // nothing to git
		if around := enclosing(dir); around != "" {
			return &Outside{Dir: around, kind: "subdirectory"}
		}
		return nil
	case r.named == "" || system.Within(dir, r.gitDir):
		return nil
	case r.common != r.gitDir:
		return linked(filepath.Join(dir, ".git"), &r)
	}
	return submodule(ctx, &r)
}

// enclosing is the directory above that has a repository, or a file that names one; "" for none.
func enclosing(dir string) string {
	for above := filepath.Dir(dir); ; above = filepath.Dir(above) {
		if exists(filepath.Join(above, ".git", "HEAD")) || isFile(filepath.Join(above, ".git")) {
			return above
		}
		if above == filepath.Dir(above) {
			return ""
		}
	}
}

// linked is the repository that the file .git of a linked worktree names.
func linked(link string, r *repository) *Outside {
	o := &Outside{kind: "linked worktree", Dir: strings.TrimSuffix(r.common, "/.git"), GitDir: r.gitDir, Common: r.common, Named: r.named}
	back, err := readLink(filepath.Join(r.gitDir, "gitdir"))
	if err != nil {
		return o
	}
	at, err := filepath.EvalSymlinks(back)
	o.NamesBack = err == nil && at == link && filepath.Dir(filepath.Dir(r.gitDir)) == r.common && isGitDir(r.common)
	return o
}

// submodule is the repository that the file .git of a submodule names.
func submodule(ctx context.Context, r *repository) *Outside {
	o := &Outside{Dir: enclosing(r.dir), GitDir: r.gitDir, Common: r.gitDir, Named: r.named}
	if o.Dir == "" || !strings.Contains(r.gitDir, "/modules/") {
		o.Dir = r.gitDir
		return o
	}
	o.kind = "submodule"
	actual, err := filepath.EvalSymlinks(r.gitDir)
	if err != nil || !isGitDir(actual) {
		return o
	}
	git, err := newReader(r.dir)
	if err != nil {
		return o
	}
	content, err := regular.Read(filepath.Join(actual, "config"), MaxSettings)
	if err != nil {
		return o
	}
	all, err := git.values(ctx, content)
	if _, elsewhere := all["extensions.worktreeconfig"]; err != nil || elsewhere || len(all["core.worktree"]) == 0 {
		return o // core.worktree may stand elsewhere, and holds in the sandbox, too
	}
	named := all["core.worktree"]
	at, err := filepath.EvalSymlinks(absolute(actual, named[len(named)-1]))
	o.NamesBack = err == nil && at == r.dir
	return o
}

// standsForNone is the content of a file commondir that keeps commands from making one. It names
// what git finds without the file. In the sandbox it keeps git from using core.worktree, which is a
// path of the host. [Protected] writes another content, so removing that leaves this file.
const standsForNone = "./\n"

// Reserve returns the places of GitDir that commands must not change, and creates those that are
// missing, so that commands cannot. When the last process that has reserved them calls free, those
// that say nothing are removed. If a process dies before, the next one does that.
func (o *Outside) Reserve(ctx context.Context) (places []string, free func() error, err error) {
	lock := flock.New(o.GitDir, flock.SetFlag(os.O_RDONLY))
	if _, err := lock.TryRLockContext(ctx, lockPause); err != nil {
		return nil, nil, fmt.Errorf("lock the repository: %w", err)
	}
	r := reservation{gitDir: o.GitDir, lock: lock}
	if err := r.reserve(ctx, o); err != nil {
		return nil, nil, errors.Join(err, r.free())
	}
	return r.places, r.free, nil
}

// reservation are the reserved paths of a repository.
type reservation struct {
	gitDir string
	lock   *flock.Flock // of the directory, held shared
	places []string
	stand  []string // those that are removed if they say nothing
}

func (r *reservation) reserve(ctx context.Context, o *Outside) error {
	if o.Common != o.GitDir {
		if err := r.make(filepath.Join(o.Common, "logs"), nil); err != nil {
			return err
		}
		r.places = []string{"commondir", "gitdir"}
	} else {
		for _, name := range []string{"hooks", "info"} {
			if err := r.make(filepath.Join(r.gitDir, name), nil); err != nil {
				return err
			}
		}
		r.places = []string{"config", "hooks", "info"}
		if err := r.standIn("commondir", []byte(standsForNone)); err != nil {
			return err
		}
		if err := r.standIn("worktrees", nil); err != nil {
			return err
		}
	}
	if err := errors.Join(r.standIn("config.worktree", []byte(emptySettings)), r.standIn("modules", nil)); err != nil {
		return err
	}
	named, err := Protected(ctx, r.gitDir) // files that settings name
	if err != nil {
		return err
	}
	for _, name := range named.Protect {
		if name == ".git" || slices.ContainsFunc(r.places, func(place string) bool { return system.Within(place, name) }) {
			continue
		}
		var content []byte
		if text, isFile := named.Missing[name]; isFile {
			content = []byte(text)
		}
		if err := r.standIn(name, content); err != nil {
			return err
		}
	}
	return nil
}

// standIn adds a path, and makes a file or directory there if it is missing.
func (r *reservation) standIn(name string, content []byte) error {
	r.places, r.stand = append(r.places, name), append(r.stand, name)
	at := filepath.Join(r.gitDir, name)
	if err := r.make(at, content); err != nil {
		return err
	}
	if has, err := regular.Read(at, maxLink); err == nil && name == "commondir" && string(has) != standsForNone { // what a sandbox of the whole repository will remove
		return os.WriteFile(at, content, 0o644) //nolint:gosec // as git makes it
	}
	return nil
}

// make creates a directory, or a file with content, owned by the owner of the repository. What
// exists stays.
func (r *reservation) make(at string, content []byte) error {
	var err error
	switch {
	case exists(at):
		return nil
	case content == nil:
		err = os.Mkdir(at, 0o755) //nolint:gosec // as git makes it
	default:
		err = os.WriteFile(at, content, 0o644) //nolint:gosec // as git makes it
	}
	info, statErr := os.Stat(r.gitDir)
	if err = errors.Join(err, statErr); err != nil {
		return err
	}
	return system.OwnerOf(info).GivePath(at)
}

// free removes what was made at a missing path, unless another process has reserved it.
func (r *reservation) free() error {
	if last, err := r.lock.TryLock(); err != nil || !last {
		return errors.Join(err, r.lock.Close())
	}
	var err error
	for _, name := range r.stand {
		at := filepath.Join(r.gitDir, name)
		info, statErr := os.Lstat(at)
		if statErr != nil || info.Mode().IsRegular() && info.Size() > 0 && name != "commondir" {
			continue
		}
		if removeErr := os.Remove(at); !info.IsDir() { // a directory with something in it stays
			err = errors.Join(err, removeErr)
		}
	}
	return errors.Join(err, r.lock.Close())
}

// lockPause is the time between tries to get the lock of a repository.
const lockPause = 20 * time.Millisecond

// String says in a sentence that git does not work in the directory, and what to do.
func (o *Outside) String() string {
	if o.kind == "" {
		return fmt.Sprintf("git does not work in this session: the workspace's repository is %s, which the sandbox does not have", o.Dir)
	}
	return fmt.Sprintf("git does not work in this session: the workspace is a %s of the repository %s, which the sandbox does not have; for git use --workspace %s",
		o.kind, o.Dir, o.Dir)
}
