package snapshot

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"unicode/utf8"

	"github.com/toolfleet/toolfleet/internal/system"
)

// maxName is the longest part of a path, in bytes.
const maxName = 255

// checkName accepts paths that are relative, canonical, and possible on this system.
func checkName(name string) error {
	if strings.ContainsRune(name, 0) {
		return unsafef(name, "it contains a NUL byte")
	}
	for part := range strings.SplitSeq(name, "/") {
		switch {
		case part == "" || part == "." || part == "..":
			return unsafef(name, "not a canonical relative path")
		case len(part) > maxName:
			return unsafef(name, "a part of it has more than %d bytes", maxName)
		default:
		}
	}
	local := filepath.FromSlash(name)
	if filepath.Separator != '/' && strings.ContainsAny(name, `\:`) || !filepath.IsLocal(local) {
		return unsafef(name, "not a path that this system allows")
	}
	return nil
}

// checkTarget accepts what a symbolic link can say. Where it leads does not matter:
// nothing here follows it.
func checkTarget(name, target string) error {
	if target == "" || strings.ContainsRune(target, 0) {
		return unsafef(name, "a symbolic link to %q", target)
	}
	return nil
}

// encoded begins what stands for a name that is no text, in JSON: no name has a NUL.
const encoded = "\x00"

// toText returns a name as text, fromText the name again.
func toText(name string) string {
	if utf8.ValidString(name) {
		return name
	}
	return encoded + base64.RawURLEncoding.EncodeToString([]byte(name))
}

func fromText(text string) (string, error) {
	code, is := strings.CutPrefix(text, encoded)
	if !is {
		return text, nil
	}
	name, err := base64.RawURLEncoding.DecodeString(code)
	return string(name), err
}

// MarshalJSON implements [json.Marshaler]: names and targets are bytes, and JSON has only text.
func (t Tree) MarshalJSON() ([]byte, error) {
	text := make(map[string]Node, len(t))
	for name, node := range t {
		node.Target = toText(node.Target)
		text[toText(name)] = node
	}
	return json.Marshal(text)
}

// UnmarshalJSON implements [json.Unmarshaler].
func (t *Tree) UnmarshalJSON(body []byte) error {
	text := map[string]Node{}
	if err := json.Unmarshal(body, &text); err != nil {
		return err
	}
	*t = make(Tree, len(text))
	for name, node := range text {
		if _, err := t.put(name, node); err != nil {
			return err
		}
	}
	return nil
}

// put adds a node whose name and target are text, and returns its name.
func (t Tree) put(text string, node Node) (name string, err error) {
	if name, err = fromText(text); err != nil {
		return "", err
	}
	node.Target, err = fromText(node.Target)
	t[name] = node
	return name, err
}

// Names are paths, which are bytes.
type Names []string

// MarshalJSON implements [json.Marshaler].
func (n Names) MarshalJSON() ([]byte, error) {
	text := make([]string, len(n))
	for i, name := range n {
		text[i] = toText(name)
	}
	return json.Marshal(text)
}

// UnmarshalJSON implements [json.Unmarshaler].
func (n *Names) UnmarshalJSON(body []byte) error {
	var text []string
	if err := json.Unmarshal(body, &text); err != nil {
		return err
	}
	*n = make(Names, len(text))
	for i := range text {
		var err error
		if (*n)[i], err = fromText(text[i]); err != nil {
			return err
		}
	}
	return nil
}

// errChanged says that a path was replaced while it was read.
var errChanged = errors.New("it changed while it was read")

// gone says that an error means that nothing is at a path.
func gone(err error) bool { return errors.Is(err, fs.ErrNotExist) || notDirectory(err) }

// OpenSame opens what seen describes, for reading, without blocking. A root follows symbolic links
// that stay inside, so the opened file is compared with the one seen before.
func OpenSame(root *os.Root, name string, seen fs.FileInfo) (*os.File, error) {
	file, err := root.OpenFile(name, os.O_RDONLY|system.NonBlock|system.NoFollow, 0)
	if err != nil {
		if gone(err) || system.Unopenable(err) {
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

// findOwner returns the owner of a directory, to which new files in it belong.
func findOwner(root *os.Root) (system.Owner, error) {
	info, err := root.Stat(".")
	if err != nil {
		return system.Owner{}, err
	}
	return system.OwnerOf(info), nil
}

// parent returns the directory that a path is in, "." for the root.
func parent(name string) string { return path.Dir(name) }
