package files

import (
	"context"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
)

// ignoreFile names the files whose rules exclude names.
const ignoreFile = ".gitignore"

// maxIgnoreFile is the largest one that is heeded, in bytes.
const maxIgnoreFile = 1 << 20

// ignores are the rules of a directory's and its parents' ignore files, from the
// workspace down. The zero value excludes nothing.
type ignores []ignoreRules

type ignoreRules struct {
	dir   string // in which the file is
	rules []ignoreRule
}

// excludes reports whether the rules exclude name: the last rule of the deepest file
// that is about it decides.
func (i ignores) excludes(name string, isDir bool) bool {
	for _, level := range slices.Backward(i) {
		below := name
		if level.dir != "." {
			below = strings.TrimPrefix(name, level.dir+"/")
		}
		for _, rule := range slices.Backward(level.rules) {
			if rule.matches(below, isDir) {
				return !rule.takesBack
			}
		}
	}
	return false
}

// ignoresAbove are the rules for what is in the directory name but for those of its own
// ignore file. A directory that is excluded itself, and was asked for by name, is not
// bound by the rules above it.
func (f *FS) ignoresAbove(ctx context.Context, name string) ignores {
	var rules ignores
	if name == "." {
		return nil
	}
	dir := "."
	for part := range strings.SplitSeq(name, "/") {
		if info, err := f.root.Lstat(path.Join(dir, ignoreFile)); err == nil && info.Mode().IsRegular() {
			rules = f.withIgnoreFile(ctx, rules, dir)
		}
		dir = path.Join(dir, part)
		if rules.excludes(dir, true) {
			rules = nil
		}
	}
	return rules
}

// withIgnoreFile adds the rules of the ignore file in dir. One that cannot be read has none.
func (f *FS) withIgnoreFile(ctx context.Context, above ignores, dir string) ignores {
	content, info, err := f.load(ctx, path.Join(dir, ignoreFile), os.O_RDONLY)
	if err != nil || info.Size() > maxIgnoreFile {
		return above
	}
	return append(slices.Clip(above), ignoreRules{dir: dir, rules: parseIgnoreRules(string(content))})
}

// hasIgnoreFile reports whether a directory with these entries has rules of its own.
func hasIgnoreFile(entries []fs.DirEntry) bool {
	return slices.ContainsFunc(entries, func(e fs.DirEntry) bool { return e.Name() == ignoreFile && e.Type().IsRegular() })
}
