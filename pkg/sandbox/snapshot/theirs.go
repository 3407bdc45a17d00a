package snapshot

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"

	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

const (
	// theirsSuffix marks the tree's content of a file in conflict.
	theirsSuffix = ".toolfleet-theirs"
	// maxTheirs is how many different ones are kept of one file.
	maxTheirs = 1000
)

func (m *merge) conflict(name string) {
	m.conflicts[name] = true
	m.changes.Conflicts = append(m.changes.Conflicts, name)
}

// keepTheirs puts a file of the tree that is in conflict beside its place. One
// that is there already with the same content will do.
func (m *merge) keepTheirs(ctx context.Context, name string) error {
	want := m.theirs[name]
	if want.Type != sandbox.TypeFile {
		return nil
	}
	dir, err := m.local.standing(parent(name))
	if err != nil {
		return err
	}
	rest := strings.TrimPrefix(name, dir+"/")
	for n := 1; n <= maxTheirs; n++ {
		beside := path.Join(dir, theirsName(rest, n))
		mine, err := m.local.at(ctx, beside)
		if err == nil && mine == (Entry{}) {
			mine, err = want, m.place(m.staged[name], beside)
		}
		switch {
		case errors.Is(err, fs.ErrExist):
			continue
		case err != nil:
			return err
		case mine.SHA256 == want.SHA256:
			m.changes.Theirs = append(m.changes.Theirs, beside)
			return nil
		default:
		}
	}
	return fmt.Errorf("%q: there are %d other versions beside it: remove them", name, maxTheirs)
}

// place puts a staged file at a path where nothing was seen. A link replaces nothing that
// came there since; where there are no links, a rename must do.
func (m *merge) place(staged, name string) error {
	err := m.root.Link(staged, name)
	if err == nil || errors.Is(err, fs.ErrExist) {
		return err
	}
	return m.root.Rename(staged, name)
}

// theirsName returns the n-th name for a version of a file.
func theirsName(rest string, n int) string {
	suffix := theirsSuffix
	if n > 1 {
		suffix += fmt.Sprintf(".%d", n)
	}
	base := strings.ReplaceAll(rest, "/", "-")
	return base[:min(len(base), maxName-len(suffix))] + suffix
}
