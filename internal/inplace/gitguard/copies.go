package gitguard

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"sync"

	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/internal/system"
	"github.com/toolfleet/toolfleet/internal/system/regular"
)

// MaxSettings bounds a file of settings that is copied or compared, in bytes.
const MaxSettings = 1 << 20

// Copies are the settings of repositories in a directory that is used in place. The sandbox has a
// copy of each, see [isolation.Spec].Copies: what commands set there holds in the sandbox only. It
// is safe for concurrent use.
type Copies struct {
	dir, scratch string

	mu    sync.Mutex
	files map[string]*copied // by path
}

// copied is one file of settings and its copy.
type copied struct {
	real []byte // when the copy was made of it
	copy []byte // when it was last looked at
	own  values // what commands have set in the copy; nothing for what they have removed
}

// values are settings by their keys, in order.
type values map[string][]string

// NewCopies prepares copies of a directory's settings files with these names, for the sandbox with
// a scratch directory.
func NewCopies(dir, scratch string, names []string) *Copies {
	c := &Copies{dir: dir, scratch: scratch, files: map[string]*copied{}}
	for _, name := range names {
		c.files[name] = &copied{own: values{}}
	}
	return c
}

// Put makes the copies, and again if the settings have changed since.
func (c *Copies) Put(ctx context.Context) error {
	if c == nil || len(c.files) == 0 {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	root, err := os.OpenRoot(c.dir)
	if err != nil {
		return fmt.Errorf("copy settings: %w", err)
	}
	defer root.Close()
	scratch, err := os.OpenRoot(c.scratch)
	if err != nil {
		return fmt.Errorf("copy settings: %w", err)
	}
	defer scratch.Close()
	for name, f := range c.files {
		actual, err := readSettings(root, name)
		if err == nil && (f.copy == nil || !bytes.Equal(actual, f.real)) {
			err = f.put(ctx, root, scratch, name, actual)
		}
		if err != nil {
			return fmt.Errorf("copy settings %s: %w", name, err)
		}
	}
	return nil
}

func (f *copied) put(ctx context.Context, root, scratch *os.Root, name string, actual []byte) error {
	content, err := edit(ctx, root.Name(), actual, f.own)
	if err != nil {
		return err
	}
	owner, err := root.Stat(".")
	if err != nil {
		return err
	}
	at := isolation.CopyOf(name)
	if err := scratch.MkdirAll(path.Dir(at), 0o700); err != nil {
		return err
	}
	if err := scratch.Remove(at); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := scratch.WriteFile(at, content, 0o600); err != nil {
		return err
	}
	f.real, f.copy = actual, content
	for _, made := range []string{at, path.Dir(at), path.Dir(path.Dir(at))} {
		err = errors.Join(err, system.OwnerOf(owner).GiveIn(scratch, made))
	}
	return err
}

// Changed names what commands have set in the copies since it was last called: file and key, as in
// ".git/config: core.fsmonitor".
func (c *Copies) Changed(ctx context.Context) (keys []string, err error) {
	if c == nil || len(c.files) == 0 {
		return nil, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	scratch, err := os.OpenRoot(c.scratch)
	if err != nil {
		return nil, fmt.Errorf("look for changed settings: %w", err)
	}
	defer scratch.Close()
	for _, name := range slices.Sorted(maps.Keys(c.files)) {
		f := c.files[name]
		now, readErr := readSettings(scratch, isolation.CopyOf(name))
		if readErr != nil { // removed, or something else by now: made again for the next command
			f.copy, f.own = nil, values{}
			continue
		}
		if f.copy == nil || bytes.Equal(now, f.copy) {
			continue
		}
		changed, listErr := differences(ctx, c.dir, f.copy, now)
		if listErr != nil {
			err = errors.Join(err, fmt.Errorf("look for changed settings in %s: %w", name, listErr))
			continue
		}
		f.copy = now
		maps.Copy(f.own, changed)
		keys = append(keys, changed.named(name)...)
	}
	return keys, err
}

// Differences names the settings of a file in a directory, such as .git/config, that are others in
// a session's version of it.
func Differences(ctx context.Context, root *os.Root, name string, theirs []byte) ([]string, error) {
	actual, err := readSettings(root, name)
	if err != nil {
		return nil, err
	}
	changed, err := differences(ctx, root.Name(), actual, theirs)
	return changed.named(name), err
}

// differences are the settings that are others than they were; nothing for settings that are gone.
// git is not one of dir.
func differences(ctx context.Context, dir string, before, after []byte) (values, error) {
	git, err := newReader(dir)
	if err != nil {
		return nil, err
	}
	was, err := git.values(ctx, before)
	if err != nil {
		return nil, err
	}
	is, err := git.values(ctx, after)
	if err != nil {
		return nil, err
	}
	for key := range was {
		if _, there := is[key]; !there {
			is[key] = nil
		}
	}
	maps.DeleteFunc(is, func(key string, value []string) bool { return slices.Equal(value, was[key]) })
	return is, nil
}

// named are the keys with the name of their file.
func (v values) named(file string) (all []string) {
	for _, key := range slices.Sorted(maps.Keys(v)) {
		all = append(all, file+": "+printable(key))
	}
	return all
}

// readSettings reads a file of settings.
func readSettings(root *os.Root, name string) ([]byte, error) {
	return regular.ReadIn(root, name, MaxSettings)
}

// values are the settings of a file; what they include is not read.
func (r *reader) values(ctx context.Context, content []byte) (values, error) {
	all := values{}
	entries, err := r.list(ctx, content)
	for _, e := range entries {
		all[e.key] = append(all[e.key], e.value)
	}
	return all, err
}

// edit returns settings with others for some keys. git is not one of dir.
func edit(ctx context.Context, dir string, content []byte, changes values) (changed []byte, err error) {
	if len(changes) == 0 {
		return content, nil
	}
	git, err := newReader(dir)
	if err != nil {
		return nil, err
	}
	has, err := git.values(ctx, content)
	if err != nil {
		return nil, err
	}
	err = asFile(content, func(dir string) error {
		set := func(args ...string) error {
			_, err := git.ask(ctx, dir, neutral(dir), append([]string{"config", "--file", copyName}, args...)...)
			return err
		}
		for _, key := range slices.Sorted(maps.Keys(changes)) {
			if len(has[key]) > 0 {
				if err := set("--unset-all", "--", key); err != nil {
					return err
				}
			}
			for _, value := range changes[key] {
				if err := set("--add", "--", key, value); err != nil {
					return err
				}
			}
		}
		changed, err = regular.Read(filepath.Join(dir, copyName), 2*MaxSettings)
		return err
	})
	return changed, err
}
