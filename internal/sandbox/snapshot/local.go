package snapshot

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/toolfleet/toolfleet/internal/system"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// attempts is how often a path is looked at that changes between look and read.
const attempts = 10

// copyBuffer is how much is read at a time.
const copyBuffer = 256 << 10

// local is what is in a directory now. Directories of ours that their mode keeps from
// being used are opened up on the way, until relock.
type local struct {
	root   *os.Root
	buf    []byte
	locked map[string]fs.FileMode // the modes of directories that were opened up
}

// at returns what is at a path, the zero entry when there is nothing. No link is
// followed: below one there is nothing.
func (l *local) at(ctx context.Context, name string) (Entry, error) {
	for range attempts {
		dir := path.Dir(name)
		if stands, err := l.standing(dir); err != nil || stands != dir {
			return Entry{}, err
		}
		info, err := l.root.Lstat(name)
		if err != nil {
			if gone(err) {
				err = nil
			}
			return Entry{}, err
		}
		entry, err := l.entry(ctx, name, info)
		if !errors.Is(err, errChanged) {
			return entry, err
		}
	}
	return Entry{}, fmt.Errorf("%q changes all the time", name)
}

// standing returns the longest part of a directory's path that is made of directories.
func (l *local) standing(dir string) (string, error) {
	stands := "."
	if dir == "." {
		return stands, nil
	}
	for part := range strings.SplitSeq(dir, "/") {
		next := path.Join(stands, part)
		info, err := l.root.Lstat(next)
		if err != nil && gone(err) || err == nil && !info.IsDir() {
			return stands, nil
		}
		if err != nil {
			return "", err
		}
		l.open(next, info)
		stands = next
	}
	return stands, nil
}

// open makes a directory readable and writable. If that fails, so does the operation that needs it.
func (l *local) open(name string, info fs.FileInfo) {
	if mode := info.Mode().Perm(); !privileged() && mode&0o700 != 0o700 {
		if l.root.Chmod(name, mode|0o700) == nil {
			l.locked[name] = mode
		}
	}
}

// relock gives directories that were opened up their modes back, and others those that
// modes says; the deepest first.
func (l *local) relock(modes map[string]fs.FileMode) error {
	all := maps.Clone(l.locked)
	maps.Copy(all, modes)
	for _, name := range slices.Backward(slices.Sorted(maps.Keys(all))) {
		info, err := l.root.Lstat(name)
		if err != nil && gone(err) || err == nil && !info.IsDir() {
			continue
		}
		if err == nil {
			err = l.root.Chmod(name, all[name])
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (l *local) entry(ctx context.Context, name string, info fs.FileInfo) (Entry, error) {
	switch info.Mode().Type() {
	case 0:
		return l.file(ctx, name, info)
	case fs.ModeDir:
		mode, locked := l.locked[name]
		if !locked {
			mode = info.Mode().Perm()
		}
		return Entry{Type: protocol.TypeDir, Mode: mode}, nil
	case fs.ModeSymlink:
		target, err := l.root.Readlink(name)
		return Entry{Type: protocol.TypeSymlink, Target: filepath.ToSlash(target)}, err
	default:
		return Entry{Type: protocol.TypeOther}, nil
	}
}

func (l *local) file(ctx context.Context, name string, info fs.FileInfo) (Entry, error) {
	file, err := openFile(l.root, name, info)
	if err != nil {
		return Entry{}, err
	}
	defer file.Close()
	entry := Entry{Type: protocol.TypeFile, Mode: info.Mode().Perm()}
	hash, sparse := newDigest(), hasHoles(info)
	for {
		if err := ctx.Err(); err != nil {
			return Entry{}, err
		}
		if hole := int64(0); sparse {
			if hole, err = skipHole(file, entry.Size, info.Size()); err != nil {
				return Entry{}, err
			}
			hash.zeros(hole)
			entry.Size += hole
		}
		n, err := file.Read(l.buf)
		_, _ = hash.Write(l.buf[:n])
		entry.Size += int64(n)
		if errors.Is(err, io.EOF) {
			entry.SHA256 = hash.sum()
			return entry, nil
		}
		if err != nil {
			return Entry{}, err
		}
	}
}

// skipHole moves a file from an offset behind the hole that begins there, at most to end. It
// returns how long that is.
func skipHole(file *os.File, from, end int64) (hole int64, err error) {
	hole = max(min(holeAt(file, from), end-from), 0)
	_, err = file.Seek(from+hole, io.SeekStart)
	return hole, err
}

// stage keeps contents of a tree in files, in a directory below the root so that they can be
// renamed into place. It makes the directory when it needs it.
type stage struct {
	root  *os.Root
	owner system.Owner
	dir   string
	files int
}

// fetch has what files of a tree contain that are not as in base in files.
func (s *stage) fetch(ctx context.Context, base, theirs Manifest, tree Tree, bodies Bodies) (staged map[string]string, err error) {
	wanted, staged := Tree{}, map[string]string{}
	now := time.Now().UnixNano() // a make that runs here is to see that they are new
	for name, entry := range theirs {
		if entry.Type != protocol.TypeFile || entry == base[name] {
			continue
		}
		if staged[name], err = s.file(); err != nil {
			return nil, err
		}
		node := tree[name]
		node.ModTime = now
		wanted[path.Base(staged[name])] = node
	}
	if len(wanted) == 0 {
		return staged, nil
	}
	if err := s.owner.GiveIn(s.root, s.dir); err != nil {
		return nil, err
	}
	dir, err := s.root.OpenRoot(s.dir)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, dir.Close()) }()
	_, err = Restore(ctx, dir, wanted, Index{}, bodies, nil)
	return staged, err
}

// file returns a path that nothing is at.
func (s *stage) file() (string, error) {
	if s.dir == "" {
		dir := system.TempName()
		if err := s.root.Mkdir(dir, 0o700); err != nil {
			return "", err
		}
		s.dir = dir
	}
	s.files++
	return path.Join(s.dir, strconv.Itoa(s.files)), nil
}

// remove removes the directory, and joins what goes wrong to *err.
func (s *stage) remove(err *error) {
	if s.dir != "" {
		*err = errors.Join(*err, system.RemoveIn(s.root, s.dir)) // commands may have made that hard
	}
}

// staleAfter is how old a temporary directory is whose process was surely lost.
const staleAfter = 24 * time.Hour

// removeStages removes the directories of stages whose process was lost.
func removeStages(root *os.Root) error {
	dir, err := root.Open(".")
	if err != nil {
		return err
	}
	entries, err := dir.ReadDir(-1)
	if err = errors.Join(err, dir.Close()); err != nil {
		return err
	}
	for _, entry := range entries {
		if !entry.IsDir() || !strings.HasPrefix(entry.Name(), system.TempPrefix) || !strings.HasSuffix(entry.Name(), system.TempSuffix) {
			continue
		}
		info, err := entry.Info()
		if err == nil && time.Since(info.ModTime()) > staleAfter {
			err = system.RemoveIn(root, entry.Name())
		}
		if err != nil && !gone(err) {
			return err
		}
	}
	return nil
}
