package snapshot

import (
	"context"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"

	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// Changes says what [Sync] did. Every list is of paths, sorted; a path that was
// what it should be already is in none.
type Changes struct {
	// Written were made or changed; directories that were made for them count.
	Written []string
	// Removed are no longer there.
	Removed []string
	// Conflicts changed on both sides and were left alone.
	Conflicts []string
	// Protected were to be changed and are in [Options].Protect: they were left alone.
	Protected []string
	// Theirs are the files that hold what the tree has for conflicts.
	Theirs []string
	// Base is what the tree has: the base of the next Sync of the two.
	Base Manifest
}

// Sync brings into root what changed in tree, which has passed [Tree.Validate], since base, which
// is what root contained when the two were last the same; nil is nothing. The table in the package
// comment says what happens to a path. Nothing is lost: of a file in conflict, the tree's content
// is put beside it as NAME.toolfleet-theirs, with a number when that exists and is another; when
// there is no directory for it, into the nearest one above, with "-" for "/". A directory that goes
// but still holds something stays.
//
// All contents are fetched before anything changes, so one that is missing or damaged changes
// nothing; until then they take space in a directory .toolfleet-*.tmp below root. Each file changes
// by rename. After another error, or a crash, part of the changes are made: the same Sync again
// makes the rest; a crash leaves the temporary directory behind. Something that writes to root at
// the same time can lose what it writes to a path in the moment in which it is changed.
func Sync(ctx context.Context, root *os.Root, base Manifest, tree Tree, bodies Bodies, options *Options) (Changes, error) {
	changes, err := bring(ctx, root, base, tree, bodies, options.withDefaults())
	if err != nil {
		return changes, fmt.Errorf("sync %s: %w", root.Name(), err)
	}
	return changes, nil
}

func bring(ctx context.Context, root *os.Root, base Manifest, tree Tree, bodies Bodies, opts Options) (c Changes, err error) {
	for name := range base {
		if err := checkName(name); err != nil {
			return Changes{}, fmt.Errorf("base: %w", err)
		}
	}
	to, err := findOwner(root)
	if err != nil {
		return Changes{}, err
	}
	all, err := tree.Manifest(ctx, bodies)
	if err != nil {
		return Changes{}, err
	}
	theirs := withoutSkipped(all, opts.Skip)
	st := &stage{root: root, owner: to}
	defer st.remove(&err)
	staged, err := st.fetch(ctx, base, theirs, tree, bodies)
	if err != nil {
		return Changes{}, err
	}
	m := &merge{
		root: root, owner: to, local: &local{root: root, buf: make([]byte, copyBuffer), locked: map[string]fs.FileMode{}},
		base: withoutSkipped(base, opts.Skip), theirs: theirs, staged: staged, protect: opts.Protect,
		modes: map[string]fs.FileMode{}, conflicts: map[string]bool{},
	}
	err = m.run(ctx)
	m.changes.Base = theirs
	for _, list := range []*[]string{&m.changes.Written, &m.changes.Removed, &m.changes.Conflicts, &m.changes.Theirs, &m.changes.Protected} {
		slices.Sort(*list)
		*list = slices.Compact(*list)
	}
	return m.changes, err
}

// withoutSkipped returns a manifest without the paths that are skipped.
func withoutSkipped(m Manifest, skip func(string, bool) bool) Manifest {
	kept := Manifest{}
	out := map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(m)) {
		isDir := m[name].Type == sandbox.TypeDir
		if out[parent(name)] || skip(name, isDir) {
			out[name] = true
			continue
		}
		kept[name] = m[name]
	}
	return kept
}
