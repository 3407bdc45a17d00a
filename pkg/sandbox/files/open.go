package files

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"

	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// openRegular opens a regular file and never blocks. It looks before it opens, for
// opening a device may have effects, and again at what it opened.
func (f *FS) openRegular(name string, flag int) (*os.File, fs.FileInfo, error) {
	info, err := f.root.Stat(name)
	if err != nil {
		return nil, nil, err
	}
	if err := requireRegular(name, info); err != nil {
		return nil, nil, err
	}
	file, err := f.root.OpenFile(name, flag|nonblock, 0)
	if err != nil {
		if unopenable(err) {
			err = notRegular(name, fs.ModeSocket)
		}
		return nil, nil, err
	}
	info, err = file.Stat()
	if err == nil {
		err = requireRegular(name, info)
	}
	if err != nil {
		return nil, nil, errors.Join(err, file.Close())
	}
	return file, info, nil
}

func requireRegular(name string, info fs.FileInfo) error {
	switch {
	case info.IsDir():
		return isDirectory(name)
	case !info.Mode().IsRegular():
		return notRegular(name, info.Mode())
	default:
		return nil
	}
}

// load returns the whole content of a regular file of at most [sandbox.MaxFileSize].
func (f *FS) load(ctx context.Context, name string, flag int) ([]byte, fs.FileInfo, error) {
	if err := ctx.Err(); err != nil {
		return nil, nil, err
	}
	file, info, err := f.openRegular(name, flag)
	if err != nil {
		return nil, nil, err
	}
	defer file.Close()
	if info.Size() > sandbox.MaxFileSize {
		return nil, info, tooLarge(name, info.Size(), sandbox.MaxFileSize)
	}
	content := make([]byte, 0, info.Size()+1)
	content, err = readAll(content, io.LimitReader(file, sandbox.MaxFileSize+1))
	if err != nil {
		return nil, nil, err
	}
	if len(content) > sandbox.MaxFileSize {
		return nil, info, tooLarge(name, int64(len(content)), sandbox.MaxFileSize)
	}
	return content, info, nil
}

// readAll is [io.ReadAll] into a buffer that has the right size already.
func readAll(buf []byte, r io.Reader) ([]byte, error) {
	for {
		n, err := r.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		if errors.Is(err, io.EOF) {
			return buf, nil
		}
		if err != nil {
			return nil, err
		}
		if len(buf) == cap(buf) {
			buf = append(buf, 0)[:len(buf)]
		}
	}
}
