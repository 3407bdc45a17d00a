package gitguard

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/bmatcuk/doublestar/v4"

	"github.com/toolfleet/toolfleet/internal/system/regular"
)

// repository is a repository that a person's git would use.
type repository struct {
	dir    string // where git runs hooks: the worktree, or the directory of the repository
	gitDir string // absolute; "" if its file .git names none
	common string // the directory that has the settings and hooks
	named  string // how its file .git names gitDir; "" without such a file
}

// maxLink bounds a file that names a directory of git's, as git does.
const maxLink = 1 << 20

// readLink is the path in a file such as gitdir or commondir; "" for an empty one.
func readLink(path string) (string, error) {
	content, err := regular.Read(path, maxLink)
	named := pathIn(string(content))
	if err != nil || named == "" {
		return "", err
	}
	return absolute(filepath.Dir(path), named), nil
}

// pathIn is the path that a file of git's has: git ends it at a NUL.
func pathIn(content string) string {
	path, _, _ := strings.Cut(strings.TrimRight(content, "\r\n"), "\x00")
	return path
}

// commonOf is the directory that has the settings and hooks of a directory of git's.
func commonOf(gitDir string) (string, error) {
	common, err := readLink(filepath.Join(gitDir, "commondir"))
	if missing(err) {
		return gitDir, nil
	}
	return cmp.Or(common, gitDir), err
}

// missing reports whether an error says that there is nothing at a path.
func missing(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR)
}

// dotGit is what the file or directory .git in a directory is for git. ok is false if it is
// nothing.
func dotGit(dir string) (r repository, isDir, ok bool, err error) {
	path := filepath.Join(dir, ".git")
	info, err := os.Stat(path)
	switch {
	case missing(err):
		if !exists(path) {
			return r, false, false, nil
		}
		return repository{dir: dir}, false, true, nil // a link to what is not there
	case err != nil:
		return r, false, false, err
	case info.IsDir():
		r.gitDir = followed(path)
		isDir, ok = r.gitDir == path, isGitDir(r.gitDir)
	case info.Mode().IsRegular():
		content, err := regular.Read(path, maxLink)
		if err != nil {
			return r, false, false, err
		}
		ok = true
		if named, is := strings.CutPrefix(pathIn(string(content)), "gitdir: "); is && named != "" {
			r.named, r.gitDir = named, absolute(dir, named)
		}
	default: // git does not read it either
		return r, false, false, nil
	}
	r.dir = dir
	if r.gitDir != "" {
		r.common, err = commonOf(r.gitDir)
	}
	return r, isDir, ok, err
}

// setting is one of git's settings and where it stands.
type setting struct {
	entry

	origin string // absolute path
	own    bool   // of the repository, not of the person
}

// Bounds of files that include others; maxDepth is git's.
const (
	maxDepth    = 10
	maxIncludes = 1000
)

// settings reads what is in force in a repository.
type settings struct {
	*reader

	repository *repository
	conditions bool // the conditions of includes count; without, all that could be included is
	all        []setting
	files      int
}

// settings are those in force in a repository, with all that they may include.
func (f *found) settings(ctx context.Context, r *repository) ([]setting, error) {
	if f.personFault != nil {
		return nil, f.personFault
	}
	s := &settings{reader: f.git, repository: r, all: slices.Clip(f.person)}
	err := s.own(ctx)
	return s.all, err
}

// person are the settings of the system and of the person, with all that they may include. The
// reader's walking is held.
func (r *reader) person(ctx context.Context) ([]setting, error) {
	s := &settings{reader: r}
	err := s.person(ctx)
	return s.all, err
}

