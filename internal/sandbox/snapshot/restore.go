package snapshot

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/toolfleet/toolfleet/internal/system"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// RestoreStats count what one [Restore] did.
type RestoreStats struct {
	Written int   // files that were written
	Bytes   int64 // of them, holes excepted
	Removed int   // paths, each with all that was below it
}

// Restore changes root until it is the same as tree, and updates index. It fetches only missing
// contents: files that index knows are not read, others are compared with the tree. It does not
// touch paths that skip names; nil skips nothing. No other writer may use root meanwhile.
//
// Files and links belong to the owner of root when this process runs as root. Every content is
// checked against its sum, and nothing outside of root is touched, whatever the tree says; it
// should have passed [Tree.Validate]. After an error root is between what it was and the tree;
// another Restore continues from there. The error wraps [ErrCorrupt] when a body is not what the
// tree says.
func Restore(ctx context.Context, root *os.Root, tree Tree, index Index, bodies Bodies, skip func(path string, isDir bool) bool) (RestoreStats, error) {
	skip = skipping(skip)
	r := &restorer{root: root, tree: tree, skip: skip, index: index, bodies: bodies, modes: map[string]fs.FileMode{}}
	err := r.restore(ctx)
	if err != nil {
		return r.stats, fmt.Errorf("restore %s: %w", root.Name(), err)
	}
	return r.stats, nil
}

// restorer is one run of [Restore].
type restorer struct {
	root   *os.Root
	tree   Tree
	skip   func(string, bool) bool
	index  Index
	bodies Bodies
	owner  system.Owner
	missed []string // paths of the tree to make
	modes  map[string]fs.FileMode
	stats  RestoreStats

	mu sync.Mutex // guards the index and stats while files are written
}

func (r *restorer) restore(ctx context.Context) (err error) {
	if r.owner, err = findOwner(r.root); err != nil {
		return err
	}
	found, err := compare(ctx, r.root, r.tree, r.index, nil, r.skip, nil, nil)
	if err != nil {
		return err
	}
	if found.Empty() {
		return nil
	}
	defer func() { err = errors.Join(err, r.setModes()) }()
	if err := r.clear(found); err != nil {
		return err
	}
	slices.Sort(r.missed)
	if err := r.structure(); err != nil {
		return err
	}
	return r.files(ctx)
}

// clear removes paths that the tree does not have, or has with another type or content, and records
// those that root lacks.
func (r *restorer) clear(found *Delta) error {
	gone := map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(found.Set)) {
		if isBelow(name, gone) {
			continue
		}
		want, is := r.tree[name]
		have := found.Set[name]
		if err := r.makeWritable(parent(name)); err != nil {
			return err
		}
		if is && want.sameContent(have) {
			if err := r.setMetadata(name, want); err != nil {
				return err
			}
			continue
		}
		if err := system.RemoveIn(r.root, name); err != nil {
			return err
		}
		r.stats.Removed++
		gone[name] = true
	}
	for _, name := range found.Removed {
		gone[name] = true
	}
	for name, node := range r.tree {
		if (gone[name] || isBelow(name, gone)) && !r.skip(name, node.Type == protocol.TypeDir) {
			r.missed = append(r.missed, name)
			delete(r.index, name)
		}
	}
	return nil
}

// makeWritable lets this process change what is in a directory, until setModes.
func (r *restorer) makeWritable(dir string) error {
	if dir == "." || privileged() {
		return nil
	}
	if err := r.makeWritable(parent(dir)); err != nil {
		return err
	}
	if _, is := r.modes[dir]; is {
		return nil
	}
	info, err := r.root.Lstat(dir)
	if err != nil || !info.IsDir() || info.Mode().Perm()&0o700 == 0o700 {
		return err
	}
	r.modes[dir] = info.Mode().Perm()
	return r.root.Chmod(dir, info.Mode().Perm()|0o700)
}

// setModes gives directories the modes that they are to have, the deepest first.
func (r *restorer) setModes() error {
	for _, name := range slices.Backward(slices.Sorted(maps.Keys(r.modes))) {
		mode := r.modes[name]
		if want, is := r.tree[name]; is && want.Type == protocol.TypeDir {
			mode = want.Mode
		}
		if err := r.root.Chmod(name, mode); err != nil && !gone(err) {
			return err
		}
	}
	return nil
}

