// Package backup keeps the state of a directory from before a turn: [Copy] has its contents, for
// /undo and /diff; [Stamps] only says which files have changed since.
package backup

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
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Copy is a copy of a directory, or says why there is none. It leaves git's own files out.
type Copy struct {
	dir      string
	contents snapshot.Directory
	tree     snapshot.Tree
	manifest snapshot.Manifest
	index    snapshot.Index
	protect  []string
	err      error // why there is no copy
}

// Bounds of a copy: larger ones would take longer than their turns.
const (
	maxCopyBytes   = 256 << 20
	maxCopyEntries = 50_000
)

// maxDiffed bounds the files of which a difference is shown, in bytes.
const maxDiffed = 512 << 10

func isGit(path string, _ bool) bool { return path == ".git" }

// Of copies a directory. Places that are protected stay as they are when it is restored.
func Of(ctx context.Context, dir string, inPlace bool, protect []string) *Copy {
	c := &Copy{dir: dir, protect: protect, tree: snapshot.Tree{}, index: snapshot.Index{}}
	switch {
	case dir == "":
		c.err = errors.New("not possible without --workspace")
	case !inPlace:
		c.err = errors.New("not possible with --nats: the session works on a copy; git diff shows what came back")
	default:
		if c.err = c.save(ctx); c.err != nil {
			c.err = fmt.Errorf("not possible, the workspace could not be copied before: %w", c.err)
		}
	}
	return c
}

func (c *Copy) save(ctx context.Context) error {
	dir, err := os.MkdirTemp("", "toolfleet-copy-")
	if err != nil {
		return err
	}
	c.contents = snapshot.Directory(dir)
	c.tree, c.manifest, err = c.now(ctx)
	return err
}

// now returns what the directory is now. It adds new contents to those of the copy.
func (c *Copy) now(ctx context.Context) (_ snapshot.Tree, _ snapshot.Manifest, err error) {
	root, err := os.OpenRoot(c.dir)
	if err != nil {
		return nil, nil, err
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	delta, err := snapshot.Save(ctx, root, c.tree, c.index, c.contents, &snapshot.SaveOptions{
		Limits: snapshot.Limits{MaxBytes: maxCopyBytes, MaxEntries: maxCopyEntries}, Skip: isGit,
	})
	if err == nil {
		err = delta.Outline(ctx, c.contents)
	}
	if err != nil {
		return nil, nil, err
	}
	tree := c.tree.With(delta)
	manifest, err := tree.Manifest(ctx, c.contents)
	return tree, manifest, err
}

// Remove removes the copy; nil is fine.
func (c *Copy) Remove() {
	if c != nil && c.contents != "" {
		_ = os.RemoveAll(string(c.contents)) // the system cleans its temporary files
	}
}

// Restore makes the directory what it was.
func (c *Copy) Restore(ctx context.Context) (changes snapshot.Changes, err error) {
	if c.err != nil {
		return changes, c.err
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
	return snapshot.Sync(ctx, root, now, c.tree, c.contents, &snapshot.Options{Protect: c.protect, Skip: isGit})
}

// Diff returns what has changed since, as a unified diff.
func (c *Copy) Diff(ctx context.Context) (string, error) {
	if c.err != nil {
		return "", c.err
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

// read returns the name and the text of a path for a diff; ok is false if it has no text. The zero
// node means that nothing is there.
func (c *Copy) read(ctx context.Context, node snapshot.Node, prefix, path string) (name, text string, ok bool) {
	switch node.Type {
	case "":
		return os.DevNull, "", true
	case protocol.TypeSymlink:
		return prefix + path, node.Target, true
	case protocol.TypeFile:
	default:
		return "", "", false
	}
	content, err := snapshot.LoadBytes(ctx, c.contents, node.Parts, maxDiffed)
	return prefix + path, string(content), err == nil && utf8.Valid(content)
}

func (c *Copy) fileDiff(ctx context.Context, path string, before, after snapshot.Node) string {
	if before.Type == protocol.TypeDir || after.Type == protocol.TypeDir {
		return "" // its files say it
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
