//go:build linux

// Package image has the program of package initd, which runs as the first process of sandboxes and
// as the guard of commands that are in none.
package image

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/toolfleet/toolfleet/internal/sandbox/internal/initd"
)

// A program that was built without the tag sandboxprogram is also the first process of its
// sandboxes: under another name, from a copy. It has to find out before anything else does.
func init() { //nolint:gochecknoinits // there is no other way to be asked first
	if len(os.Args) > 0 && (os.Args[0] == initd.Arg0 || os.Args[0] == initd.Image) {
		initd.Main(os.Args)
	}
}

// Open returns a sealed memory file with the program. It is shared and never closed.
var Open = sync.OnceValues(makeImage) //nolint:gochecknoglobals // one for all sandboxes, read-only

func makeImage() (*os.File, error) {
	var source io.Reader = bytes.NewReader(program)
	if len(program) == 0 || !initd.Whole() {
		self, err := os.Open("/proc/self/exe")
		if err != nil {
			return nil, fmt.Errorf("program of the sandbox: %w", err)
		}
		defer self.Close()
		source = self
	}
	file, err := Memfd("toolfleet-sandbox", source)
	if err != nil {
		return nil, fmt.Errorf("program of the sandbox: %w", err)
	}
	return file, nil
}

// Memfd returns a sealed memory file with the given content.
func Memfd(name string, content io.Reader) (*os.File, error) {
	file, err := Unsealed(name)
	if err != nil {
		return nil, err
	}
	_, err = io.Copy(file, content)
	if err == nil {
		_, err = unix.FcntlInt(file.Fd(), unix.F_ADD_SEALS,
			unix.F_SEAL_WRITE|unix.F_SEAL_GROW|unix.F_SEAL_SHRINK|unix.F_SEAL_SEAL)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("memory file: %w", err), file.Close())
	}
	return file, nil
}

// Unsealed returns an empty memory file, which may become a program.
func Unsealed(name string) (*os.File, error) {
	const flags = unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING
	fd, err := unix.MemfdCreate(name, flags|unix.MFD_EXEC) // without it the kernel may be set to make one that is none
	switch {
	case errors.Is(err, unix.EINVAL): // before Linux 6.3, which has no such setting
		fd, err = unix.MemfdCreate(name, flags)
	case errors.Is(err, unix.EACCES):
		err = fmt.Errorf("%w: vm.memfd_noexec is 2, with which no memory file may be a program; sandboxes need 1 or 0 (sysctl -w vm.memfd_noexec=1)", err)
	}
	if err != nil {
		return nil, fmt.Errorf("memory file: %w", err)
	}
	return os.NewFile(uintptr(fd), name), nil
}
