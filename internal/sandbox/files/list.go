package files

import (
	"cmp"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"syscall"

	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// listChunk is how many entries are read at a time.
const listChunk = 4096

func (f *FS) list(ctx context.Context, name string, req protocol.FilesList) (result protocol.FilesListResult, err error) {
	dir, err := f.openDir(name)
	if err != nil {
		return result, err
	}
	defer dir.Close()
	result.Path, result.Entries = req.Path, []protocol.DirEntry{}
	for {
		if err := ctx.Err(); err != nil {
			return result, err
		}
		chunk, err := dir.ReadDir(listChunk)
		if errors.Is(err, io.EOF) {
			if result.Entries = fit(result.Entries); req.Follow {
				f.follow(name, result.Entries)
			}
			return result, nil
		}
		if err != nil {
			return result, err
		}
		result.Total += len(chunk)
		result.Entries = merge(result.Entries, chunk)
	}
}

// follow gives links in the directory name the type of what they lead to, if that may be read.
func (f *FS) follow(name string, entries []protocol.DirEntry) {
	for i := range entries {
		at := path.Join(name, entries[i].Name)
		if entries[i].Type != protocol.TypeSymlink || f.allow(at, reading) != nil {
			continue
		}
		if info, err := f.root.Stat(at); err == nil {
			entries[i].Type = fileType(info.Mode().Type())
		}
	}
}

// fit sorts entries by name, and keeps the first [isolation.MaxFound].
func fit(entries []protocol.DirEntry) []protocol.DirEntry {
	slices.SortFunc(entries, func(a, b protocol.DirEntry) int { return cmp.Compare(a.Name, b.Name) })
	return entries[:min(len(entries), isolation.MaxFound)]
}

// merge adds chunk to entries, and keeps the first ones, at most twice [isolation.MaxFound].
func merge(entries []protocol.DirEntry, chunk []fs.DirEntry) []protocol.DirEntry {
	for _, d := range chunk {
		entry := protocol.DirEntry{Name: d.Name(), Type: fileType(d.Type())}
		if info, err := d.Info(); err == nil && entry.Type == protocol.TypeFile {
			entry.Size = info.Size()
		}
		entries = append(entries, entry)
	}
	if len(entries) > 2*isolation.MaxFound {
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
		return nil, protocol.Errorf(codes.NotDirectory, "%q is not a directory", name)
	}
	return f.root.OpenFile(name, os.O_RDONLY|nonblock, 0)
}

func (f *FS) stat(ctx context.Context, req protocol.FilesExists) (protocol.FilesExistsResult, error) {
	reach, stat := f.reachEntry, f.root.Lstat
	if req.Follow {
		reach, stat = func(p string) (string, error) { return f.reach(p, reading) }, f.root.Stat
	}
	name, err := reach(req.Path)
	switch {
	case req.Follow && isFault(err, codes.PathEscape):
		return protocol.FilesExistsResult{Path: req.Path}, nil
	case err != nil:
		return protocol.FilesExistsResult{}, err
	}
	if err := ctx.Err(); err != nil {
		return protocol.FilesExistsResult{}, f.fault("stat", name, err)
	}
	info, err := stat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR), req.Follow && errors.Is(err, f.root.escape):
		return protocol.FilesExistsResult{Path: req.Path}, nil
	case err != nil:
		return protocol.FilesExistsResult{}, f.fault("stat", name, err)
	}
	result := protocol.FilesExistsResult{Path: req.Path, Exists: true, Type: fileType(info.Mode().Type())}
	if result.Type == protocol.TypeFile {
		result.Size = info.Size()
	}
	return result, nil
}

func fileType(mode fs.FileMode) protocol.FileType {
	switch mode {
	case 0:
		return protocol.TypeFile
	case fs.ModeDir:
		return protocol.TypeDir
	case fs.ModeSymlink:
		return protocol.TypeSymlink
	default:
		return protocol.TypeOther
	}
}

// OpenDir opens a directory of the workspace, for a command that is to start in it.
// The caller closes it. Expected failures are a *[protocol.Error].
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
