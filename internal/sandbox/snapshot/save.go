package snapshot

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Save compares root with last, stores new contents in bodies, and returns the changes. Files that
// index knows to be as in last are not read. index is brought up to date.
//
// Holes of files are not read where the system tells them, and not stored. Hard links become files
// of their own; FIFOs, sockets and devices are left out; modes lose all but the permission bits.
// What is written to meanwhile is what was read, up to the size that it had: a mixture maybe, which
// the next Save finds changed.
//
// After an error nothing is to be applied, and bodies that were stored are garbage. It wraps
// [ErrLimit] when root is too large, fs.ErrPermission when something cannot be read.
func Save(ctx context.Context, root *os.Root, last Tree, index Index, bodies Bodies, options *Options) (*Delta, error) {
	opts := options.withDefaults()
	delta, err := compare(ctx, root, last, index, bodies, opts.Skip, &opts.Limits, opts.Only)
	if err != nil {
		return nil, fmt.Errorf("save %s: %w", root.Name(), err)
	}
	return delta, nil
}

func compare(ctx context.Context, root *os.Root, last Tree, index Index, bodies Bodies, skip func(string, bool) bool, limits *Limits, only []string) (*Delta, error) {
	s := &saver{
		root: root, last: last, index: index, skip: skip, bundle: newBundle(ctx, bodies),
		delta: &Delta{Set: Tree{}}, found: map[string]bool{}, gone: map[string]bool{},
	}
	if limits != nil {
		s.budget = &budget{limits: *limits}
	}
	err := s.save(ctx, only)
	s.delta.Removed = topmost(s.gone)
	return s.delta, errors.Join(err, s.bundle.finish(s.delta, err != nil))
}

// saver is one run of [Save].
type saver struct {
	root   *os.Root
	last   Tree
	index  Index
	skip   func(string, bool) bool
	bundle *bundle
	budget *budget // nil when root is only compared: then nothing is bound, and what last does not have is not looked into
	delta  *Delta
	found  map[string]bool // paths that are there
	gone   map[string]bool // paths of last that are not, or are something else
	all    bool            // everything is looked at
}

func (s *saver) save(ctx context.Context, only []string) error {
	if only == nil || slices.Contains(only, ".") {
		s.all = true
		info, err := s.root.Stat(".")
		if err != nil {
			return err
		}
		if err := s.inside(ctx, s.root, ".", ".", info); err != nil {
			return err
		}
		for name := range s.last {
			s.lost(name)
		}
		return nil
	}
	for _, name := range only {
		name = path.Clean(name)
		linked, err := s.savePath(ctx, name)
		if err != nil {
			return err
		}
		if linked { // what changed may be anywhere
			return s.save(ctx, nil)
		}
		s.lostFrom(name)
	}
	return nil
}

// savePath looks at a path, and at the directories that it is in. linked says that a symbolic link
// is on it.
func (s *saver) savePath(ctx context.Context, name string) (linked bool, err error) {
	if checkName(name) != nil { // nothing can be there
		return false, nil
	}
	at := ""
	for part := range strings.SplitSeq(name, "/") {
		at = path.Join(at, part)
		info, err := s.root.Lstat(at)
		switch {
		case err != nil && gone(err):
			s.lostFrom(at)
			return false, nil
		case err != nil:
			return false, err
		case s.skip(at, info.IsDir()):
			return false, nil
		case info.Mode().Type() == fs.ModeSymlink:
			return true, nil
		case at == name || !info.IsDir():
			return false, s.entry(ctx, s.root, at, at, info)
		}
		s.directory(at, info)
	}
	return false, nil
}

// lostFrom records a path, and the paths below it, that no longer exist.
func (s *saver) lostFrom(name string) {
	before, was := s.last[name]
	if !was {
		return
	}
	s.lost(name)
	if before.Type != protocol.TypeDir {
		return
	}
	for below := range s.last {
		if strings.HasPrefix(below, name+"/") {
			s.lost(below)
		}
	}
}

// lost notes that a path of last is not there any more, unless it was found.
func (s *saver) lost(name string) {
	if !s.found[name] {
		s.gone[name] = true
		delete(s.index, name)
	}
}