// person adds the settings of the system and of the person.
func (s *settings) person(ctx context.Context) error {
	if s.system == nil {
		err := inScratch(func(dir string) error {
			env := environment("GIT_CONFIG_SYSTEM", "GIT_CONFIG_NOSYSTEM", "GIT_EXEC_PATH")
			out, err := s.ask(ctx, dir, env, "config", "--system", "--no-includes", "--show-origin", "--name-only", "-z", "--list")
			origin, _, _ := strings.Cut(string(out), "\x00")
			file, _ := strings.CutPrefix(origin, "file:")
			if err == nil || errors.Is(err, errRefused) { // there is no such file
				s.system = &file
				return nil
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	home, _ := os.UserHomeDir() // "" is none
	files := []string{*s.system, os.Getenv("GIT_CONFIG_GLOBAL")}
	if files[1] == "" {
		files[1] = filepath.Join(cmp.Or(os.Getenv("XDG_CONFIG_HOME"), filepath.Join(home, ".config")), "git", "config")
		files = append(files, filepath.Join(home, ".gitconfig"))
	}
	for _, file := range files {
		if !filepath.IsAbs(file) || file == os.DevNull {
			continue
		}
		if err := s.file(ctx, file, false, 0); err != nil {
			return err
		}
	}
	return nil
}

// own adds the settings of the repository.
func (s *settings) own(ctx context.Context) error {
	r := s.repository
	if r.gitDir == "" || !isGitDir(r.gitDir) || !exists(filepath.Join(r.common, "objects")) || !exists(filepath.Join(r.common, "refs")) {
		return fmt.Errorf("%s: %w", cmp.Or(r.gitDir, r.dir), errRefused)
	}
	if err := s.file(ctx, filepath.Join(r.common, "config"), true, 0); err != nil {
		return err
	}
	return s.file(ctx, filepath.Join(r.gitDir, "config.worktree"), true, 0)
}

// file adds the settings of a file and of the files that it includes.
func (s *settings) file(ctx context.Context, path string, own bool, depth int) error {
	if s.files++; s.files > maxIncludes {
		return fmt.Errorf("%s: settings of git include more than %d files", path, maxIncludes)
	}
	if depth > maxDepth {
		return fmt.Errorf("%s: %w: includes are too deep", path, errRefused)
	}
	content, err := regular.Read(path, MaxSettings)
	if missing(err) {
		return nil
	}
	if err != nil {
		return err
	}
	entries, err := s.list(ctx, content)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	for _, e := range entries {
		s.all = append(s.all, setting{e, path, own})
		section, condition, name := split(e.key)
		if name != "path" || section != "include" && section != "includeif" || s.conditions && section == "includeif" && !s.holds(condition, path) {
			continue
		}
		if err := s.file(ctx, expand(filepath.Dir(path), e.value), own, depth+1); err != nil {
			return err
		}
	}
	return nil
}

// expand is the path that a setting of a file in a directory names.
func expand(dir, value string) string {
	name, rest, _ := strings.Cut(value, "/")
	if !strings.HasPrefix(name, "~") {
		return absolute(dir, value)
	}
	home, _ := os.UserHomeDir()
	if name != "~" {
		if other, err := user.Lookup(name[1:]); err == nil {
			home = other.HomeDir
		}
	}
	return filepath.Join(home, rest)
}

// holds reports whether a condition of an include in a file holds, see git-config(1).
func (s *settings) holds(condition, file string) bool {
	kind, pattern, _ := strings.Cut(condition, ":")
	if strings.Contains(pattern, "{") { // alternatives, which git does not have, and which can take for ever
		return false
	}
	if strings.HasSuffix(pattern, "/") {
		pattern += "**"
	}
	var subjects []string
	switch kind {
	case "gitdir", "gitdir/i":
		switch {
		case strings.HasPrefix(pattern, "~/"):
			pattern = expand("", pattern)
		case strings.HasPrefix(pattern, "./"):
			pattern = filepath.Join(filepath.Dir(file), pattern)
		case !filepath.IsAbs(pattern):
			pattern = "**/" + pattern
		}
		subjects = []string{s.repository.gitDir, followed(s.repository.gitDir)}
		if kind == "gitdir/i" {
			pattern, subjects = strings.ToLower(pattern), []string{strings.ToLower(subjects[0]), strings.ToLower(subjects[1])}
		}
	case "onbranch":
		if head, err := regular.Read(filepath.Join(s.repository.gitDir, "HEAD"), 4<<10); err == nil {
			subjects = []string{strings.TrimPrefix(strings.TrimSpace(string(head)), "ref: refs/heads/")}
		}
	case "hasconfig":
		_, pattern, _ = strings.Cut(pattern, ":") // remote.*.url is the only one
		for _, set := range s.all {
			if section, _, name := split(set.key); section == "remote" && name == "url" {
				subjects = append(subjects, set.value)
			}
		}
	}
	for _, subject := range subjects {
		if match, err := doublestar.Match(pattern, subject); err == nil && match {
			return true
		}
	}
	return false
}

// repositoryOf is the repository of a directory: its own, or one around it. ok is false for none.
func repositoryOf(dir string) (r repository, ok bool, err error) {
	for at := dir; ; at = filepath.Dir(at) {
		if r, _, ok, err := dotGit(at); ok || err != nil {
			return r, ok, err
		}
		if at == filepath.Dir(at) {
			return repository{}, false, nil
		}
	}
}

// Identity is the name and address that git has for commits in a directory; "" for none.
func Identity(ctx context.Context, dir string) (name, email string) {
	git, err := newReader(dir)
	if err != nil {
		return "", ""
	}
	r, ok, err := repositoryOf(followed(dir))
	s := &settings{reader: git, repository: &r, conditions: true}
	if err == nil {
		err = s.person(ctx)
	}
	if err == nil && ok {
		err = s.own(ctx)
	}
	if err != nil {
		return "", ""
	}
	for _, set := range s.all {
		switch set.key {
		case "user.name":
			name = set.value
		case "user.email":
			email = set.value
		}
	}
	return name, email
}
