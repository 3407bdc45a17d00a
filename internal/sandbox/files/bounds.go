package files

import (
	"cmp"
	"path"
	"slices"
	"strings"

	"github.com/toolfleet/toolfleet/internal/system"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// use is what an operation does with a place.
type use int

const (
	reading use = iota
	writing
)

// reach is [clean] for a path that is used so; the fault of a place that the operation is not
// bound to is [protocol.CodePolicyDenied].
//
// A path is resolved, judged, and then used. Only a command could exchange a link in between, and a
// command is not bound by roots in the first place: no file operation makes a link.
func (f *FS) reach(p string, as use) (string, error) {
	name, err := clean(f.root.Name(), p)
	if err != nil {
		return "", err
	}
	return name, f.allow(name, as)
}

// reachEntry is reach for the entry itself: it does not follow a link.
func (f *FS) reachEntry(p string, as use) (string, error) {
	name, err := clean(f.root.Name(), p)
	guarded := as == writing && len(f.protected) > 0
	if err != nil || len(f.bounds) == 0 && !guarded || name == "." {
		return name, err
	}
	dir, err := f.root.resolve(path.Dir(name))
	if err != nil {
		return "", f.fault("stat", name, err)
	}
	actual := path.Join(dir, path.Base(name))
	if guarded {
		if err := cmp.Or(f.guard(name, name), f.guard(name, actual)); err != nil {
			return "", err
		}
	}
	return name, f.judge(name, actual, as)
}

// allow judges a canonical path, which may go through links.
func (f *FS) allow(name string, as use) error {
	guarded := as == writing && len(f.protected) > 0
	if len(f.bounds) == 0 && !guarded {
		return nil
	}
	if guarded { // also a place that shows a link
		if err := f.guard(name, name); err != nil {
			return err
		}
	}
	actual, err := f.root.resolve(name)
	if err != nil {
		return f.fault("open", name, err)
	}
	if err := f.judge(name, actual, as); err != nil || !guarded {
		return err
	}
	return f.guard(name, actual)
}

// guard is the fault of changing something that is protected.
func (f *FS) guard(name, actual string) error {
	lower := strings.ToLower(actual) // which are one on some file systems
	at := slices.IndexFunc(f.protected, func(place string) bool { return system.Within(strings.ToLower(place), lower) })
	if at < 0 {
		return nil
	}
	leads := ""
	if actual != name {
		leads = " leads to " + actual + ", which"
	}
	return protocol.Errorf(codes.Protected, "%s%s is protected: %s can be read and not be changed in this workspace.", name, leads, f.protected[at])
}

// judge judges what a path stands for.
func (f *FS) judge(name, actual string, as use) error {
	for _, roots := range f.bounds {
		allowed, what := roots.Write, "changed"
		if as == reading {
			allowed, what = slices.Concat(roots.Read, roots.Write), "read"
		}
		if slices.ContainsFunc(allowed, func(root string) bool { return system.Within(root, actual) }) {
			continue
		}
		leads := ""
		if actual != name {
			leads = " leads to " + actual + ", which"
		}
		return protocol.Errorf(protocol.CodePolicyDenied, "%s%s may not be %s in this session; only these may be: %s.", name, leads, what, listed(allowed))
	}
	return nil
}

func listed(roots []string) string {
	if len(roots) == 0 {
		return "none"
	}
	texts := make([]string, len(roots))
	for i, root := range roots {
		texts[i] = path.Clean(root)
	}
	return strings.Join(texts, ", ")
}
