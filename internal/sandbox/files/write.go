package files

import (
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
	if strings.EqualFold(path.Ext(name), ".ipynb") && isNotebookText(req.Content) {
		return protocol.FilesWriteResult{}, protocol.Errorf(protocol.CodeInvalidArguments,
			"%q is a notebook, which is written whole as JSON; change its cells with an edit", name)
	}
	result, err := f.replace(ctx, name, expected{req.ExpectSHA256, req.Guard}, func(file current) ([]byte, error) { return keepMark(file.content, req.Content) })
	result.Path = req.Path
	return result, err
}

// current is a file as it is before a change.
type current struct {
	content  []byte
	exists   bool
	oversize error // why the content was not loaded, when it is too large
}

// replace puts what change makes of a file in its place.
func (f *FS) replace(
	ctx context.Context, name string, expect expected, change func(current) ([]byte, error),
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
	if err := f.rename(target, after, info); err != nil {
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
// nil when there is none.
func (f *FS) rename(name string, content []byte, was fs.FileInfo) error {
	like, mode := was, fileMode
	if was == nil {
		dir, err := f.root.Stat(path.Dir(name))
		if err != nil {
			return err
		}
		like = dir
	} else {
		mode = was.Mode().Perm()
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
