package system

import (
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

// Give gives an open file to the owner.
func (o Owner) Give(file *os.File) error {
	if !o.gives {
		return nil
	}
	return file.Chown(o.uid, o.gid)
}

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
