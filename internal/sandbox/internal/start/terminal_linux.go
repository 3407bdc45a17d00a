package start

import (
	"errors"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
)

// Terminal is a pseudo-terminal between two pipes. One end is the command's; readers and writers
// of the pipes never hold a terminal's descriptor.
type Terminal struct {
	ours, theirs  *os.File
	input, output *os.File
	done          chan struct{}
}

// OpenTerminal opens a terminal of the usual size in the caller's /dev/pts. It types what it reads
// from input and writes the screen to output. It owns both descriptors, also after an error.
func OpenTerminal(input, output int) (*Terminal, error) {
	t := &Terminal{done: make(chan struct{})}
	var inErr, outErr, err error
	t.input, inErr = file(input)
	t.output, outErr = file(output)
	if err = errors.Join(inErr, outErr); err == nil {
		err = t.open()
	}
	if err != nil {
		t.close()
		return nil, err
	}
	return t, nil
}

// file wraps a descriptor as non-blocking, so that no thread waits for it.
func file(fd int) (*os.File, error) {
	err := os.NewSyscallError("fcntl", unix.SetNonblock(fd, true))
	return os.NewFile(uintptr(fd), "terminal"), err
}

func (t *Terminal) open() error {
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: "/dev/ptmx", Err: err}
	}
	t.ours = os.NewFile(uintptr(fd), "terminal")
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		return os.NewSyscallError("unlock a terminal", err)
	}
	size := &unix.Winsize{Row: isolation.TerminalRows, Col: isolation.TerminalColumns}
	if err := unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, size); err != nil {
		return os.NewSyscallError("size of a terminal", err)
	}
	// By descriptor: its name may point to another file.
	const flags = unix.O_RDWR | unix.O_NOCTTY | unix.O_CLOEXEC
	theirs, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.TIOCGPTPEER, flags)
	if errno != 0 {
		return os.NewSyscallError("open a terminal", errno)
	}
	t.theirs = os.NewFile(theirs, "terminal")
	return nil
}

// Command returns the command's descriptor, which Terminal still owns. The command must lead a
// session of its own to make it its controlling terminal.
func (t *Terminal) Command() uintptr { return t.theirs.Fd() }

// plain hides the other methods of a file from io.Copy, which would splice.
type plain struct{ io.ReadWriter }

// Started starts copying if the command was started, and closes everything if not. Copying ends
// when no process has the terminal open; see Done.
func (t *Terminal) Started(ok bool) {
	if !ok {
		t.close()
		close(t.done)
		return
	}
	_ = t.theirs.Close() // the command has its own
	go func() { _, _ = io.Copy(plain{t.ours}, plain{t.input}) }()
	go func() {
		defer close(t.done)
		_, _ = io.Copy(plain{t.output}, plain{t.ours}) // reads fail when the last process is gone
		t.close()
	}()
}

// Done is closed when all output is copied.
func (t *Terminal) Done() <-chan struct{} { return t.done }

func (t *Terminal) close() {
	for _, f := range []*os.File{t.theirs, t.ours, t.input, t.output} {
		_ = f.Close() // nil and closed ones too
	}
}