// inside saves what is in a directory of above.
func (s *saver) inside(ctx context.Context, above *os.Root, base, name string, info fs.FileInfo) (err error) {
	if err := ctx.Err(); err != nil {
		return err
	}
	lock, err := unlock(above, base, info)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lock()) }()
	dir, entries, err := list(above, base, info)
	if errors.Is(err, errChanged) && name != "." { // the next save finds that it was removed or replaced
		return nil
	}
	if err != nil {
		return err
	}
	defer dir.Close()
	for _, entry := range entries {
		at := path.Join(name, entry.Name())
		info, err := entry.Info()
		if err != nil && gone(err) || err == nil && s.skip(at, info.IsDir()) {
			continue
		}
		if err == nil {
			err = s.entry(ctx, dir, entry.Name(), at, info)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// list opens the directory that info describes, and reads what is in it, sorted.
func list(above *os.Root, base string, info fs.FileInfo) (*os.Root, []fs.DirEntry, error) {
	dir, err := openDirectory(above, base, info)
	if err != nil {
		return nil, nil, err
	}
	file, err := dir.Open(".")
	if err != nil {
		return nil, nil, errors.Join(err, dir.Close())
	}
	entries, err := file.ReadDir(-1)
	if err != nil && gone(err) { // the system says so of an open directory that was removed
		err = errChanged
	}
	if err = errors.Join(err, file.Close()); err != nil {
		return nil, nil, errors.Join(err, dir.Close())
	}
	slices.SortFunc(entries, func(a, b fs.DirEntry) int { return cmp.Compare(a.Name(), b.Name()) })
	return dir, entries, nil
}

// entry saves what is at a path, in dir, as info describes it.
func (s *saver) entry(ctx context.Context, dir *os.Root, base, name string, info fs.FileInfo) error {
	switch info.Mode().Type() {
	case 0:
		return s.file(ctx, dir, base, name, info)
	case fs.ModeDir:
		s.directory(name, info)
		if s.budget == nil && s.last[name].Type != protocol.TypeDir {
			return nil
		}
		if err := s.budget.entry(name, ""); err != nil {
			return err
		}
		return s.inside(ctx, dir, base, name, info)
	case fs.ModeSymlink:
		target, err := dir.Readlink(base)
		if err != nil {
			if now, lerr := dir.Lstat(base); gone(err) || lerr == nil && now.Mode().Type() != fs.ModeSymlink {
				return nil // it has changed meanwhile: the next one finds what it is
			}
			return err
		}
		s.set(name, Node{Type: protocol.TypeSymlink, Target: filepath.ToSlash(target)})
		return s.budget.entry(name, target)
	default:
		return nil // a FIFO, a socket or a device
	}
}

func (s *saver) directory(name string, info fs.FileInfo) {
	s.set(name, Node{Type: protocol.TypeDir, Mode: info.Mode().Perm()})
}

// set notes what is at a path, and that it changed when it did.
func (s *saver) set(name string, node Node) {
	s.found[name] = true
	before, was := s.last[name]
	if !was || !before.Same(node) {
		if was && before.Type != node.Type {
			s.gone[name] = true
		}
		s.delta.Set[name] = node
	}
	if node.Type != protocol.TypeFile {
		delete(s.index, name)
	}
}

// file saves a regular file.
func (s *saver) file(ctx context.Context, dir *os.Root, base, name string, info fs.FileInfo) error {
	if s.budget == nil && s.last[name].Type != protocol.TypeFile {
		s.set(name, Node{Type: protocol.TypeFile})
		return nil
	}
	if err := s.budget.entry(name, ""); err != nil {
		return err
	}
	if before, was := s.last[name]; was && before.Type == protocol.TypeFile && s.index.matches(name, info, before) &&
		before.Mode == info.Mode().Perm() && before.ModTime == info.ModTime().UnixNano() {
		s.found[name] = true
		return s.budget.file(name, before)
	}
	file, err := openFile(dir, base, info)
	if errors.Is(err, errChanged) {
		return nil
	}
	if err != nil {
		return err
	}
	defer file.Close()
	now := time.Now()
	before, err := file.Stat()
	if err != nil {
		return err
	}
	node, err := s.read(ctx, name, file, before)
	if err != nil {
		return err
	}
	s.delta.Stats.Read++
	s.set(name, node)
	s.index.note(name, before, node, now)
	return nil
}

// read reads the content of a file, part by part, up to the size that info tells: a file may grow
// faster than it is read.
func (s *saver) read(ctx context.Context, name string, file *os.File, info fs.FileInfo) (Node, error) {
	node := Node{Type: protocol.TypeFile, Mode: info.Mode().Perm(), ModTime: info.ModTime().UnixNano()}
	if s.budget != nil && info.Size() > MaxSize {
		return Node{}, limitf(name, "it has more than %d bytes, with its holes", int64(MaxSize))
	}
	if err := s.budget.take(name, Usage{Sizes: info.Size()}); err != nil {
		return Node{}, err
	}
	s.bundle.addKnown(s.last, name, s.all)
	sparse := hasHoles(info)
	for {
		if err := ctx.Err(); err != nil {
			return Node{}, err
		}
		if sparse {
			node.hole(min(holeAt(file, node.Size), info.Size()-node.Size))
		}
		content, err := s.bundle.read(file, node.Size, info.Size())
		if err != nil {
			return Node{}, fmt.Errorf("%q: %w", name, err)
		}
		if len(content) == 0 {
			return node, nil
		}
		part, err := s.bundle.add(content)
		if err != nil {
			return Node{}, err
		}
		if part.Sum == "" {
			node.hole(part.Size)
			continue
		}
		if err := s.budget.content(name, part); err != nil {
			return Node{}, err
		}
		node.Size += part.Size
		if node.Parts = append(node.Parts, part); len(node.Parts) > MaxParts && s.budget != nil {
			return Node{}, limitf(name, "it has more than %d parts: too many holes", MaxParts)
		}
	}
}

// hole adds zeros to a file.
func (n *Node) hole(size int64) {
	n.Size += size
	if last := len(n.Parts) - 1; last >= 0 && n.Parts[last].Sum == "" {
		n.Parts[last].Size += size
	} else if size > 0 {
		n.Parts = append(n.Parts, Part{Size: size})
	}
}
