package gitguard

import (
	"context"
	"crypto/sha1" //nolint:gosec // git's ids
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/toolfleet/toolfleet/internal/system/regular"
)

// maxIndex bounds the indexes of a repository and its submodules together, in bytes.
const maxIndex = 1 << 30

// Tracked returns the files in a directory that git tracks, as slash-separated paths relative to
// it, also those of submodules; none where there is no repository, or no git. git reads a copy of
// the index in an empty repository, which names no server to fetch from and no program.
func Tracked(ctx context.Context, dir string) ([]string, error) {
	git, err := newReader(dir)
	if err != nil {
		return nil, nil //nolint:nilerr // there is no git
	}
	dir, err = filepath.EvalSymlinks(dir)
	if err != nil {
		return nil, err
	}
	t := &tracked{reader: git, dir: dir, room: maxAnswer}
	r, ok, err := repositoryOf(dir)
	if ok && err == nil {
		err = t.repository(ctx, &r)
	}
	if err != nil {
		return nil, fmt.Errorf("files that git tracks: %w", err)
	}
	return t.files, nil
}

// tracked collects the files that git tracks.
type tracked struct {
	*reader

	dir          string
	files        []string
	repositories int
	read         int64 // bytes of indexes
	room         int64 // for what git lists of them, in bytes
}

// repository adds the files of one, and of its submodules.
func (t *tracked) repository(ctx context.Context, r *repository) error {
	if t.repositories++; t.repositories > maxRepositories {
		return fmt.Errorf("more than %d submodules", maxRepositories)
	}
	if r.gitDir == "" || !isGitDir(r.gitDir) {
		return nil // nothing to git, either
	}
	out, err := t.index(ctx, r)
	if err != nil {
		return fmt.Errorf("%s: %w", r.gitDir, err)
	}
	for line := range strings.SplitSeq(string(out), "\x00") {
		stat, name, _ := strings.Cut(line, "\t")
		at := filepath.Join(r.dir, filepath.FromSlash(strings.TrimSuffix(name, "/")))
		below, err := filepath.Rel(t.dir, at)
		if name == "" || err != nil || below == "." || !filepath.IsLocal(below) {
			continue
		}
		t.files = append(t.files, filepath.ToSlash(below))
		if !strings.HasPrefix(stat, "160000 ") { // it is no submodule
			continue
		}
		sub, _, ok, err := dotGit(at)
		if ok && err == nil {
			err = t.repository(ctx, &sub)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// index lists the index of a repository.
func (t *tracked) index(ctx context.Context, r *repository) (out []byte, err error) {
	format, hash := "", sha1.Size
	content, err := regular.Read(filepath.Join(r.common, "config"), MaxSettings)
	if err == nil {
		var entries []entry
		entries, err = t.list(ctx, content)
		for _, e := range entries {
			if e.key == "extensions.objectformat" && e.value == "sha256" {
				format, hash = "[extensions]\n\tobjectformat = sha256\n", sha256.Size
			}
		}
	}
	if err != nil && !missing(err) {
		return nil, err
	}
	err = inScratch(func(dir string) error {
		gitDir := filepath.Join(dir, "git")
		if err := empty(gitDir, format); err != nil {
			return err
		}
		shared, err := t.copyIndex(r.gitDir, gitDir, "index", hash)
		if err == nil && shared != "" { // of an index that is split
			_, err = t.copyIndex(r.gitDir, gitDir, shared, hash)
		}
		if err != nil {
			return err
		}
		list := func(settings []string, options ...string) ([]byte, error) {
			env := append(neutral(dir), "GIT_DIR="+gitDir, "GIT_WORK_TREE="+dir)
			return t.ask(ctx, dir, env, append(append(settings, "-c", "index.threads=1", "ls-files", "--cached", "--stage", "-z"), options...)...)
		}
		if out, err = list(nil); !errors.Is(err, errRefused) {
			return err
		}
		// A sparse index names directories whose files only the repository has.
		sparse, _ := list([]string{"-c", "core.sparseCheckout=true", "-c", "core.sparseCheckoutCone=true", "-c", "index.sparse=true"}, "--sparse")
		if sparse != nil {
			out, err = sparse, nil
		}
		return err
	})
	return out, err
}

// empty makes an empty repository, in which nothing is checked out.
func empty(gitDir, format string) error {
	var err error
	for _, dir := range []string{"objects", "refs", "info"} {
		err = errors.Join(err, os.MkdirAll(filepath.Join(gitDir, dir), 0o700))
	}
	for name, content := range map[string]string{
		"HEAD": "ref: refs/heads/none\n", "config": "[core]\n\trepositoryformatversion = 1\n\tbare = false\n" + format, "info/sparse-checkout": "/*\n!/*/\n",
	} {
		err = errors.Join(err, os.WriteFile(filepath.Join(gitDir, name), []byte(content), 0o600))
	}
	return err
}

// copyIndex copies an index from one directory to another one. What is missing is an empty index.
func (t *tracked) copyIndex(from, to, name string, hash int) (shared string, err error) {
	shared, size, room, err := copyIndex(filepath.Join(from, name), filepath.Join(to, name), hash, t.room)
	if missing(err) {
		return "", nil
	}
	t.room = room
	if t.read += size; err == nil && t.read > maxIndex {
		err = fmt.Errorf("%s: the indexes are larger than %d bytes", filepath.Join(from, name), maxIndex)
	}
	return shared, err
}
