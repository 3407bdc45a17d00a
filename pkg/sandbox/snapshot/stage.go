package snapshot

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"path"
	"strconv"

	"github.com/toolfleet/toolfleet/pkg/sandbox/removal"
)

// stage keeps contents of an archive in files, in a directory below the root so that
// they can be renamed into place. It makes the directory when it needs it.
type stage struct {
	root  *os.Root
	owner owner
	dir   string
	files int
	buf   []byte
}

// add reads the content of a file. It returns the entry with its digest, and the path
// of a file that has content and mode; "" when the entry equals base.
func (s *stage) add(it item, base Entry) (entry Entry, staged string, err error) {
	head, whole, err := readHead(it.body, s.buf)
	if err != nil {
		return Entry{}, "", err
	}
	entry = it.entry
	if whole {
		sum := sha256.Sum256(head)
		entry.SHA256 = hex.EncodeToString(sum[:])
		if entry == base {
			return entry, "", nil
		}
	}
	staged, err = s.file()
	if err != nil {
		return Entry{}, "", err
	}
	hash := sha256.New()
	err = writeNew(s.root, staged, entry.Mode, s.owner, func(w io.Writer) error {
		content := io.MultiReader(bytes.NewReader(bytes.Clone(head)), it.body)
		_, err := io.CopyBuffer(io.MultiWriter(w, hash), onlyReader{content}, s.buf)
		return err
	})
	if err != nil {
		return Entry{}, "", err
	}
	entry.SHA256 = hex.EncodeToString(hash.Sum(nil))
	if entry == base {
		return entry, "", s.root.Remove(staged)
	}
	return entry, staged, nil
}

// file returns a path that nothing is at.
func (s *stage) file() (string, error) {
	if s.dir == "" {
		dir := tempName()
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
		*err = errors.Join(*err, removal.In(s.root, s.dir)) // commands may have made that hard
	}
}

// tempName is a name that nothing has.
func tempName() string { return ".toolfleet-" + rand.Text() + ".tmp" }
