package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/aymanbagabas/go-udiff"

	"github.com/toolfleet/toolfleet/pkg/sandbox"
	"github.com/toolfleet/toolfleet/pkg/sandbox/snapshot"
)

// workspaceCopy is what a workspace was at a moment, or why there is no copy. git's own files are
// not in it.
type workspaceCopy struct {
	dir      string
	archive  string // its file
	manifest snapshot.Manifest
	protect  []string
	fault    error
}

// Bounds of a copy: larger ones would take longer than their turns.
const (
	maxCopyBytes   = 256 << 20
	maxCopyEntries = 50_000
)

func copyOptions(protect []string) *snapshot.Options {
	return &snapshot.Options{
		Limits: snapshot.Limits{MaxBytes: maxCopyBytes, MaxEntries: maxCopyEntries}, Protect: protect,
		Skip: func(path string, _ bool) bool { return path == ".git" },
	}
}

// copyWorkspace copies a directory.
func copyWorkspace(ctx context.Context, dir string, inPlace bool, protect []string) *workspaceCopy {
	c := &workspaceCopy{dir: dir, protect: protect}
	switch {
	case dir == "":
		c.fault = errors.New("not possible without --workspace")
	case !inPlace:
		c.fault = errors.New("not possible with --nats: the session works on a copy; git diff shows what came back")
	default:
		if c.fault = c.take(ctx); c.fault != nil {
			c.fault = fmt.Errorf("not possible, the workspace could not be copied before: %w", c.fault)
		}
	}
	return c
}

func (c *workspaceCopy) take(ctx context.Context) (err error) {
	file, err := os.CreateTemp("", "toolfleet-copy-")
	if err != nil {
		return err
	}
	c.archive = file.Name()
	defer func() { err = errors.Join(err, file.Close()) }()
	c.manifest, err = c.pack(ctx, file)
	return err
}

// pack writes what the directory is now.
func (c *workspaceCopy) pack(ctx context.Context, w io.Writer) (_ snapshot.Manifest, err error) {
	root, err := os.OpenRoot(c.dir)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	manifest, _, err := snapshot.Pack(ctx, root, w, copyOptions(nil))
	return manifest, err
}

// remove removes the copy; nil has none.
func (c *workspaceCopy) remove() {
	if c != nil && c.archive != "" {
		_ = os.Remove(c.archive) // the system cleans its temporary files
	}
}

// restore brings the directory back to what it was.
func (c *workspaceCopy) restore(ctx context.Context) (changes snapshot.Changes, err error) {
	if c.fault != nil {
		return changes, c.fault
	}
	now, err := c.pack(ctx, io.Discard)
	if err != nil {
		return changes, err
	}
	archive, err := os.Open(c.archive)
	if err != nil {
		return changes, err
	}
	root, err := os.OpenRoot(c.dir)
	if err != nil {
		return changes, errors.Join(err, archive.Close())
	}
	defer func() { err = errors.Join(err, archive.Close(), root.Close()) }()
	return snapshot.Sync(ctx, root, now, archive, copyOptions(c.protect))
}

// diff is what has changed since, as a unified diff.
func (c *workspaceCopy) diff(ctx context.Context) (_ string, err error) {
	if c.fault != nil {
		return "", c.fault
	}
	now, err := c.pack(ctx, io.Discard)
	if err != nil {
		return "", err
	}
	before, err := os.MkdirTemp("", "toolfleet-diff-")
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(before)) }()
	if err := c.unpack(ctx, before); err != nil {
		return "", err
	}
	paths := map[string]bool{}
	for _, manifest := range []snapshot.Manifest{c.manifest, now} {
		for path := range manifest {
			if c.manifest[path] != now[path] {
				paths[path] = true
			}
		}
	}
	var text strings.Builder
	for _, path := range slices.Sorted(maps.Keys(paths)) {
		text.WriteString(fileDiff(path, side{before, c.manifest[path]}, side{c.dir, now[path]}))
	}
	return text.String(), nil
}

func (c *workspaceCopy) unpack(ctx context.Context, dir string) (err error) {
	archive, err := os.Open(c.archive)
	if err != nil {
		return err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return errors.Join(err, archive.Close())
	}
	defer func() { err = errors.Join(err, archive.Close(), root.Close()) }()
	_, err = snapshot.Unpack(ctx, root, archive, copyOptions(nil))
	return err
}

// side is a path in one of two directories; its entry is zero when it is not there.
type side struct {
	dir   string
	entry snapshot.Entry
}

// read returns the name for a diff, and the text; ok is false for what has none.
func (s side) read(prefix, path string) (name, text string, ok bool) {
	switch s.entry.Type {
	case "":
		return os.DevNull, "", true
	case sandbox.TypeSymlink:
		return prefix + path, s.entry.Target, true
	case sandbox.TypeFile:
	default:
		return "", "", false
	}
	root, err := os.OpenRoot(s.dir)
	if err != nil || s.entry.Size > maxShownFile {
		return prefix + path, "", false
	}
	defer func() { _ = root.Close() }() // nothing was written
	content, err := root.ReadFile(filepath.FromSlash(path))
	return prefix + path, string(content), err == nil && utf8.Valid(content)
}

func fileDiff(path string, before, after side) string {
	if before.entry.Type == sandbox.TypeDir || after.entry.Type == sandbox.TypeDir {
		return "" // its files tell
	}
	from, old, ok := before.read("a/", path)
	to, text, ok2 := after.read("b/", path)
	if !ok || !ok2 {
		return "Binary or large file " + path + " differs\n"
	}
	diff, err := udiff.ToUnified(from, to, old, udiff.Lines(old, text), udiff.DefaultContextLines)
	if err != nil || diff == "" {
		return "Mode of " + path + " differs\n"
	}
	return diff
}
