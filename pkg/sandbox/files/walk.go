package files

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
)

// maxDepth is how many directories deep a search goes.
const maxDepth = 200

// dir searches the directory name and what is below it, in the order of paths.
// below is its path below the start of the search, "" for the start itself.
func (s *search) dir(ctx context.Context, name, below string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	entries, err := s.entries(name)
	if err != nil {
		if below == "" || errors.Is(err, os.ErrClosed) {
			return err
		}
		s.result.Skipped++
		return nil
	}
	for _, entry := range entries {
		if err := s.entry(ctx, entry, path.Join(name, entry.Name()), path.Join(below, entry.Name())); err != nil {
			return err
		}
	}
	return nil
}

func (s *search) entry(ctx context.Context, entry fs.DirEntry, name, below string) error {
	switch {
	case entry.Name() == ".git":
		return nil
	case entry.Type().IsRegular():
		return s.file(ctx, name, below)
	case !entry.IsDir():
		return nil
	case strings.Count(below, "/") >= maxDepth || len(name) > maxPath:
		s.result.Skipped++
		return nil
	default:
		return s.dir(ctx, name, below)
	}
}

// entries returns a directory's entries so that walking them visits paths in order:
// a directory stands where its path with a slash would.
func (s *search) entries(name string) ([]fs.DirEntry, error) {
	dir, err := s.fs.openDir(name)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	entries, err := dir.ReadDir(-1)
	if err != nil {
		return nil, err
	}
	slices.SortFunc(entries, func(a, b fs.DirEntry) int { return cmp.Compare(walkKey(a), walkKey(b)) })
	return entries, nil
}

func walkKey(entry fs.DirEntry) string {
	if entry.IsDir() {
		return entry.Name() + "/"
	}
	return entry.Name()
}
