package files

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"

	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
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

// load returns the whole content of a regular file of at most [isolation.MaxFileSize].
func (f *FS) load(ctx context.Context, name string, flag int) ([]byte, fs.FileInfo, error) {
	if err := ctx.Err(); err != nil {
		return nil, nil, err
	}
	file, info, err := f.openRegular(name, flag)
	if err != nil {
		return nil, nil, err
	}
	defer file.Close()
	if info.Size() > isolation.MaxFileSize {
		return nil, info, tooLarge(name, info.Size(), isolation.MaxFileSize)
	}
	content := bytes.NewBuffer(make([]byte, 0, info.Size()+bytes.MinRead))
	if _, err := content.ReadFrom(io.LimitReader(file, isolation.MaxFileSize+1)); err != nil {
		return nil, nil, err
	}
	if content.Len() > isolation.MaxFileSize {
		return nil, info, tooLarge(name, int64(content.Len()), isolation.MaxFileSize)
	}
	return content.Bytes(), info, nil
}
