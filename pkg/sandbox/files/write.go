package files

import (
	"context"
	"crypto/rand"
	"errors"
	"io/fs"
	"os"
	"path"
	"slices"

	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// Modes of what is made.
const (
	fileMode fs.FileMode = 0o644
	dirMode  fs.FileMode = 0o755
)

// Write implements [sandbox.FS].
func (f *FS) Write(ctx context.Context, p string, content []byte) (sandbox.WriteResult, error) {
	name, err := clean(f.root.Name(), p)
	if err != nil {
		return sandbox.WriteResult{}, err
	}
	if len(content) > sandbox.MaxFileSize {
		return sandbox.WriteResult{}, sandbox.Faultf(sandbox.FaultTooLarge,
			"the content has %d bytes, at most %d can be written", len(content), sandbox.MaxFileSize)
	}
	result, err := f.write(ctx, name, content)
	if err != nil {
		return sandbox.WriteResult{}, f.fault("write", name, err)
	}
	return result, nil
}

func (f *FS) write(ctx context.Context, name string, content []byte) (sandbox.WriteResult, error) {
	result := sandbox.WriteResult{Size: int64(len(content)), SHA256: digest(content)}
	target, err := f.target(name)
	if err != nil {
		return result, err
	}
	before, info, err := f.loadWritable(ctx, target)
	var fault *sandbox.Fault
	switch {
	case errors.Is(err, fs.ErrNotExist):
		result.Created = true
		if err := f.makeParents(target); err != nil {
			return result, err
		}
	case errors.As(err, &fault) && fault.Code == sandbox.FaultTooLarge:
		before = nil // it can be replaced; only the diff is left out
	case err != nil:
		return result, err
	default:
	}
	if err := f.replace(target, content, info); err != nil {
		return result, err
	}
	if result.Created || info.Size() <= maxDiffInput {
		result.Diff = diff(name, before, content, result.Created)
	}
	return result, nil
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

// target follows symbolic links at the end of name, so that their target is written
// and they stay. The way there is resolved by the root in any case.
func (f *FS) target(name string) (string, error) {
	info, err := f.root.Lstat(name)
	if err != nil || info.Mode()&fs.ModeSymlink == 0 {
		return name, nil //nolint:nilerr // what is wrong with name is found where it is used
	}
	if _, err := f.root.Stat(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err // it leads outside, or in circles
	}
	return f.resolve(name)
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
			err = adoptDir(f.root, dir, above)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// replace puts content at name by rename. was describes the file that is replaced;
// nil when there is none.
func (f *FS) replace(name string, content []byte, was fs.FileInfo) error {
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
	temp := path.Join(path.Dir(name), tempName())
	if err := f.writeTemp(temp, content, mode, like); err != nil {
		return err
	}
	if err := f.root.Rename(temp, name); err != nil {
		return errors.Join(err, f.root.Remove(temp))
	}
	return nil
}

func (f *FS) writeTemp(temp string, content []byte, mode fs.FileMode, like fs.FileInfo) error {
	file, err := f.root.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(content)
	if err == nil {
		err = adopt(file, like)
	}
	if err == nil {
		err = file.Chmod(mode)
	}
	if err = errors.Join(err, file.Close()); err != nil {
		return errors.Join(err, f.root.Remove(temp))
	}
	return nil
}

// tempName is short, so that it fits beside every file.
func tempName() string { return ".toolfleet-" + rand.Text() + ".tmp" }
