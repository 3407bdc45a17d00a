package files

import (
	"io/fs"
	"path"
	"slices"
	"strings"
	"syscall"
)

// maxLinks bounds how many symbolic links one path goes through, as in Linux.
const maxLinks = 40

// resolve returns the path that name stands for once every symbolic link in it is
// followed. What does not exist is kept as it is. The answer may be out of date when
// it is used: that can name another place in the workspace, and none outside.
func (f *FS) resolve(name string) (string, error) {
	done, todo := ".", strings.Split(name, "/")
	for links := 0; len(todo) > 0; {
		part := todo[0]
		todo = todo[1:]
		if part == "" || part == "." {
			continue
		}
		if part == ".." {
			if done == "." {
				return "", f.escape
			}
			done = path.Dir(done)
			continue
		}
		next := path.Join(done, part)
		info, err := f.root.Lstat(next)
		if err != nil || info.Mode()&fs.ModeSymlink == 0 {
			done = next
			continue
		}
		if links++; links > maxLinks {
			return "", syscall.ELOOP
		}
		link, err := f.root.Readlink(next)
		if err != nil {
			return "", err
		}
		if path.IsAbs(link) {
			return "", f.escape
		}
		todo = slices.Concat(strings.Split(link, "/"), todo)
	}
	return done, nil
}
