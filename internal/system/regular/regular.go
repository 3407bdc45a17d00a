// Package regular opens files that a session may have written. A FIFO, a device or a socket at
// the path is an error at once, instead of a wait or an effect, also if it replaces a file between
// two looks. What is read is bounded. A pipe is read only where its path names a descriptor that
// this process was started with, which no session chooses. Errors are of type [*fs.PathError].
//
// What this process writes for a later one, it writes whole: next to the old file, whose name it
// gets at the end.
package regular

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/toolfleet/toolfleet/internal/system"
)

// Errors of a path.
var (
	ErrNot   = errors.New("is not a regular file")
	ErrLarge = errors.New("is larger than")
)

// Open opens a regular file to read it.
func Open(path string) (*os.File, error) { return open(nowhere{}, path) }

// OpenIn is [Open] for a path in a directory, which links do not lead out of.
func OpenIn(root *os.Root, name string) (*os.File, error) { return open(root, name) }

// Read reads a regular file of at most limit bytes, whole KiB.
func Read(path string, limit int64) ([]byte, error) { return read(nowhere{}, path, limit) }

// ReadIn is [Read] for a path in a directory, which links do not lead out of.
func ReadIn(root *os.Root, name string, limit int64) ([]byte, error) { return read(root, name, limit) }

// place is where a path is looked up.
type place interface {
	Stat(name string) (fs.FileInfo, error)
	OpenFile(name string, flag int, perm fs.FileMode) (*os.File, error)
}

// nowhere looks paths up as the system does.
type nowhere struct{}

func (nowhere) Stat(name string) (fs.FileInfo, error) { return os.Stat(name) }

func (nowhere) OpenFile(name string, flag int, perm fs.FileMode) (*os.File, error) {
	return os.OpenFile(name, flag, perm)
}

// open looks before it opens, because opening a device may have effects, and again at what it
// opened.
func open(in place, name string) (*os.File, error) {
	info, err := in.Stat(name)
	if err != nil {
		return nil, err
	}
	if !readable(info, name) {
		return nil, not(name)
	}
	file, err := in.OpenFile(name, os.O_RDONLY|system.NonBlock, 0)
	if err != nil {
		return nil, err
	}
	if info, err = file.Stat(); err == nil && !readable(info, name) {
		err = not(name)
	}
	if err != nil {
		_ = file.Close() // it was not read
		return nil, err
	}
	return file, nil
}

// readable reports whether a path is a regular file, or names a pipe that this process has been
// given, as a shell does for --system <(command).
func readable(info fs.FileInfo, name string) bool {
	return info.Mode().IsRegular() || info.Mode()&fs.ModeNamedPipe != 0 && (strings.HasPrefix(name, "/dev/fd/") || strings.HasPrefix(name, "/proc/self/fd/"))
}

func not(name string) error { return &fs.PathError{Op: "open", Path: name, Err: ErrNot} }

func read(in place, name string, limit int64) ([]byte, error) {
	file, err := open(in, name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }() // it was only read
	content, err := io.ReadAll(io.LimitReader(file, limit+1))
	if err == nil && int64(len(content)) > limit {
		bound := fmt.Sprintf("%d KiB", limit>>10)
		if limit%(1<<20) == 0 {
			bound = fmt.Sprintf("%d MiB", limit>>20)
		}
		err = &fs.PathError{Op: "read", Path: name, Err: fmt.Errorf("%w %s", ErrLarge, bound)}
	}
	if err != nil {
		return nil, err
	}
	return content, nil
}

// Append adds to the end of a regular file, which it makes with mode 0600 if there is none.
func Append(path string, content []byte) error {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND|system.NonBlock, 0o600)
	if err != nil {
		return err
	}
	info, err := file.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = not(path)
	}
	if err == nil {
		_, err = file.Write(content)
	}
	return errors.Join(err, file.Close())
}

// Replace writes a file of mode 0600 in the place of the one that may be there. Readers see the one
// or the other, and of several writers one stays. A process that is killed meanwhile leaves a file
// that ends in ".new".
func Replace(path string, content []byte) error { return write(path, content, false, os.Rename) }

// ReplaceSynced is [Replace] of what has to outlast a loss of power.
func ReplaceSynced(path string, content []byte) error { return write(path, content, true, os.Rename) }

// Create is [Replace] if no file is there, which readers and other processes that create it agree
// on; else the error wraps [fs.ErrExist].
func Create(path string, content []byte) error { return write(path, content, false, os.Link) }

func write(path string, content []byte, synced bool, publish func(from, to string) error) error {
	file, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*.new") // of mode 0600
	if err != nil {
		return err
	}
	_, err = file.Write(content)
	if synced {
		err = errors.Join(err, file.Sync())
	}
	if err = errors.Join(err, file.Close()); err == nil {
		err = publish(file.Name(), path)
	}
	_ = os.Remove(file.Name()) // not there any more if it was renamed
	if dir, openErr := os.Open(filepath.Dir(path)); synced && openErr == nil {
		_ = dir.Sync() // some systems do not have it
		_ = dir.Close()
	}
	return err
}
