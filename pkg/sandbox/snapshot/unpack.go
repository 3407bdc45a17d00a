package snapshot

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"

	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// Unpack makes in root what the archive r contains. The files, directories and links get
// the modes and, but for links, the modification times of the archive; and the
// owner of root's directory when this process runs as root.
//
// Directories of the archive may exist already; anything else that does is an error
// that wraps fs.ErrExist. An archive that is hostile, too large or damaged is refused
// with [ErrUnsafe], [ErrLimit] or [ErrCorrupt]. After an error root contains a part of
// the archive: unpack into a directory that can be thrown away, or use [Sync], which
// reads an archive to its end before it changes anything.
func Unpack(ctx context.Context, root *os.Root, r io.Reader, options *Options) (Stats, error) {
	stats, err := unpack(ctx, root, r, options.withDefaults())
	if err != nil {
		return Stats{}, fmt.Errorf("unpack to %s: %w", root.Name(), err)
	}
	return stats, nil
}

func unpack(ctx context.Context, root *os.Root, r io.Reader, opts Options) (Stats, error) {
	to, err := findOwner(root)
	if err != nil {
		return Stats{}, err
	}
	in, err := newReader(ctx, r, opts)
	if err != nil {
		return Stats{}, err
	}
	defer in.close()
	u := &unpacker{root: root, owner: to, buf: make([]byte, copyBuffer)}
	for {
		it, err := in.next()
		if errors.Is(err, io.EOF) {
			return u.stats, u.finish()
		}
		if err == nil {
			err = u.put(it)
		}
		if err != nil {
			return Stats{}, err
		}
	}
}

// unpacker is one run of [Unpack].
type unpacker struct {
	root  *os.Root
	owner owner
	dirs  []item // parents first
	links []item
	stats Stats
	buf   []byte
}

func (u *unpacker) put(it item) error {
	switch it.entry.Type {
	case sandbox.TypeDir:
		u.dirs = append(u.dirs, it)
		return u.directory(it.name)
	case sandbox.TypeSymlink:
		u.links = append(u.links, it)
		return nil
	default:
		return u.file(it)
	}
}

// directory makes a directory that only we may use, until finish.
func (u *unpacker) directory(name string) error {
	err := u.root.Mkdir(name, 0o700)
	if err == nil {
		return u.owner.adoptName(u.root, name)
	}
	if !errors.Is(err, fs.ErrExist) {
		return err
	}
	info, lerr := u.root.Lstat(name)
	switch {
	case lerr != nil:
		return lerr
	case info.Mode().Type() == fs.ModeSymlink:
		return unsafef(name, "a symbolic link stands where it belongs")
	case !info.IsDir():
		return err
	default:
		_, err := unlock(u.root, name, info)
		return err
	}
}

func (u *unpacker) file(it item) error {
	err := writeNew(u.root, it.name, it.entry.Mode, u.owner, func(w io.Writer) error {
		_, err := io.CopyBuffer(w, onlyReader{it.body}, u.buf)
		return err
	})
	if err != nil {
		return err
	}
	u.stats.Files++
	u.stats.Bytes += it.entry.Size
	return u.root.Chtimes(it.name, it.modTime, it.modTime)
}

// finish makes the links, which nothing was written through, and then gives the
// directories their modes, the deepest first.
func (u *unpacker) finish() error {
	for _, it := range u.links {
		if err := u.root.Symlink(it.entry.Target, it.name); err != nil {
			return err
		}
		if err := u.owner.adoptName(u.root, it.name); err != nil {
			return err
		}
	}
	for _, it := range slices.Backward(u.dirs) {
		if err := u.root.Chtimes(it.name, it.modTime, it.modTime); err != nil {
			return err
		}
		if err := u.root.Chmod(it.name, it.entry.Mode); err != nil {
			return err
		}
	}
	return nil
}

// writeNew makes a file that does not exist yet, and removes it when that fails.
func writeNew(root *os.Root, name string, mode fs.FileMode, to owner, fill func(io.Writer) error) error {
	file, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL|nofollow, 0o600)
	if err != nil {
		return err
	}
	err = fill(onlyWriter{file})
	if err == nil {
		err = to.adopt(file)
	}
	if err == nil {
		err = file.Chmod(mode)
	}
	if err = errors.Join(err, file.Close()); err != nil {
		return errors.Join(err, root.Remove(name))
	}
	return nil
}

// onlyReader and onlyWriter hide what else their value can, so that copying uses the
// buffer that it is given.
type (
	onlyReader struct{ io.Reader }
	onlyWriter struct{ io.Writer }
)
