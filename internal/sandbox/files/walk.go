package files

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"os"
	"path"
	"slices"

	"github.com/toolfleet/toolfleet/internal/sandbox/internal/gitignore"
)

// maxDepth is how many directories deep a walk goes.
const maxDepth = 200

// errPrune, returned by a visit of a directory, keeps the walk out of it.
var errPrune = errors.New("not entered")

// walk visits what is below a directory, in the order of paths. It follows no
// symbolic links, and leaves out ".git" and what ignore files exclude.
type walk struct {
	fs       *FS
	noIgnore bool
	// visit is told every entry but those left out, directories before what is in them.
	visit func(ctx context.Context, at position) error
	// skipped counts the directories that could not be read, ignored the entries excluded.
	skipped, ignored int
}

// position is where a walk stands.
type position struct {
	name  string // relative to the workspace
	below string // relative to the start of the walk
	depth int    // 1 for what is in the start
	entry fs.DirEntry
	rules gitignore.Rules // for what is in it, when it is a directory
}

// from walks what is below the directory name. An unreadable start is an error, an
// unreadable directory further down is skipped.
func (w *walk) from(ctx context.Context, name string) error {
	var rules gitignore.Rules
	if !w.noIgnore {
		rules = w.fs.ignoresAbove(ctx, name)
	}
	return w.dir(ctx, position{name: name, rules: rules})
}

func (w *walk) dir(ctx context.Context, at position) error {
	entries, rules, err := w.entries(ctx, at)
	if err != nil {
		if at.depth == 0 || ctx.Err() != nil || errors.Is(err, os.ErrClosed) {
			return err
		}
		w.skipped++
		return nil
	}
	for _, entry := range entries {
		inside := position{
			name: path.Join(at.name, entry.Name()), below: path.Join(at.below, entry.Name()),
			depth: at.depth + 1, entry: entry, rules: rules,
		}
		if err := w.enter(ctx, inside); err != nil {
			return err
		}
	}
	return nil
}

func (w *walk) enter(ctx context.Context, at position) error {
	err := w.visit(ctx, at)
	switch {
	case errors.Is(err, errPrune):
		return nil
	case err != nil, !at.entry.IsDir():
		return err
	case at.depth >= maxDepth || len(at.name) > maxPath:
		w.skipped++
		return nil
	default:
		return w.dir(ctx, at)
	}
}

// entries returns what a walk sees in a directory, and the rules that apply in it.
// They are sorted so that walking them visits paths in order: a directory stands
// where its path with a slash would.
func (w *walk) entries(ctx context.Context, at position) ([]fs.DirEntry, gitignore.Rules, error) {
	if err := ctx.Err(); err != nil {
		return nil, nil, err
	}
	dir, err := w.fs.openDir(at.name)
	if err != nil {
		return nil, nil, err
	}
	defer dir.Close()
	entries, err := dir.ReadDir(-1)
	if err != nil {
		return nil, nil, err
	}
	rules := at.rules
	if !w.noIgnore && hasIgnoreFile(entries) {
		rules = w.fs.withIgnoreFile(ctx, rules, at.name)
	}
	entries = slices.DeleteFunc(entries, func(e fs.DirEntry) bool {
		if e.Name() == ".git" {
			return true
		}
		excluded := rules.Excludes(path.Join(at.name, e.Name()), e.IsDir())
		if excluded {
			w.ignored++
		}
		return excluded
	})
	slices.SortFunc(entries, func(a, b fs.DirEntry) int { return cmp.Compare(walkKey(a), walkKey(b)) })
	return entries, rules, nil
}

func walkKey(entry fs.DirEntry) string {
	if entry.IsDir() {
		return entry.Name() + "/"
	}
	return entry.Name()
}
