package snapshot

import "os"

// owner is who new files belong to: the owner of the directory when this process may
// give files away, else nobody in particular.
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
