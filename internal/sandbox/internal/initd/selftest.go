//go:build linux

package initd

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
)

// want is what /proc shows of a thread without any rights.
var want = map[string]string{ //nolint:gochecknoglobals // a constant
	"CapInh": "0000000000000000", "CapPrm": "0000000000000000", "CapEff": "0000000000000000",
	"CapBnd": "0000000000000000", "CapAmb": "0000000000000000",
	"NoNewPrivs": "1", "Seccomp": "2",
	"Uid": "1000\t1000\t1000\t1000", "Gid": "1000\t1000\t1000\t1000",
}

// selfTest tries what a sandbox promises. It is run before anything else is.
func selfTest(landlock bool) error {
	if err := step("self-test: limits", testLimits); err != nil {
		return err
	}
	tests := []test{
		{"new user namespace", func() error { return unix.Unshare(unix.CLONE_NEWUSER) }, unix.EPERM},
		{"mount", func() error { return unix.Mount("none", "/tmp", "tmpfs", 0, "") }, unix.EPERM},
		{"AF_VSOCK", func() error { return try(unix.Socket(unix.AF_VSOCK, unix.SOCK_STREAM, 0)) }, unix.EAFNOSUPPORT},
		{"clone3", func() error { _, _, errno := unix.Syscall(unix.SYS_CLONE3, 0, 0, 0); return errno }, unix.ENOSYS},
		{"set-user-ID file", func() error { return unix.Fchmod(-1, 0o4755) }, unix.EPERM},
		{"file in the root", func() error { return try(unix.Open("/x", unix.O_CREAT|unix.O_WRONLY, 0o600)) }, unix.EROFS},
	}
	if landlock {
		// Without Landlock the capability that is not there is missed, with another word.
		null := int(unix.Mkdev(1, 3)) //nolint:gosec // a small number
		tests = append(tests, test{"device file", func() error { return unix.Mknod(GuestTemp+"/x", unix.S_IFCHR, null) }, unix.EACCES})
	}
	if Has(Pressure) {
		tests = append(tests, test{"pressure of the host", func() error { return try(unix.Open(Pressure+"/cpu", unix.O_RDWR|unix.O_CLOEXEC, 0)) }, unix.EROFS})
	}
	if Has(Keys) {
		tests = append(tests, test{"keys of the host", func() error { return try(unix.Open(Keys, unix.O_RDONLY|unix.O_CLOEXEC, 0)) }, unix.EACCES})
	}
	for _, t := range tests {
		if err := t.try(); !errors.Is(err, t.want) {
			return &stepError{step: "self-test: " + t.name, err: fmt.Errorf("%w instead of %w", err, t.want)}
		}
	}
	return nil
}

// test is something that has to fail, with that error.
type test struct {
	name string
	try  func() error
	want unix.Errno
}

func try(fd int, err error) error {
	if err == nil {
		_ = unix.Close(fd) // it must not have been there
	}
	return err
}

// testThreads looks at every thread of this process.
func testThreads() error {
	const dir = "/proc/self/task"
	threads, err := os.ReadDir(dir)
	if err != nil || len(threads) == 0 {
		return errors.Join(errors.New("no threads"), err)
	}
	buf := make([]byte, 4<<10)
	for _, thread := range threads {
		if err := testThread(filepath.Join(dir, thread.Name(), "status"), buf); err != nil {
			return fmt.Errorf("thread %s: %w", thread.Name(), err)
		}
	}
	return nil
}

func testThread(name string, buf []byte) (missing error) {
	text, err := readProc(name, buf)
	if err != nil {
		return err
	}
	seen := 0
	for line := range bytes.Lines(text) {
		key, value, _ := bytes.Cut(line, []byte(":"))
		expected, known := want[string(key)]
		if !known {
			continue
		}
		seen++
		if value = bytes.TrimSpace(value); string(value) != expected {
			missing = errors.Join(missing, fmt.Errorf("%s is %q, must be %q", key, value, expected))
		}
	}
	if missing != nil {
		return missing
	}
	if seen != len(want) {
		return fmt.Errorf("%d of %d facts found", seen, len(want))
	}
	return nil
}

// readProc reads a file of /proc, into buf if it fits. The size of such files is unknown before,
// and a large buffer needs few calls.
func readProc(name string, buf []byte) ([]byte, error) {
	fd, err := unix.Open(name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: name, Err: err}
	}
	defer unix.Close(fd)
	for text := buf[:0]; ; {
		if len(text) == cap(text) {
			text = slices.Grow(text, len(text)+1)
		}
		n, err := unix.Read(fd, text[len(text):cap(text)])
		if err != nil {
			return nil, &os.PathError{Op: "read", Path: name, Err: err}
		}
		if n == 0 {
			return text, nil
		}
		text = text[:len(text)+n]
	}
}
