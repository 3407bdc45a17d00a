package gitguard

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Outside is a repository that has a directory and is not in it.
type Outside struct {
	// Worktree is set for a linked worktree; else the directory is a submodule or a subdirectory.
	Worktree bool
	// Dir is where a person would use the repository; the main worktree of a linked one.
	Dir string
	// GitDir and Common are, of a linked worktree, its own directory and the one that it shares
	// with the main one, and Named is how its file .git names the former.
	GitDir, Common, Named string

	kind string
}

// FindOutside returns the repository of a directory that is elsewhere; nil where there is none, or
// the directory has it. A directory cannot make itself a linked worktree: its repository has to
// name it, too.
func FindOutside(dir string) *Outside {
	dir, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return nil
	}
	link := filepath.Join(dir, ".git")
	content, err := os.ReadFile(link)
	named, isLink := strings.CutPrefix(strings.TrimRight(string(content), "\r\n"), "gitdir: ")
	switch {
	case err == nil && isLink:
		gitDir := absolute(dir, named)
		if rel, err := filepath.Rel(dir, gitDir); err == nil && filepath.IsLocal(rel) {
			return nil
		}
		return linked(link, named, gitDir)
	case exists(filepath.Join(link, "HEAD")): // not so an empty directory that keeps one from being made
		return nil
	}
	for above := filepath.Dir(dir); ; above = filepath.Dir(above) {
		if exists(filepath.Join(above, ".git", "HEAD")) || isFile(filepath.Join(above, ".git")) {
			return &Outside{Dir: above, kind: "subdirectory"}
		}
		if above == filepath.Dir(above) {
			return nil
		}
	}
}

// linked is the repository that a file .git names.
func linked(link, named, gitDir string) *Outside {
	o := &Outside{kind: "submodule", Dir: filepath.Dir(gitDir)}
	if at := strings.LastIndex(gitDir, "/.git/modules/"); at > 0 {
		o.Dir = gitDir[:at]
	}
	common, err := os.ReadFile(filepath.Join(gitDir, "commondir")) //nolint:gosec // nothing of it is used unless the repository names the directory
	if err != nil {
		return o
	}
	back, err := os.ReadFile(filepath.Join(gitDir, "gitdir")) //nolint:gosec // nothing of it is used unless the repository names the directory
	if err != nil {
		return o
	}
	o.kind, o.Common = "linked worktree", absolute(gitDir, strings.TrimSpace(string(common)))
	o.Dir = strings.TrimSuffix(o.Common, "/.git")
	at, err := filepath.EvalSymlinks(absolute(gitDir, strings.TrimSpace(string(back))))
	if err == nil && at == link && filepath.Dir(filepath.Dir(gitDir)) == o.Common && isGitDir(o.Common) {
		o.Worktree, o.GitDir, o.Named = true, gitDir, named
	}
	return o
}

// String says in a sentence that git does not work in the directory, and what to do.
func (o *Outside) String() string {
	return fmt.Sprintf("git does not work in this session: the workspace is a %s of the repository %s, which the sandbox does not have; for git use --workspace %s",
		o.kind, o.Dir, o.Dir)
}
