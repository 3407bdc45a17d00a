package files

import (
	"cmp"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Bounds of the search for names like one that does not exist.
const (
	nearScan  = 1000 // names looked at
	nearNames = 3    // names told
	nearLen   = 64   // bytes compared
)

// notFound is the fault of a name that does not exist, with the names that are
// like it where it was looked for.
func (f *FS) notFound(name string) error {
	dir, missing := f.missing(name)
	if info, err := f.root.Lstat(path.Join(dir, missing)); err == nil && info.Mode()&fs.ModeSymlink != 0 {
		return protocol.Errorf(protocol.CodeNotFound, "%q leads nowhere: it is a symbolic link to what does not exist", path.Join(dir, missing))
	}
	where := fmt.Sprintf("directory %q", dir)
	if dir == "." {
		where = "the workspace"
	}
	hint := ""
	if near := f.near(dir, missing); len(near) > 0 {
		hint = "; there is " + strings.Join(near, ", ")
	}
	if path.Join(dir, missing) == name {
		return protocol.Errorf(protocol.CodeNotFound, "%q does not exist%s", name, hint)
	}
	return protocol.Errorf(protocol.CodeNotFound, "%q does not exist: there is no %q in %s%s", name, missing, where, hint)
}

// missing returns the deepest directory on the way to name that exists, and the
// name that is missing in it.
func (f *FS) missing(name string) (dir, base string) {
	for dir, base = path.Dir(name), path.Base(name); dir != "."; dir, base = path.Dir(dir), path.Base(dir) {
		if _, err := f.root.Stat(dir); err == nil {
			break
		}
	}
	return dir, base
}

// near returns quoted paths of what is in dir and has a name like base, best first.
func (f *FS) near(dir, base string) []string {
	file, err := f.root.OpenFile(dir, os.O_RDONLY|nonblock, 0)
	if err != nil {
		return nil
	}
	defer file.Close()
	names, err := file.Readdirnames(nearScan)
	if err != nil {
		return nil
	}
	type candidate struct {
		name string
		cost int
	}
	var found []candidate
	for _, name := range names {
		if cost := unlike(base, name); cost < len(base) && cost <= max(2, len(base)/3) {
			found = append(found, candidate{name, cost})
		}
	}
	slices.SortFunc(found, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(a.cost, b.cost), cmp.Compare(a.name, b.name))
	})
	out := make([]string, 0, nearNames)
	for _, c := range found[:min(len(found), nearNames)] {
		out = append(out, fmt.Sprintf("%q", path.Join(dir, c.name)))
	}
	return out
}

// unlike says how far apart two names are: 0 when they differ by case or by the
// extension only, else the number of edits.
func unlike(a, b string) int {
	a, b = strings.ToLower(a), strings.ToLower(b)
	stem := strings.TrimSuffix(a, path.Ext(a))
	if a == b || (stem != "" && stem == strings.TrimSuffix(b, path.Ext(b))) {
		return 0
	}
	return edits(a[:min(len(a), nearLen)], b[:min(len(b), nearLen)])
}

// edits is the Levenshtein distance of the bytes of two strings.
func edits(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			replace := diagonal
			if a[i] != b[j] {
				replace++
			}
			diagonal = row[j+1]
			row[j+1] = min(replace, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
