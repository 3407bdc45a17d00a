package files

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"unicode/utf8"

	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/pkg/protocol"
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

// Bounds of paths, in bytes.
const (
	maxPath = 4096
	maxName = 255
)

// mount is the name that the workspace has in paths that start with a slash.
const mount = "/workspace"

// clean returns the canonical relative form of a request's path: "." or names
// joined by slashes, without ".." among them. base is the host's name of the
// workspace and is used for a hint only.
func clean(base, p string) (string, error) {
	if err := checkText(p); err != nil {
		return "", err
	}
	name := path.Clean(p)
	if p == "" {
		name = "."
	}
	if path.IsAbs(name) {
		if name != mount && !strings.HasPrefix(name, mount+"/") {
			return "", outside(base, p)
		}
		name = path.Clean("." + name[len(mount):])
	}
	if name == ".." || strings.HasPrefix(name, "../") {
		return "", outside(base, p)
	}
	for part := range strings.SplitSeq(name, "/") {
		if len(part) > maxName {
			return "", protocol.Errorf(codes.InvalidPath,
				"a name in the path has %d bytes, at most %d are possible: %q...", len(part), maxName, part[:32])
		}
	}
	if !filepath.IsLocal(filepath.FromSlash(name)) {
		return "", protocol.Errorf(codes.InvalidPath, "%q is not a path that this system allows", p)
	}
	return name, nil
}

func checkText(p string) error {
	switch {
	case len(p) > maxPath:
		return protocol.Errorf(codes.InvalidPath, "the path has %d bytes, at most %d are possible", len(p), maxPath)
	case strings.ContainsRune(p, 0):
		return protocol.Errorf(codes.InvalidPath, "%q contains a NUL byte", p)
	case !utf8.ValidString(p):
		return protocol.Errorf(codes.InvalidPath, "%q is not valid UTF-8", p)
	default:
		return nil
	}
}

// outside is the fault of a path that leaves the workspace by its text alone.
func outside(base, p string) error {
	hint := `, such as "src/main.go"`
	if rel, ok := strings.CutPrefix(path.Clean(p), filepath.ToSlash(base)+"/"); ok && base != "" {
		hint = fmt.Sprintf(": %q", rel)
	}
	return protocol.Errorf(codes.PathEscape,
		"%q is outside of the workspace; use a path relative to the workspace%s", p, hint)
}
