package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/aymanbagabas/go-udiff"

	"github.com/toolfleet/toolfleet/internal/sandbox/snapshot"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// workspaceCopy is what a workspace was at a moment, or why there is no copy. git's own files are
// not in it.
type workspaceCopy struct {
	dir      string
	bodies   snapshot.Directory // its contents
	tree     snapshot.Tree
	manifest snapshot.Manifest
	index    snapshot.Index
	protect  []string
	fault    error
}

// Bounds of a copy: larger ones would take longer than their turns.
const (
	maxCopyBytes   = 256 << 20
	maxCopyEntries = 50_000
)

func isGit(path string, _ bool) bool { return path == ".git" }

// copyWorkspace copies a directory.
func copyWorkspace(ctx context.Context, dir string, inPlace bool, protect []string) *workspaceCopy {
	c := &workspaceCopy{dir: dir, protect: protect, tree: snapshot.Tree{}, index: snapshot.Index{}}
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

func (c *workspaceCopy) take(ctx context.Context) error {
	dir, err := os.MkdirTemp("", "toolfleet-copy-")
	if err != nil {
		return err
	}
	c.bodies = snapshot.Directory(dir)
	c.tree, c.manifest, err = c.now(ctx)
	return err
}

// now is what the directory is now. Contents that are new are added to those of the copy.
func (c *workspaceCopy) now(ctx context.Context) (_ snapshot.Tree, _ snapshot.Manifest, err error) {
	root, err := os.OpenRoot(c.dir)
	if err != nil {
		return nil, nil, err
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	delta, err := snapshot.Save(ctx, root, c.tree, c.index, c.bodies, &snapshot.SaveOptions{
		Limits: snapshot.Limits{MaxBytes: maxCopyBytes, MaxEntries: maxCopyEntries}, Skip: isGit,
	})
	if err == nil {
		err = delta.Outline(ctx, c.bodies)
	}
	if err != nil {
		return nil, nil, err
	}
	tree := c.tree.With(delta)
	manifest, err := tree.Manifest(ctx, c.bodies)
	return tree, manifest, err
}

// remove removes the copy; nil has none.
func (c *workspaceCopy) remove() {
	if c != nil && c.bodies != "" {
		_ = os.RemoveAll(string(c.bodies)) // the system cleans its temporary files
	}
}

// restore brings the directory back to what it was.
func (c *workspaceCopy) restore(ctx context.Context) (changes snapshot.Changes, err error) {
	if c.fault != nil {
		return changes, c.fault
	}
	_, now, err := c.now(ctx)
	if err != nil {
		return changes, err
	}
	root, err := os.OpenRoot(c.dir)
	if err != nil {
		return changes, err
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	return snapshot.Sync(ctx, root, now, c.tree, c.bodies, &snapshot.Options{Protect: c.protect, Skip: isGit})
}

// diff is what has changed since, as a unified diff.
func (c *workspaceCopy) diff(ctx context.Context) (string, error) {
	if c.fault != nil {
		return "", c.fault
	}
	tree, now, err := c.now(ctx)
	if err != nil {
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
		text.WriteString(c.fileDiff(ctx, path, c.tree[path], tree[path]))
	}
	return text.String(), nil
}

// read returns the name for a diff of what was at a path, and the text; ok is false for what has
// none. The zero node is nothing.
func (c *workspaceCopy) read(ctx context.Context, node snapshot.Node, prefix, path string) (name, text string, ok bool) {
	switch node.Type {
	case "":
		return os.DevNull, "", true
	case sandbox.TypeSymlink:
		return prefix + path, node.Target, true
	case sandbox.TypeFile:
	default:
		return "", "", false
	}
	content, err := snapshot.LoadBytes(ctx, c.bodies, node.Parts, maxShownFile)
	return prefix + path, string(content), err == nil && utf8.Valid(content)
}

func (c *workspaceCopy) fileDiff(ctx context.Context, path string, before, after snapshot.Node) string {
	if before.Type == sandbox.TypeDir || after.Type == sandbox.TypeDir {
		return "" // its files tell
	}
	from, old, ok := c.read(ctx, before, "a/", path)
	to, text, ok2 := c.read(ctx, after, "b/", path)
	if !ok || !ok2 {
		return "Binary or large file " + path + " differs\n"
	}
	diff, err := udiff.ToUnified(from, to, old, udiff.Lines(old, text), udiff.DefaultContextLines)
	if err != nil || diff == "" {
		return "Mode of " + path + " differs\n"
	}
	return diff
}
