// Package gitguard finds what a person's git runs on its own in a directory that a session works
// on: hooks, and programs that settings name. A session can write all that it looks at, so it opens
// only regular files, up to a bound, and git never enters such a repository: it parses copies of
// single files. What cannot be looked at whole is refused.
//
//	before a sandbox opens   [Protected]         the paths that commands must not change
//	before a turn            [Look]              what git would run now
//	after it                 [Watch.Findings]    what git would run that it would not have run
//
// Some ways into a person's git cannot be protected: git enters repositories that a session
// creates. What they have git run is set aside after each call ([Aside]), and reported at the end
// of a turn.
//
// Without git on this host, paths are those of every repository, and nothing is reported.
package gitguard

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/internal/system"
)

// Protection is the protected paths of a directory that a sandbox uses in place.
type Protection struct {
	isolation.Protection // without Copies
	// Configs are the paths in Protect that are settings of repositories. A sandbox can have copies
	// of them.
	Configs []string
}

// Only is the protection of named paths.
func Only(names []string) Protection {
	p := Protection{Protection: isolation.Protection{Protect: names, Missing: map[string]string{}}}
	for _, name := range names {
		switch name = filepath.Clean(name); filepath.Base(name) {
		case "commondir":
			p.Missing[name] = sameDirectory
		case "config.worktree":
			p.Missing[name] = emptySettings
		}
	}
	return p
}

// Protected returns the paths that programs of the host read or run on their own in a directory:
// the settings and hooks of every repository in it or around it, files that name their location,
// files that settings name, and the settings of editors. Files that a commit writes are not
// protected. Without a repository in or around the directory, commands may create one there. It is
// an error if not all of the directory can be looked at, or protected: nothing that was not seen
// counts as harmless.
func Protected(ctx context.Context, dir string) (Protection, error) {
	git, err := newReader(dir)
	if err != nil {
		git = nil
	}
	f, err := find(ctx, dir, git)
	if err != nil {
		return Protection{}, err
	}
	p := &collector{found: f, missing: map[string]string{}}
	for _, name := range []string{".idea", ".vscode"} {
		if exists(filepath.Join(f.dir, name)) {
			p.add(filepath.Join(f.dir, name))
		}
	}
	if f.enclosed && !f.own {
		p.add(filepath.Join(f.dir, ".git")) // it would be in the place of that around it
	}
	for _, file := range f.gitFiles {
		p.add(file)
	}
	for _, gitDir := range f.gitDirs {
		if err := p.gitDir(gitDir); err != nil {
			return Protection{}, err
		}
	}
	if git != nil && len(f.repositories) == 0 { // the person's settings may name files here for all repositories
		p.namedBy(&repository{dir: f.dir}, f.person)
	}
	for _, r := range f.repositories {
		if git == nil {
			break
		}
		settings, err := p.settings(ctx, &r)
		if err != nil && !errors.Is(err, errRefused) {
			return Protection{}, err
		}
		if err == nil {
			p.namedBy(&r, settings)
		}
	}
	return p.result()
}

// collector collects what is protected.
type collector struct {
	*found

	all     []string // the important ones first
	missing map[string]string
	configs []string
}

// Files that replace missing paths with the same effect for git. Elsewhere an empty directory has
// no effect; for these paths git would end with an error.
const (
	emptySettings = ""
	sameDirectory = ".\n" // of commondir: the settings are where this is
)

// gitDir adds what git reads or runs of a directory of a repository.
func (p *collector) gitDir(dir string) error {
	at, err := readLink(filepath.Join(dir, "gitdir"))
	switch {
	case err != nil && !missing(err):
		return err
	case err == nil && exists(filepath.Join(dir, "commondir")):
		_, here := p.inside(at)
		if !here && !strings.HasPrefix(at, guestWorkspace) { // a worktree outside of the directory: no command here writes to it
			p.add(dir)
			return nil
		}
		p.add(filepath.Join(dir, "gitdir"))
	default:
		p.add(filepath.Join(dir, "config"))
		p.add(filepath.Join(dir, "hooks"))
		p.configs = append(p.configs, filepath.Join(dir, "config"))
	}
	p.addMissing(filepath.Join(dir, "commondir"), sameDirectory)
	p.addMissing(filepath.Join(dir, "config.worktree"), emptySettings)
	return nil
}

// guestWorkspace is where sandboxes have the directory: worktrees that they make say so.
const guestWorkspace = "/workspace/"

// namedBy adds what the settings of a repository name: files with more of them, programs and the
// directory of hooks.
func (p *collector) namedBy(r *repository, settings []setting) {
	s := &survey{found: p.found}
	for _, set := range settings {
		section, _, name := split(set.key)
		switch {
		case set.key == "core.hookspath":
			for _, dir := range hookDirs(r, set.value) {
				if r.gitDir == r.dir || !system.Within(r.gitDir, dir) || exists(dir) { // of pushes: a new one is reported
					p.add(dir)
				}
			}
		case name == "path" && (section == "include" || section == "includeif"):
			p.addMissing(expand(filepath.Dir(set.origin), set.value), emptySettings)
		default:
			for _, program := range s.programs(r, set) {
				p.add(program)
			}
		}
		p.add(set.origin)
		p.add(followed(set.origin)) // a person's settings are often a link to a directory with all of them
	}
}

// add adds a path, unless it is outside of the workspace.
func (p *collector) add(path string) {
	if name, here := p.inside(path); here && !slices.Contains(p.all, name) {
		p.all = append(p.all, name)
	}
}

// addMissing adds a path where a file with that content is made if there is none.
func (p *collector) addMissing(path, content string) {
	p.add(path)
	if name, here := p.inside(path); here {
		p.missing[name] = content
	}
}

// result are the places that can be protected. A symbolic link cannot, and is found at the end of a
// turn; but the first repository is not silently left open.
func (p *collector) result() (Protection, error) {
	kept := slices.DeleteFunc(p.all, func(name string) bool {
		return !slices.Contains([]string{".git", ".git/config", ".git/hooks"}, name) && p.linked(name)
	})
	clean, err := isolation.CleanProtected(kept)
	if err != nil {
		return Protection{}, fmt.Errorf("protect what git runs in %s: %w; use a directory in it, or name what to protect (--protect)", p.dir, err)
	}
	result := Protection{Protection: isolation.Protection{Protect: clean, Missing: map[string]string{}}}
	for _, name := range clean {
		if content, may := p.missing[name]; may {
			result.Missing[name] = content
		}
		if at := filepath.Join(p.dir, name); slices.Contains(p.configs, at) && isFile(at) {
			result.Configs = append(result.Configs, name)
		}
	}
	return result, nil
}

// linked reports whether a path is, or leads through, a symbolic link.
func (p *collector) linked(name string) bool {
	for at := name; at != "."; at = filepath.Dir(at) {
		if info, err := os.Lstat(filepath.Join(p.dir, at)); err == nil && info.Mode()&os.ModeSymlink != 0 {
			return true
		}
	}
	return false
}
