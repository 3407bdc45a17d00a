package backup

import (
	"bytes"
	"context"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/aymanbagabas/go-udiff"

	"github.com/toolfleet/toolfleet/internal/inplace/gitguard"
	"github.com/toolfleet/toolfleet/internal/sandbox/snapshot"
	"github.com/toolfleet/toolfleet/internal/terminal"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Stamps are size, mode and time of a directory's files, without those that git ignores; nil means
// unknown.
type Stamps map[string]stamp

// stamp changes when a file does.
type stamp struct {
	size     int64
	mode     fs.FileMode
	modified time.Time
}

// maxStamps bounds the files that are looked at before and after each turn.
const maxStamps = 200_000

// StampsOf reads them.
func StampsOf(ctx context.Context, dir string) Stamps {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil
	}
	defer func() { _ = root.Close() }()
	tracked, err := gitguard.Tracked(ctx, dir)
	if err != nil {
		return nil
	}
	ignore, found := snapshot.NewIgnore(root, tracked, false), Stamps{}
	err = filepath.WalkDir(dir, func(full string, entry fs.DirEntry, err error) error {
		path, relErr := filepath.Rel(dir, full)
		path = filepath.ToSlash(path)
		switch {
		case path == "." || err != nil || relErr != nil: // what cannot be read is left out
			return nil //nolint:nilerr // see above
		case ctx.Err() != nil || len(found) >= maxStamps:
			return fs.SkipAll
		case entry.IsDir() && (entry.Name() == ".git" || ignore.Skip(path, true)):
			return fs.SkipDir
		case entry.IsDir() || ignore.Skip(path, false):
			return nil
		}
		if info, err := entry.Info(); err == nil {
			found[path] = stamp{info.Size(), info.Mode(), info.ModTime()}
		}
		return nil
	})
	if err != nil || len(found) >= maxStamps {
		return nil
	}
	return found
}

// Since returns the files that have changed since then.
func (d Stamps) Since(ctx context.Context, dir string) (changed []terminal.Changed) {
	now := StampsOf(ctx, dir)
	if d == nil || now == nil {
		return nil
	}
	all := maps.Clone(d)
	maps.Copy(all, now)
	for _, path := range slices.Sorted(maps.Keys(all)) {
		before, was := d[path]
		after, is := now[path]
		if was != is || before != after {
			changed = append(changed, terminal.Changed{Path: path, Created: !was, Gone: !is})
		}
	}
	return changed
}

// maxCounted is the largest size, in bytes, of a file whose lines are counted.
const maxCounted = 1 << 20

// Look returns a function that says what a path of a directory is now.
func Look(dir string) terminal.FileState {
	return func(path string) (terminal.File, bool) {
		found := terminal.File{Lines: -1}
		root, err := os.OpenRoot(dir)
		if err != nil {
			return found, false
		}
		defer func() { _ = root.Close() }() // it was only read
		info, err := root.Lstat(filepath.FromSlash(path))
		if err != nil {
			return found, false
		}
		found.Modified = info.ModTime()
		if !info.Mode().IsRegular() || info.Size() > maxCounted {
			return found, true
		}
		file, err := snapshot.OpenSame(root, filepath.FromSlash(path), info)
		if err != nil {
			return found, true
		}
		defer func() { _ = file.Close() }()
		content, err := io.ReadAll(io.LimitReader(file, maxCounted))
		if err == nil && utf8.Valid(content) {
			found.Lines = bytes.Count(content, []byte("\n"))
			if len(content) > 0 && content[len(content)-1] != '\n' {
				found.Lines++
			}
		}
		return found, true
	}
}

// maxDiffed is the size in bytes up to which the difference of a file is shown.
const maxDiffed = 512 << 10

// Diff returns what has changed in the directory since a state, as a unified diff.
func (s *States) Diff(ctx context.Context, since State) (string, error) {
	before, _, err := s.Files(ctx, since)
	if err != nil {
		return "", err
	}
	after, err := s.now(ctx)
	if err != nil {
		return "", err
	}
	was, err := before.Manifest(ctx, s.contents)
	if err != nil {
		return "", err
	}
	is, err := after.Manifest(ctx, s.contents)
	if err != nil {
		return "", err
	}
	all := maps.Clone(was)
	maps.Copy(all, is)
	var text strings.Builder
	for _, path := range slices.Sorted(maps.Keys(all)) {
		if was[path] != is[path] {
			text.WriteString(s.fileDiff(ctx, path, before[path], after[path]))
		}
	}
	return text.String(), nil
}

// read returns the name and the text of a path for a diff; ok is false if it has no text. The zero
// node means that nothing is there.
func (s *States) read(ctx context.Context, node snapshot.Node, prefix, path string) (name, text string, ok bool) {
	switch node.Type {
	case "":
		return os.DevNull, "", true
	case protocol.TypeSymlink:
		return prefix + path, node.Target, true
	case protocol.TypeFile:
	default:
		return "", "", false
	}
	content, err := snapshot.LoadBytes(ctx, s.contents, node.Parts, maxDiffed)
	return prefix + path, string(content), err == nil && utf8.Valid(content)
}

func (s *States) fileDiff(ctx context.Context, path string, before, after snapshot.Node) string {
	if before.Type == protocol.TypeDir || after.Type == protocol.TypeDir {
		return "" // its files say it
	}
	from, old, ok := s.read(ctx, before, "a/", path)
	to, text, ok2 := s.read(ctx, after, "b/", path)
	if !ok || !ok2 {
		return "Binary or large file " + path + " differs\n"
	}
	diff, err := udiff.ToUnified(from, to, old, udiff.Lines(old, text), udiff.DefaultContextLines)
	if err != nil || diff == "" {
		return "Mode of " + path + " differs\n"
	}
	return diff
}
