package files

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"

	"github.com/toolfleet/toolfleet/internal/modeltext/prose"
	"github.com/toolfleet/toolfleet/internal/system"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// fault turns an error of the root into a *[protocol.Error]; a closed FS and an ended context stay
// Go errors. name is the path of the operation.
func (f *FS) fault(op, name string, err error) error {
	var already *protocol.Error
	switch {
	case err == nil:
		return nil
	case errors.As(err, &already):
		return already
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("%s %s: %w", op, name, err)
	case errors.Is(err, os.ErrClosed):
		return fmt.Errorf("%s %s: %w", op, name, sandbox.ErrClosed)
	case errors.Is(err, f.root.escape):
		return escapes(name, err)
	case errors.Is(err, fs.ErrNotExist):
		return f.notFound(name)
	case errors.Is(err, syscall.ENOTDIR):
		return protocol.Errorf(codes.NotDirectory, "%q goes through something that is not a directory", name)
	case errors.Is(err, syscall.EISDIR):
		return isDirectory(name)
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EROFS):
		return protocol.Errorf(protocol.CodePermission, "%s %q: %s", op, name, cause(err))
	case errors.Is(err, syscall.ELOOP):
		return protocol.Errorf(codes.InvalidPath, "%q goes through a loop of symbolic links", name)
	case errors.Is(err, syscall.ENAMETOOLONG):
		return protocol.Errorf(codes.InvalidPath, "%q is too long", name)
	case errors.Is(err, syscall.ENOSPC):
		return protocol.Errorf(protocol.CodeToolFailed, "%s %q: the disk of %s is full (%s); delete what is not needed", op, name, mount, cause(err))
	case errors.Is(err, errQuota):
		return protocol.Errorf(protocol.CodeToolFailed, "%s %q: %s; delete what is not needed", op, name, cause(err))
	default:
		return protocol.Errorf(protocol.CodeToolFailed, "%s %q: %s", op, name, cause(err))
	}
}

// escapes is the fault of a path that goes through a link to a place outside.
func escapes(name string, err error) error {
	link := "a symbolic link"
	if out, is := errors.AsType[*outsideError](err); is && out.link != "" {
		link = fmt.Sprintf("the symbolic link %q to %.200q", out.link, out.target)
	}
	return protocol.Errorf(codes.PathEscape,
		"%q goes through %s, which is outside of the workspace; use another path, or if the place is in the workspace make the link relative or begin it with %s/",
		name, link, mount)
}

// cause returns the text of err without the host's path.
func cause(err error) string {
	var (
		pathErr *fs.PathError
		linkErr *os.LinkError
	)
	switch {
	case errors.As(err, &pathErr):
		return pathErr.Err.Error()
	case errors.As(err, &linkErr):
		return linkErr.Err.Error()
	default:
		return err.Error()
	}
}

func isDirectory(name string) error {
	return protocol.Errorf(codes.IsDirectory, "%q is a directory; list it, or name a file in it", name)
}

func notRegular(name string, mode fs.FileMode) error {
	return protocol.Errorf(codes.NotRegular, "%q is not a regular file but a %s", name, kind(mode))
}

func kind(mode fs.FileMode) string {
	switch {
	case mode&fs.ModeNamedPipe != 0:
		return "FIFO"
	case mode&fs.ModeSocket != 0:
		return "socket"
	case mode&fs.ModeDevice != 0:
		return "device"
	default:
		return "special file"
	}
}

func tooLarge(name string, size, limit int64) error {
	return protocol.Errorf(codes.TooLarge,
		"%q has %d bytes, at most %d are possible; use a command for a part of it", name, size, limit)
}

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
	file, err := f.root.OpenFile(dir, os.O_RDONLY|system.NonBlock, 0)
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
	return prose.Distance(a[:min(len(a), nearLen)], b[:min(len(b), nearLen)])
}
