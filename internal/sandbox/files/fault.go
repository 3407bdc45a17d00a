package files

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"

	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// fault turns an error of the root into a *[protocol.Error]; what is not about the
// request, a closed FS or an ended context, stays an error. name is what was operated on.
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
		return protocol.Errorf(protocol.CodeNotDirectory, "%q goes through something that is not a directory", name)
	case errors.Is(err, syscall.EISDIR):
		return isDirectory(name)
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EROFS):
		return protocol.Errorf(protocol.CodePermission, "%s %q: %s", op, name, cause(err))
	case errors.Is(err, syscall.ELOOP):
		return protocol.Errorf(protocol.CodeInvalidPath, "%q goes through a loop of symbolic links", name)
	case errors.Is(err, syscall.ENAMETOOLONG):
		return protocol.Errorf(protocol.CodeInvalidPath, "%q is too long", name)
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
	return protocol.Errorf(protocol.CodePathEscape,
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
	return protocol.Errorf(protocol.CodeIsDirectory, "%q is a directory; list it, or name a file in it", name)
}

func notRegular(name string, mode fs.FileMode) error {
	return protocol.Errorf(protocol.CodeNotRegular, "%q is not a regular file but a %s", name, kind(mode))
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
	return protocol.Errorf(protocol.CodeTooLarge,
		"%q has %d bytes, at most %d are possible; use a command for a part of it", name, size, limit)
}
