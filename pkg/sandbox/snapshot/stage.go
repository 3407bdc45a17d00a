package snapshot

import (
	"context"
	"crypto/rand"
	"errors"
	"os"
	"path"
	"strconv"
	"time"

	"github.com/toolfleet/toolfleet/pkg/sandbox"
	"github.com/toolfleet/toolfleet/pkg/sandbox/removal"
)

// stage keeps contents of a tree in files, in a directory below the root so that they can be
// renamed into place. It makes the directory when it needs it.
type stage struct {
	root  *os.Root
	owner owner
	dir   string
	files int
}

// fetch has what files of a tree contain that are not as in base in files.
func (s *stage) fetch(ctx context.Context, base, theirs Manifest, tree Tree, bodies Bodies) (staged map[string]string, err error) {
	wanted, staged := Tree{}, map[string]string{}
	now := time.Now().UnixNano() // a make that runs here is to see that they are new
	for name, entry := range theirs {
		if entry.Type != sandbox.TypeFile || entry == base[name] {
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
	if err := s.owner.adoptName(s.root, s.dir); err != nil {
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
