//go:build linux

// Package terminal gives a command a terminal of its own: a pseudo-terminal, of which one end is
// the command's and the other is connected to pipes. Whoever reads and writes those never has a
// descriptor of a terminal.
package terminal

import (
	"errors"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// Terminal is a pseudo-terminal between two pipes.
type Terminal struct {
	ours, theirs  *os.File
	input, output *os.File
	done          chan struct{}
}

// Open makes a terminal of the usual size, in the /dev/pts that the calling process sees. What is
// read from input will be typed, and what is on the screen written to output: descriptors that
// become its property, also after an error.
func Open(input, output int) (*Terminal, error) {
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

// file makes a file of a descriptor that does not block, so that no thread waits for it.
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
	size := &unix.Winsize{Row: sandbox.TerminalRows, Col: sandbox.TerminalColumns}
	if err := unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, size); err != nil {
		return os.NewSyscallError("size of a terminal", err)
	}
	// Not by its name, where something else may be.
	const flags = unix.O_RDWR | unix.O_NOCTTY | unix.O_CLOEXEC
	theirs, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.TIOCGPTPEER, flags)
	if errno != 0 {
		return os.NewSyscallError("open a terminal", errno)
	}
	t.theirs = os.NewFile(theirs, "terminal")
	return nil
}

// Command is the descriptor for the command, which has to lead a session of its own to have it as
// its terminal. It stays the property of Terminal.
func (t *Terminal) Command() uintptr { return t.theirs.Fd() }

// plain is a file that is read and written and no more: copying knows other ways, for files.
type plain struct{ io.ReadWriter }

// Started begins to copy when the command was started, and lets go of all when it was not. It ends
// when nobody has the terminal any more; see Done.
func (t *Terminal) Started(ok bool) {
	if !ok {
		t.close()
		close(t.done)
		return
	}
	_ = t.theirs.Close() // only the command's matters
	go func() { _, _ = io.Copy(plain{t.ours}, plain{t.input}) }()
	go func() {
		defer close(t.done)
		_, _ = io.Copy(plain{t.output}, plain{t.ours}) // its end is an error
		t.close()
	}()
}

// Done is closed when all that was written is copied.
func (t *Terminal) Done() <-chan struct{} { return t.done }

func (t *Terminal) close() {
	for _, f := range []*os.File{t.theirs, t.ours, t.input, t.output} {
		_ = f.Close() // nil and closed ones too
	}
}
