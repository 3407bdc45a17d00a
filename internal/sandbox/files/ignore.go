package files

import (
	"context"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/toolfleet/toolfleet/internal/sandbox/internal/gitignore"
)

// ignoreFile names the files whose rules exclude names.
const ignoreFile = ".gitignore"

// maxIgnoreFile is the largest one that is heeded, in bytes.
const maxIgnoreFile = 1 << 20

// ignoresAbove are the rules for what is in the directory name but for those of its own
// ignore file. A directory that is excluded itself, and was asked for by name, is not
// bound by the rules above it.
func (f *FS) ignoresAbove(ctx context.Context, name string) gitignore.Rules {
	var rules gitignore.Rules
	if name == "." {
		return nil
	}
	dir := "."
	for part := range strings.SplitSeq(name, "/") {
		if info, err := f.root.Lstat(path.Join(dir, ignoreFile)); err == nil && info.Mode().IsRegular() {
			rules = f.withIgnoreFile(ctx, rules, dir)
		}
		dir = path.Join(dir, part)
		if rules.Excludes(dir, true) {
			rules = nil
		}
	}
	return rules
}

// withIgnoreFile adds the rules of the ignore file in dir. One that cannot be read has none.
func (f *FS) withIgnoreFile(ctx context.Context, above gitignore.Rules, dir string) gitignore.Rules {
	content, info, err := f.load(ctx, path.Join(dir, ignoreFile), os.O_RDONLY)
	if err != nil || info.Size() > maxIgnoreFile {
		return above
	}
	return above.With(dir, string(content))
}

// hasIgnoreFile reports whether a directory with these entries has rules of its own.
func hasIgnoreFile(entries []fs.DirEntry) bool {
	return slices.ContainsFunc(entries, func(e fs.DirEntry) bool { return e.Name() == ignoreFile && e.Type().IsRegular() })
}
