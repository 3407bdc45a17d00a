//go:build linux

package quota

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
)

// The range of the numbers of projects.
const (
	First = 0x74000000
	Last  = 0x74ffffff
)

// ours reports whether a project is of that range.
func ours(id uint32) bool { return id >= First && id <= Last }

// candidate is a number to try next: from somewhere on one after the other, which keeps them
// together in the file that the kernel has them in.
var candidate = func() func() uint32 { //nolint:gochecknoglobals // numbers are a file system's
	const size = Last - First + 1
	var next atomic.Uint32
	next.Store(rand.Uint32N(size)) //nolint:gosec // unique, not secret
	return func() uint32 { return First + next.Add(1)%size }
}()

// common is the number that directories have already; 0 for none.
func common(dirs []*os.File) (id uint32, err error) {
	for _, dir := range dirs {
		a, err := attributesOf(int(dir.Fd()))
		if err != nil {
			return 0, &isolation.UnusableError{What: isolation.Quotas, Found: "the file system of " + dir.Name() + " knows no projects", Advice: adviceOther, Err: err}
		}
		switch {
		case ours(a.project):
			if id == 0 {
				id = a.project
			}
		case a.project != 0:
			return 0, &isolation.UnusableError{
				What:   isolation.Quotas,
				Found:  fmt.Sprintf("%s belongs to project %d of the host", dir.Name(), a.project),
				Advice: "give the worker a directory of none (chattr -R -p 0 -P), or bound the project",
			}
		}
	}
	return id, nil
}

// tries is how many numbers are tried.
const tries = 1000

// choose assigns a free number to a directory, but not yet to its contents.
func choose(dir *os.File) (uint32, error) {
	for range tries {
		id := candidate()
		if named()[id] {
			continue
		}
		n, err := get(dir, id)
		if err != nil {
			return 0, refused(dir, err)
		}
		if n.limited() || !n.unused() {
			continue
		}
		if err := change(int(dir.Fd()), id, false); err != nil {
			return 0, refused(dir, err)
		}
		if n, err = get(dir, id); err == nil && n.files == 1 {
			return id, nil
		}
		// Another process has taken it at the same moment.
		if err := errors.Join(err, change(int(dir.Fd()), 0, false)); err != nil {
			return 0, refused(dir, err)
		}
	}
	return 0, fmt.Errorf("quota: none of %d numbers of projects is free", tries)
}

// named are the projects that the host has names or directories for.
var named = sync.OnceValue(func() map[uint32]bool { //nolint:gochecknoglobals // of the host
	ids := map[uint32]bool{}
	for _, name := range []string{"/etc/projid", "/etc/projects"} {
		text, _ := os.ReadFile(name) // most hosts have none
		for line := range bytes.Lines(text) {
			for field := range bytes.SplitSeq(bytes.TrimSpace(line), []byte(":")) {
				if id, err := strconv.ParseUint(string(field), 10, 32); err == nil {
					ids[uint32(id)] = true
				}
			}
		}
	}
	return ids
})

// swept are the file systems that were cleaned of what killed processes left.
var swept sync.Map //nolint:gochecknoglobals // file systems are the host's

// sweep removes the limits of projects without a file, once for each file system.
func sweep(dir *os.File) {
	var stat unix.Stat_t
	if unix.Fstat(int(dir.Fd()), &stat) != nil {
		return
	}
	if _, done := swept.LoadOrStore(stat.Dev, true); !done {
		removeStale(dir)
	}
}

// removeStale removes the limits of projects without a file. Such a project is unused: a process
// that takes a number first gives it a directory, and takes none with limits.
func removeStale(dir *os.File) {
	_ = each(dir, func(n *numbers) { // what cannot be read is left
		if n.unused() && n.limited() {
			_ = limit(dir, n.id, Limits{}) // it takes no room but in the books
		}
	})
}

// each calls a function with each of our projects that the file system of dir has in its books.
func each(dir *os.File, visit func(n *numbers)) error {
	for id := uint32(First); id <= Last; {
		n, found, err := next(dir, id)
		if err != nil || !found || !ours(n.id) {
			return err
		}
		visit(&n)
		id = n.id + 1
	}
	return nil
}

// Count counts the projects of sandboxes that the file system of a directory knows: those that have
// something, and those that have limits. It is for tests, which look whether anything is left in
// the books.
func Count(name string) (used, limited int, err error) {
	dir, err := os.Open(name)
	if err != nil {
		return 0, 0, fmt.Errorf("quota: %w", err)
	}
	defer dir.Close()
	err = each(dir, func(n *numbers) {
		if !n.unused() {
			used++
		}
		if n.limited() {
			limited++
		}
	})
	if err != nil {
		return used, limited, fmt.Errorf("quota: projects of %s: %w", name, err)
	}
	return used, limited, nil
}
