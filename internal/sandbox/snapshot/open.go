package snapshot

import (
	"errors"
	"io/fs"
	"os"
)

// errChanged says that a path was replaced while it was read.
var errChanged = errors.New("it changed while it was read")

// gone says that an error means that nothing is at a path.
func gone(err error) bool { return errors.Is(err, fs.ErrNotExist) || notDirectory(err) }

// OpenSame opens what seen describes, for reading, without blocking. A root follows symbolic links
// that stay inside, so the opened file is compared with the one seen before.
func OpenSame(root *os.Root, name string, seen fs.FileInfo) (*os.File, error) {
	file, err := root.OpenFile(name, os.O_RDONLY|nonblock|nofollow, 0)
	if err != nil {
		if gone(err) || unopenable(err) {
			err = errChanged
		}
		return nil, err
	}
	info, err := file.Stat()
	if err == nil && (info.Mode().Type() != seen.Mode().Type() || !os.SameFile(info, seen)) {
		err = errChanged
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}

// openDirectory opens the directory that seen describes as a root of its own.
func openDirectory(root *os.Root, name string, seen fs.FileInfo) (*os.Root, error) {
	dir, err := root.OpenRoot(name)
	if err != nil {
		if gone(err) {
			err = errChanged
		}
		return nil, err
	}
	info, err := dir.Stat(".")
	if err == nil && !os.SameFile(info, seen) { // a link was put there
		err = errChanged
	}
	if err != nil {
		return nil, errors.Join(err, dir.Close())
	}
	return dir, nil
}

// openFile is OpenSame for a regular file, and opens one of ours that its mode forbids
// to read. The mode is put back at once.
func openFile(root *os.Root, name string, seen fs.FileInfo) (*os.File, error) {
	file, err := OpenSame(root, name, seen)
	if !errors.Is(err, fs.ErrPermission) {
		return file, err
	}
	mode := seen.Mode().Perm()
	if root.Chmod(name, mode|0o400) != nil {
		return nil, err
	}
	file, err = OpenSame(root, name, seen)
	if back := root.Chmod(name, mode); err == nil && back != nil && !gone(back) {
		return nil, errors.Join(back, file.Close())
	}
	return file, err
}

// unlock makes a directory of ours readable and writable when its mode forbids it, until
// the returned function is called.
func unlock(root *os.Root, name string, info fs.FileInfo) (lock func() error, err error) {
	mode := info.Mode().Perm()
	if privileged() || mode&0o700 == 0o700 {
		return func() error { return nil }, nil
	}
	if err := root.Chmod(name, mode|0o700); err != nil && !gone(err) {
		return nil, err
	}
	return func() error {
		if err := root.Chmod(name, mode); err != nil && !gone(err) {
			return err
		}
		return nil
	}, nil
}

// owner is who new files belong to: the owner of the directory when this process may
// give files away, else none.
type owner struct {
	uid, gid int
	give     bool
}

func findOwner(root *os.Root) (owner, error) {
	info, err := root.Stat(".")
	if err != nil {
		return owner{}, err
	}
	uid, gid, ok := ownerOf(info)
	return owner{uid: uid, gid: gid, give: ok}, nil
}

// adopt gives an open file to the owner.
func (o owner) adopt(file *os.File) error {
	if !o.give {
		return nil
	}
	return file.Chown(o.uid, o.gid)
}

// adoptName gives what is at a path to the owner, and follows no link.
func (o owner) adoptName(root *os.Root, name string) error {
	if !o.give {
		return nil
	}
	return root.Lchown(name, o.uid, o.gid)
}