// structure makes directories and symbolic links.
func (r *restorer) structure() error {
	for _, name := range r.missed {
		node := r.tree[name]
		if node.Type == protocol.TypeFile {
			continue
		}
		err := r.makeWritable(parent(name))
		switch {
		case err != nil:
		case node.Type == protocol.TypeDir:
			err = r.root.Mkdir(name, 0o700)
			r.modes[name] = node.Mode
		default:
			err = r.root.Symlink(node.Target, name)
		}
		if err == nil {
			err = r.owner.GiveIn(r.root, name)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// piece is a part of a file that is to be written.
type piece struct {
	name string
	part Part
	from int64 // in the file
}

// files writes the contents of files, body by body.
func (r *restorer) files(ctx context.Context) error {
	wanted := map[string][]piece{}
	var several, names []string
	for _, name := range r.missed {
		node := r.tree[name]
		if node.Type != protocol.TypeFile {
			continue
		}
		if err := r.makeWritable(parent(name)); err != nil {
			return err
		}
		names = append(names, name)
		if len(node.Parts) != 1 || node.Parts[0].Sum == "" { // made before its parts are written
			if err := r.make(name, node); err != nil {
				return err
			}
			several = append(several, name)
		}
		var from int64
		for _, part := range node.Parts {
			if part.Sum != "" {
				wanted[part.Body] = append(wanted[part.Body], piece{name: name, part: part, from: from})
			}
			from += part.Size
		}
	}
	group, within := errgroup.WithContext(ctx)
	group.SetLimit(stores)
	for _, body := range slices.Sorted(maps.Keys(wanted)) {
		group.Go(func() error { return r.body(within, body, wanted[body]) })
	}
	if err := group.Wait(); err != nil {
		return err
	}
	for _, name := range several {
		if err := r.setMetadata(name, r.tree[name]); err != nil {
			return err
		}
	}
	return r.note(names)
}

// make makes a file of the right size, of zeros.
func (r *restorer) make(name string, node Node) error {
	return r.owner.CreateIn(r.root, name, 0o600, func(file *os.File) error { return file.Truncate(node.Size) })
}

// body fetches a body and writes the pieces that it has.
func (r *restorer) body(ctx context.Context, name string, pieces []piece) (err error) {
	raw, err := fetch(ctx, r.bodies, name)
	if err != nil {
		return err
	}
	var open openDir
	defer func() { err = errors.Join(err, open.close()) }()
	for _, p := range pieces {
		if err := ctx.Err(); err != nil {
			return err
		}
		content, err := p.part.of(raw)
		if err != nil {
			return fmt.Errorf("%q: %w", p.name, err)
		}
		r.mu.Lock()
		r.stats.Bytes += p.part.Size
		r.mu.Unlock()
		dir, err := open.at(r.root, parent(p.name))
		if err == nil {
			err = r.write(dir, p, content)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// openDir is the directory that was used last, which is likely to be that of the next path.
type openDir struct {
	name string
	root *os.Root
}

// at opens a directory.
func (d *openDir) at(root *os.Root, name string) (*os.Root, error) {
	if d.root != nil && d.name == name {
		return d.root, nil
	}
	if err := d.close(); err != nil {
		return nil, err
	}
	opened, err := root.OpenRoot(name)
	if err != nil {
		return nil, err
	}
	d.name, d.root = name, opened
	return opened, nil
}

func (d *openDir) close() error {
	if d.root == nil {
		return nil
	}
	defer func() { d.root = nil }()
	return d.root.Close()
}

// write writes a piece, and completes its file when it is all of it.
func (r *restorer) write(dir *os.Root, p piece, content []byte) error {
	node, base := r.tree[p.name], path.Base(p.name)
	if len(node.Parts) == 1 {
		err := r.owner.CreateIn(dir, base, node.Mode, func(file *os.File) error {
			_, err := file.Write(content)
			return err
		})
		if err != nil {
			return err
		}
		return dated(dir, base, node)
	}
	file, err := dir.OpenFile(base, os.O_WRONLY|system.NoFollow, 0)
	if err != nil {
		return err
	}
	_, err = file.WriteAt(content, p.from)
	return errors.Join(err, file.Close())
}

// setMetadata gives a directory its mode, or a file that and its time.
func (r *restorer) setMetadata(name string, node Node) error {
	if err := r.root.Chmod(name, node.Mode); err != nil || node.Type != protocol.TypeFile {
		return err
	}
	return dated(r.root, name, node)
}

func dated(dir *os.Root, name string, node Node) error {
	at := time.Unix(0, node.ModTime)
	return dir.Chtimes(name, at, at)
}

// note remembers the files that were written.
func (r *restorer) note(names []string) (err error) {
	now := time.Now()
	var open openDir
	defer func() { err = errors.Join(err, open.close()) }()
	for _, name := range names {
		dir, err := open.at(r.root, parent(name))
		if err != nil {
			return err
		}
		info, err := dir.Lstat(path.Base(name))
		if err != nil {
			return err
		}
		r.index.note(name, info, r.tree[name], now)
		r.stats.Written++
	}
	return nil
}
