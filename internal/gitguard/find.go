package gitguard

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Bounds of the search for repositories.
const (
	maxEntries      = 2_000_000
	maxRepositories = 200
)

// repository is one that a person's git would use.
type repository struct {
	dir    string // where git is run; absolute
	gitDir string // absolute, if git needs the option; "" if git finds it by itself
}

// args are those with which git looks at a repository, also where its files are gone, as those of a
// removed submodule: git reads nothing of it when it cannot enter its core.worktree.
func (r *repository) args(args ...string) []string {
	if r.gitDir == "" {
		return args
	}
	return append([]string{"--git-dir=" + r.gitDir, "--work-tree=" + r.gitDir}, args...)
}

// found is what a directory has of git.
type found struct {
	dir          string       // absolute, without symbolic links
	repositories []repository // those that enclose the directory first, then outer ones first
	gitDirs      []string     // in the directory: what has settings and hooks, or says who has
	gitFiles     []string     // in the directory: files .git, which name a repository elsewhere
	attributes   []string     // in the directory: files .gitattributes
	enclosed     bool         // a repository encloses the directory
	incomplete   bool         // there is more than was looked at
}

// find looks for repositories around a directory and in it.
func find(ctx context.Context, dir string) (*found, error) {
	dir, err := filepath.Abs(dir)
	if err == nil {
		dir, err = filepath.EvalSymlinks(dir)
	}
	if err != nil {
		return nil, fmt.Errorf("look for repositories: %w", err)
	}
	f := &found{dir: dir}
	for above := filepath.Dir(dir); ; above = filepath.Dir(above) {
		if exists(filepath.Join(above, ".git", "HEAD")) || isFile(filepath.Join(above, ".git")) {
			f.enclosed = true
			f.repositories = append(f.repositories, repository{dir: above})
		}
		if above == filepath.Dir(above) {
			break
		}
	}
	entries := 0
	err = filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if entries++; entries > maxEntries || len(f.repositories) >= maxRepositories {
			f.incomplete = true
			return fs.SkipAll
		}
		if err != nil && path == dir {
			return err
		}
		if err != nil { // git does not enter a directory that its user may not read
			return fs.SkipDir
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return f.take(path, entry)
	})
	if err != nil {
		return nil, fmt.Errorf("look for repositories: %w", err)
	}
	depth := func(path string) int { return strings.Count(path, "/") }
	slices.SortStableFunc(f.gitDirs, func(a, b string) int { return depth(a) - depth(b) })
	return f, nil
}

// take notes one entry of the directory.
func (f *found) take(path string, entry fs.DirEntry) error {
	above := filepath.Dir(path)
	switch entry.Name() {
	case ".git":
		if !entry.IsDir() {
			f.gitFiles = append(f.gitFiles, path)
			f.repositories = append(f.repositories, repository{dir: above})
		}
	case ".gitattributes", "attributes":
		f.attributes = append(f.attributes, path)
	case "HEAD":
		if entry.IsDir() || !isGitDir(above) {
			return nil
		}
		f.gitDirs = append(f.gitDirs, above)
		if filepath.Base(above) == ".git" {
			f.repositories = append(f.repositories, repository{dir: filepath.Dir(above)})
		} else {
			f.repositories = append(f.repositories, repository{dir: above, gitDir: above})
		}
	case "objects", "refs", "logs":
		if entry.IsDir() && isGitDir(above) {
			return fs.SkipDir
		}
	}
	return nil
}

// isGitDir reports whether git takes a directory for that of a repository or of a worktree.
func isGitDir(dir string) bool {
	if !exists(filepath.Join(dir, "HEAD")) {
		return false
	}
	return exists(filepath.Join(dir, "commondir")) || exists(filepath.Join(dir, "objects")) && exists(filepath.Join(dir, "refs"))
}

func exists(path string) bool {
	_, err := os.Lstat(path) //nolint:gosec // only whether there is anything
	return err == nil
}

func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}

// inside returns a path relative to the directory; ok is false when it lies elsewhere, or is the
// directory itself.
func (f *found) inside(path string) (name string, ok bool) {
	name, err := filepath.Rel(f.dir, path)
	return name, err == nil && name != "." && filepath.IsLocal(name)
}

// name is how reports name a path: relative to the directory if it is below it.
func (f *found) name(path string) string {
	if name, ok := f.inside(path); ok {
		return name
	}
	return path
}

// Tracked returns the files in a directory that git tracks, as slash-separated paths relative to
// it, also those of submodules; none where there is no repository, or no git.
func Tracked(ctx context.Context, dir string) []string {
	out, err := ask(ctx, dir, "ls-files", "--cached", "--recurse-submodules", "-z")
	if err != nil {
		return nil
	}
	return strings.FieldsFunc(string(out), func(r rune) bool { return r == 0 })
}
