package files

import (
	"cmp"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"slices"
	"syscall"

	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// listChunk is how many entries are read at a time.
const listChunk = 4096

// List implements [sandbox.FS].
func (f *FS) List(ctx context.Context, req sandbox.ListRequest) (sandbox.ListResult, error) {
	return operate(f, req.Path, reading, "list", func(name string) (sandbox.ListResult, error) { return f.list(ctx, name) })
}

func (f *FS) list(ctx context.Context, name string) (result sandbox.ListResult, err error) {
	dir, err := f.openDir(name)
	if err != nil {
		return result, err
	}
	defer dir.Close()
	for {
		if err := ctx.Err(); err != nil {
			return result, err
		}
		chunk, err := dir.ReadDir(listChunk)
		if errors.Is(err, io.EOF) {
			result.Entries = fit(result.Entries)
			return result, nil
		}
		if err != nil {
			return result, err
		}
		result.Total += len(chunk)
		result.Entries = merge(result.Entries, chunk)
	}
}

// fit sorts entries by name, and keeps the first [sandbox.MaxFound].
func fit(entries []sandbox.Entry) []sandbox.Entry {
	slices.SortFunc(entries, func(a, b sandbox.Entry) int { return cmp.Compare(a.Name, b.Name) })
	return entries[:min(len(entries), sandbox.MaxFound)]
}

// merge adds chunk to entries, of which it keeps the first, twice [sandbox.MaxFound] at most.
func merge(entries []sandbox.Entry, chunk []fs.DirEntry) []sandbox.Entry {
	for _, d := range chunk {
		entry := sandbox.Entry{Name: d.Name(), Type: fileType(d.Type())}
		if info, err := d.Info(); err == nil && entry.Type == sandbox.TypeFile {
			entry.Size = info.Size()
		}
		entries = append(entries, entry)
	}
	if len(entries) > 2*sandbox.MaxFound {
		return fit(entries)
	}
	return entries
}

// openDir opens a directory and nothing else.
func (f *FS) openDir(name string) (*os.File, error) {
	info, err := f.root.Stat(name)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return nil, sandbox.Faultf(sandbox.FaultNotDirectory, "%q is not a directory", name)
	}
	return f.root.OpenFile(name, os.O_RDONLY|nonblock, 0)
}

// Stat implements [sandbox.FS].
func (f *FS) Stat(ctx context.Context, req sandbox.StatRequest) (sandbox.StatResult, error) {
	name, err := f.reachEntry(req.Path)
	if err != nil {
		return sandbox.StatResult{}, err
	}
	if err := ctx.Err(); err != nil {
		return sandbox.StatResult{}, f.fault("stat", name, err)
	}
	info, err := f.root.Lstat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR):
		return sandbox.StatResult{}, nil
	case err != nil:
		return sandbox.StatResult{}, f.fault("stat", name, err)
	}
	result := sandbox.StatResult{Exists: true, Type: fileType(info.Mode().Type())}
	if result.Type == sandbox.TypeFile {
		result.Size = info.Size()
	}
	return result, nil
}

func fileType(mode fs.FileMode) sandbox.FileType {
	switch mode {
	case 0:
		return sandbox.TypeFile
	case fs.ModeDir:
		return sandbox.TypeDir
	case fs.ModeSymlink:
		return sandbox.TypeSymlink
	default:
		return sandbox.TypeOther
	}
}

// OpenDir opens a directory of the workspace, for a command that is to start in it.
// The caller closes it. Expected failures are a *[sandbox.Fault].
func (f *FS) OpenDir(p string) (*os.File, error) {
	name, err := clean(f.root.Name(), p)
	if err != nil {
		return nil, err
	}
	dir, err := f.openDir(name)
	if err != nil {
		return nil, f.fault("open directory", name, err)
	}
	return dir, nil
}
