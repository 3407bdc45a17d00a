package system

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Within reports whether a clean path is a directory or below it, by their names alone. "" and "."
// have every relative path below them.
func Within(dir, path string) bool {
	name, err := filepath.Rel(dir, path)
	return err == nil && name != ".." && !strings.HasPrefix(name, ".."+string(filepath.Separator))
}

// Owner is the user and group to which this process, when it is root, gives the files that it makes
// for another user. The zero value gives nothing.
type Owner struct {
	uid, gid int
	gives    bool
}

// OwnerOf returns the owner of a file. It gives nothing unless this process is root, which alone
// can.
func OwnerOf(info fs.FileInfo) Owner {
	uid, gid, known := ids(info)
	return Owner{uid: uid, gid: gid, gives: known && os.Geteuid() == 0}
}

// CheckOwner returns an error for a file or directory that belongs to another user.
func CheckOwner(path string, info fs.FileInfo) error {
	if uid, _, known := ids(info); known && uid != os.Geteuid() {
		return fmt.Errorf("%s: belongs to user %d, and this is user %d (did sudo keep HOME?)", path, uid, os.Geteuid())
	}
	return nil
}

// Give gives an open file to the owner.
func (o Owner) Give(file *os.File) error {
	if !o.gives {
		return nil
	}
	return file.Chown(o.uid, o.gid)
}

// CreateIn makes a file below a root where nothing is, with what fill writes to it, for the owner
// and with a mode. After an error there is none.
func (o Owner) CreateIn(root *os.Root, name string, mode fs.FileMode, fill func(*os.File) error) error {
	file, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL|NoFollow, 0o600)
	if err != nil {
		return err
	}
	if err = fill(file); err == nil {
		err = o.Give(file)
	}
	if err == nil {
		err = file.Chmod(mode)
	}
	if err = errors.Join(err, file.Close()); err != nil {
		err = errors.Join(err, root.Remove(name))
	}
	return err
}

// What the names of temporary files and directories begin and end with.
const (
	TempPrefix = ".toolfleet-"
	TempSuffix = ".tmp"
)

// TempName is a name that nothing has. It is short: its path must fit wherever the path of a file
// does.
func TempName() string { return TempPrefix + rand.Text() + TempSuffix }

// GiveIn gives a path below a root to the owner, and follows no link there.
func (o Owner) GiveIn(root *os.Root, name string) error {
	if !o.gives {
		return nil
	}
	return root.Lchown(name, o.uid, o.gid)
}

// GivePath gives a path to the owner, and follows no link there.
func (o Owner) GivePath(path string) error {
	if !o.gives {
		return nil
	}
	return os.Lchown(path, o.uid, o.gid)
}
