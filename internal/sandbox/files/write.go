package files

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/internal/system"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Modes of what is made.
const (
	fileMode fs.FileMode = 0o644
	dirMode  fs.FileMode = 0o755
)

func (f *FS) write(ctx context.Context, name string, req protocol.FilesWrite) (protocol.FilesWriteResult, error) {
	if len(req.Content) > isolation.MaxFileSize {
		return protocol.FilesWriteResult{}, protocol.Errorf(codes.TooLarge,
			"the content has %d bytes, at most %d can be written", len(req.Content), isolation.MaxFileSize)
	}
	if !req.Raw && strings.EqualFold(path.Ext(name), ".ipynb") && isNotebookText(req.Content) {
		return protocol.FilesWriteResult{}, protocol.Errorf(protocol.CodeInvalidArguments,
			"%q is a notebook, which is written whole as JSON; change its cells with an edit", name)
	}
	mode := fs.FileMode(req.Mode)
	if mode != mode.Perm() {
		return protocol.FilesWriteResult{}, protocol.Errorf(protocol.CodeInvalidArguments, "mode %o: must be permissions, at most 777", req.Mode)
	}
	result, err := f.replace(ctx, name, expected{req.ExpectSHA256, req.Guard}, mode, func(file current) ([]byte, error) {
		if req.Raw {
			return req.Content, nil
		}
		return keepMark(file.content, req.Content)
	})
	result.Path = req.Path
	return result, err
}

// remove removes a file or a link, not what the link leads to.
func (f *FS) remove(ctx context.Context, req protocol.FilesRemove) (result protocol.FilesRemoveResult, err error) {
	name, err := f.reachEntry(req.Path, writing)
	if err != nil {
		return result, err
	}
	defer f.turns.take(name)()
	info, err := f.root.Lstat(name)
	switch {
	case err != nil:
		return result, f.fault("remove", name, err)
	case info.IsDir():
		return result, isDirectory(name)
	case req.ExpectSHA256 != "":
		content, _, err := f.load(ctx, name, os.O_RDONLY)
		if err == nil {
			err = checkExpected(name, expected{sha256: req.ExpectSHA256}, current{content: content, exists: true})
		}
		if err != nil {
			return result, f.fault("remove", name, err)
		}
	}
	if err := f.root.Remove(name); err != nil {
		return result, f.fault("remove", name, err)
	}
	return protocol.FilesRemoveResult{Path: req.Path}, nil
}

// current is a file as it is before a change.
type current struct {
	content  []byte
	exists   bool
	oversize error // why the content was not loaded, when it is too large
}

// replace puts what change makes of a file in its place.
func (f *FS) replace(
	ctx context.Context, name string, expect expected, mode fs.FileMode, change func(current) ([]byte, error),
) (protocol.FilesWriteResult, error) {
	var result protocol.FilesWriteResult
	target, err := f.root.resolve(name) // links stay, what they lead to is written
	if err != nil {
		return result, err
	}
	defer f.turns.take(target)()
	content, info, err := f.loadWritable(ctx, target)
	before := current{content: content, exists: true}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		before.exists = false
	case isFault(err, codes.TooLarge) && expect.sha256 == "":
		before.oversize = err
	case err != nil:
		return result, err
	default:
	}
	if err := checkExpected(name, expect, before); err != nil {
		return result, err
	}
	after, err := change(before)
	if err != nil {
		return result, err
	}
	if result.Created = !before.exists; result.Created {
		if err := f.makeParents(target); err != nil {
			return result, err
		}
	}
	if err := f.rename(target, after, mode, info); err != nil {
		return result, err
	}
	result.Bytes, result.SHA256 = int64(len(after)), digest(after)
	if before.oversize == nil {
		result.Diff = diff(name, before.content, after, result.Created)
	}
	if info != nil {
		result.Links = otherLinks(info)
	}
	return result, nil
}

// edit puts what change makes of the text of a file in its place, in the encoding of the file.
func (c current) edit(change func(text []byte) ([]byte, error)) ([]byte, error) {
	text, as, _ := decode(c.content)
	after, err := change(text)
	if err != nil {
		return nil, err
	}
	return as.encode(after)
}

// loadWritable is load, and fails with a permission error when the file may not be
// written: replacing it by rename would not ask.
func (f *FS) loadWritable(ctx context.Context, name string) ([]byte, fs.FileInfo, error) {
	content, info, err := f.load(ctx, name, os.O_RDWR)
	if busy(err) {
		return f.load(ctx, name, os.O_RDONLY)
	}
	return content, info, err
}

// makeParents makes the directories above name that do not exist, owned like the
// one that they are made in.
func (f *FS) makeParents(name string) error {
	var missing []string
	dir := path.Dir(name)
	above, err := f.root.Stat(dir)
	for errors.Is(err, fs.ErrNotExist) && dir != "." {
		missing = append(missing, dir)
		dir = path.Dir(dir)
		above, err = f.root.Stat(dir)
	}
	if err != nil {
		return err
	}
	for _, dir := range slices.Backward(missing) {
		err := f.root.Mkdir(dir, dirMode)
		if errors.Is(err, fs.ErrExist) {
			continue // made by someone else just now
		}
		if err == nil {
			err = system.OwnerOf(above).GiveIn(f.root.Root, dir)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// rename puts content at name by rename. was describes the file that is replaced;
// nil when there is none. Without a mode the file keeps its own.
func (f *FS) rename(name string, content []byte, mode fs.FileMode, was fs.FileInfo) error {
	like := was
	if was == nil {
		mode = cmp.Or(mode, fileMode)
		dir, err := f.root.Stat(path.Dir(name))
		if err != nil {
			return err
		}
		like = dir
	} else {
		mode = cmp.Or(mode, was.Mode().Perm())
	}
	temp := path.Join(path.Dir(name), system.TempName())
	err := system.OwnerOf(like).CreateIn(f.root.Root, temp, mode, func(file *os.File) error {
		_, err := file.Write(content)
		return err
	})
	if err != nil {
		return err
	}
	if err := f.root.Rename(temp, name); err != nil {
		return errors.Join(err, f.root.Remove(temp))
	}
	return nil
}
