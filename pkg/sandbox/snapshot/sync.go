package snapshot

import (
	"context"
	"errors"
	"fmt"
	"io"
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
	// Theirs are the files that hold what the archive has for conflicts.
	Theirs []string
	// Archive is what the archive has: the base of the next Sync of the two.
	Archive Manifest
}

// Sync brings into root what changed in the archive r since base, which is what root
// contained when the two were last the same; nil is nothing. The table in the package
// comment says what happens to a path. Nothing is lost: of a file in conflict, the
// archive's content is put beside it as NAME.toolfleet-theirs, with a number when that
// exists and is another; when there is no directory for it, into the nearest one above,
// with "-" for "/". A directory that goes but still holds something stays.
//
// The archive is read to its end before anything changes, so one that is refused changes
// nothing (errors as of [Unpack]); until then, changed contents take space in a directory
// .toolfleet-*.tmp below root. Each file changes by rename. After another error, or a
// crash, part of the changes are made: the same Sync again makes the rest; a crash leaves
// the temporary directory behind. Something that writes to root at the same time can
// lose what it writes to a path in the moment in which it is changed.
func Sync(ctx context.Context, root *os.Root, base Manifest, r io.Reader, options *Options) (Changes, error) {
	opts := options.withDefaults()
	return bring(ctx, root, base, opts, func(st *stage) (Manifest, map[string]string, error) {
		return receive(ctx, base, r, opts, st)
	})
}

// SyncTree is [Sync] with a tree, which has passed [Tree.Validate], in the place of an archive. Of
// contents that are as in base nothing is fetched.
func SyncTree(ctx context.Context, root *os.Root, base Manifest, tree Tree, bodies Bodies, options *Options) (Changes, error) {
	opts := options.withDefaults()
	return bring(ctx, root, base, opts, func(st *stage) (Manifest, map[string]string, error) {
		all, err := tree.Manifest(ctx, bodies)
		if err != nil {
			return nil, nil, err
		}
		theirs := withoutSkipped(all, opts.Skip)
		staged, err := st.fetch(ctx, base, theirs, tree, bodies)
		return theirs, staged, err
	})
}

func bring(ctx context.Context, root *os.Root, base Manifest, opts Options, receive func(*stage) (Manifest, map[string]string, error)) (Changes, error) {
	changes, err := bringFrom(ctx, root, base, opts, receive)
	if err != nil {
		return changes, fmt.Errorf("sync %s: %w", root.Name(), err)
	}
	return changes, nil
}

func bringFrom(ctx context.Context, root *os.Root, base Manifest, opts Options, receive func(*stage) (Manifest, map[string]string, error)) (c Changes, err error) {
	for name := range base {
		if err := checkName(name); err != nil {
			return Changes{}, fmt.Errorf("base: %w", err)
		}
	}
	to, err := findOwner(root)
	if err != nil {
		return Changes{}, err
	}
	buf := make([]byte, copyBuffer)
	st := &stage{root: root, owner: to, buf: buf}
	defer st.remove(&err)
	theirs, staged, err := receive(st)
	if err != nil {
		return Changes{}, err
	}
	m := &merge{
		root: root, owner: to, local: &local{root: root, buf: buf, locked: map[string]fs.FileMode{}},
		base: withoutSkipped(base, opts.Skip), theirs: theirs, staged: staged, protect: opts.Protect,
		modes: map[string]fs.FileMode{}, conflicts: map[string]bool{},
	}
	err = m.run(ctx)
	m.changes.Archive = theirs
	for _, list := range []*[]string{&m.changes.Written, &m.changes.Removed, &m.changes.Conflicts, &m.changes.Theirs, &m.changes.Protected} {
		slices.Sort(*list)
		*list = slices.Compact(*list)
	}
	return m.changes, err
}

// receive reads an archive to its end. It returns what is in it, and where the files
// are staged that are not as in base.
func receive(ctx context.Context, base Manifest, r io.Reader, opts Options, st *stage) (Manifest, map[string]string, error) {
	in, err := newReader(ctx, r, opts)
	if err != nil {
		return nil, nil, err
	}
	defer in.close()
	theirs, staged := Manifest{}, map[string]string{}
	for {
		it, err := in.next()
		if errors.Is(err, io.EOF) {
			return theirs, staged, nil
		}
		if err != nil {
			return nil, nil, err
		}
		entry, file := it.entry, ""
		if entry.Type == sandbox.TypeFile {
			if entry, file, err = st.add(it, base[it.name]); err != nil {
				return nil, nil, err
			}
		}
		theirs[it.name] = entry
		if file != "" {
			staged[it.name] = file
		}
	}
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
