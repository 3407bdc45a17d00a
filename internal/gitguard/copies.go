package gitguard

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
)

// maxSettings bounds a file of settings that is copied.
const maxSettings = 1 << 20

// Copies are the settings of repositories in a directory that is used in place. The sandbox has a
// copy of each, see [isolation.Spec].Copies. Harmless settings that commands make in a copy are
// taken over into the user's; the others stay in the copy. It is safe for concurrent use.
type Copies struct {
	dir, scratch string

	mu    sync.Mutex
	files map[string]*copied // by places
}

// copied is one file of settings and its copy.
type copied struct {
	place string
	real  []byte // as it was when the copy was made of it
	copy  []byte // as it was when it was last looked at
	kept  values // the settings that differ in the copy; nothing for removed ones

	theirs values          // what the person has in real; nil until it is needed
	mine   map[string]bool // keys that were taken over
}

// values are settings by their keys, in order.
type values map[string][]string

// NewCopies prepares copies of the settings in places of a directory, for the sandbox with a
// scratch directory.
func NewCopies(dir, scratch string, places []string) *Copies {
	c := &Copies{dir: dir, scratch: scratch, files: map[string]*copied{}}
	for _, place := range places {
		c.files[place] = &copied{place: place, kept: values{}, mine: map[string]bool{}}
	}
	return c
}

// Put makes the copies, and again if another process has changed the settings since.
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
	for _, f := range c.files {
		actual, err := readSettings(root, f.place)
		if err == nil && (f.copy == nil || !bytes.Equal(actual, f.real)) {
			err = c.put(ctx, root, scratch, f, actual)
		}
		if err != nil {
			return fmt.Errorf("copy settings %s: %w", f.place, err)
		}
	}
	return nil
}

func (c *Copies) put(ctx context.Context, root, scratch *os.Root, f *copied, actual []byte) error {
	content, err := edit(ctx, actual, f.kept)
	if err != nil {
		return err
	}
	owner, err := root.Stat(".")
	if err != nil {
		return err
	}
	at := isolation.CopyOf(f.place)
	if err := scratch.MkdirAll(path.Dir(at), 0o700); err != nil {
		return err
	}
	if err := scratch.Remove(at); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := scratch.WriteFile(at, content, 0o600); err != nil {
		return err
	}
	f.real, f.copy, f.theirs = actual, content, nil
	if uid, gid, known := ownerOf(owner); known && os.Geteuid() == 0 {
		for _, name := range []string{at, path.Dir(at), path.Dir(path.Dir(at))} {
			err = errors.Join(err, scratch.Lchown(name, uid, gid))
		}
	}
	return err
}

// Take copies harmless settings of commands to the repository, and returns the paths and keys of
// all others, which stay in the copies, such as ".git/config: core.fsmonitor".
func (c *Copies) Take(ctx context.Context) (kept []string, err error) {
	if c == nil || len(c.files) == 0 {
		return nil, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	scratch, err := os.OpenRoot(c.scratch)
	if err != nil {
		return nil, fmt.Errorf("take settings over: %w", err)
	}
	defer scratch.Close()
	for _, name := range slices.Sorted(maps.Keys(c.files)) {
		f := c.files[name]
		now, readErr := readSettings(scratch, isolation.CopyOf(name))
		if readErr != nil { // removed, or something else by now: made again for the next command
			f.copy, f.kept = nil, values{}
			continue
		}
		if f.copy == nil || bytes.Equal(now, f.copy) {
			continue
		}
		keys, takeErr := c.take(ctx, f, now)
		for _, key := range keys {
			kept = append(kept, name+": "+printable(key))
		}
		if takeErr != nil {
			err = errors.Join(err, fmt.Errorf("take settings over into %s: %w", name, takeErr))
		}
	}
	return kept, err
}

// Bring does the same for settings of a copy elsewhere: it compares the copy as it was with the
// copy as it is, and returns the keys of settings that are not harmless.
func (c *Copies) Bring(ctx context.Context, place string, was, is []byte) (kept []string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f, known := c.files[place]
	if !known || bytes.Equal(was, is) {
		return nil, nil
	}
	root, err := os.OpenRoot(c.dir)
	if err != nil {
		return nil, fmt.Errorf("take settings over: %w", err)
	}
	defer root.Close()
	if f.real, err = readSettings(root, place); err == nil {
		f.copy, f.theirs = was, nil
		kept, err = c.take(ctx, f, is)
	}
	if err != nil {
		return nil, fmt.Errorf("take settings over into %s: %w", place, err)
	}
	for i, key := range kept {
		kept[i] = printable(key)
	}
	return kept, nil
}

// take compares a copy with what it was.
func (c *Copies) take(ctx context.Context, f *copied, now []byte) (kept []string, err error) {
	was, err := list(ctx, f.copy)
	if err != nil {
		return nil, err
	}
	is, err := list(ctx, now)
	if err != nil {
		return nil, err
	}
	if f.theirs == nil {
		if f.theirs, err = list(ctx, f.real); err != nil {
			return nil, err
		}
		maps.DeleteFunc(f.theirs, func(key string, _ []string) bool { return f.mine[key] })
	}
	f.copy = now
	taken := values{}
	keys := slices.Concat(slices.Collect(maps.Keys(was)), slices.Collect(maps.Keys(is)))
	slices.Sort(keys)
	for _, key := range slices.Compact(keys) {
		switch {
		case slices.Equal(was[key], is[key]):
		case takes(key, f.theirs[key], is[key]):
			taken[key] = is[key]
		default:
			f.kept[key] = is[key]
			kept = append(kept, key)
		}
	}
	if len(taken) == 0 {
		return kept, nil
	}
	if err := c.change(ctx, f, taken); err != nil {
		maps.Copy(f.kept, taken)
		return append(kept, slices.Sorted(maps.Keys(taken))...), err
	}
	for key := range taken {
		delete(f.kept, key)
		f.mine[key] = true
	}
	return kept, nil
}

// Forms of settings that are taken over.
var (
	remoteName  = regexp.MustCompile(`^(\.|[A-Za-z0-9_][A-Za-z0-9_.-]*)$`)
	trackedRef  = regexp.MustCompile(`^refs/(heads|tags)/[^:*?\[\\ ~^]+$`)
	fetchedRefs = regexp.MustCompile(`^\+?refs/[^: ]+:refs/(remotes|tags)/[^: ]+$`)
	yesOrNo     = regexp.MustCompile(`^(true|false|yes|no|on|off|1|0)?$`)
)

// taken are the settings that are taken over, by section and name, and the form of their values;
// nil is that of a URL.
var taken = map[string]*regexp.Regexp{ //nolint:gochecknoglobals // a constant
	"branch.remote": remoteName, "branch.merge": trackedRef, "branch.rebase": yesOrNo,
	"remote.url": nil, "remote.fetch": fetchedRefs, "remote.tagopt": regexp.MustCompile(`^--(no-)?tags$`), "remote.prune": yesOrNo,
	"submodule.url": nil, "submodule.active": yesOrNo,
}

// takes reports whether a setting is harmless and means the same to every user: a new remote is;
// another server for an existing remote, or for a branch that has one, is not.
func takes(key string, theirs, is []string) bool {
	section, subsection, name := split(key)
	form, known := taken[section+"."+name]
	switch {
	case !known || subsection == "":
		return false
	case len(theirs) > 0 && !slices.Equal(theirs, is) && (section != "branch" || name == "remote" && len(is) > 0):
		return false
	}
	return !slices.ContainsFunc(is, func(value string) bool {
		if form == nil {
			return !harmlessURL(value)
		}
		return !form.MatchString(value)
	})
}

// change changes the settings themselves. They stay the file that they are, which the sandbox is
// kept from: git's lock keeps others from changing it meanwhile.
func (c *Copies) change(ctx context.Context, f *copied, taken values) (err error) {
	root, err := os.OpenRoot(c.dir)
	if err != nil {
		return err
	}
	defer root.Close()
	lock, err := root.OpenFile(f.place+".lock", os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lock.Close(), root.Remove(f.place+".lock")) }()
	actual, err := readSettings(root, f.place)
	if err != nil {
		return err
	}
	changed, err := edit(ctx, actual, taken)
	if err != nil {
		return err
	}
	file, err := root.OpenFile(f.place, os.O_WRONLY|noWait, 0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	if _, err := file.WriteAt(changed, 0); err != nil {
		return err
	}
	if bytes.Equal(actual, f.real) { // else the copy is made again
		f.real = changed
	}
	return file.Truncate(int64(len(changed)))
}

// readSettings reads a regular file of some size.
func readSettings(root *os.Root, name string) ([]byte, error) {
	file, err := root.OpenFile(name, os.O_RDONLY|noWait, 0)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	if info, err := file.Stat(); err != nil || !info.Mode().IsRegular() || info.Size() > maxSettings {
		return nil, errors.Join(fmt.Errorf("%s is no regular file of at most %d bytes", name, maxSettings), err)
	}
	return io.ReadAll(io.LimitReader(file, maxSettings))
}

// list parses settings; what they include is not read.
func list(ctx context.Context, content []byte) (all values, err error) {
	all = values{}
	err = asFile(content, func(name string) error {
		out, err := ask(ctx, filepath.Dir(name), "config", "-z", "--file", name, "--list")
		for entry := range strings.SplitSeq(string(out), "\x00") {
			if key, value, _ := strings.Cut(entry, "\n"); key != "" {
				all[key] = append(all[key], value)
			}
		}
		return err
	})
	return all, err
}

// edit returns settings with others for some keys.
func edit(ctx context.Context, content []byte, changes values) (changed []byte, err error) {
	if len(changes) == 0 {
		return content, nil
	}
	has, err := list(ctx, content)
	if err != nil {
		return nil, err
	}
	err = asFile(content, func(name string) error {
		set := func(args ...string) error {
			_, err := ask(ctx, filepath.Dir(name), append([]string{"config", "--file", name}, args...)...)
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
		changed, err = os.ReadFile(name)
		return err
	})
	return changed, err
}

// asFile has content as a file of this process's own.
func asFile(content []byte, use func(name string) error) (err error) {
	dir, err := os.MkdirTemp("", "toolfleet-settings-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	name := filepath.Join(dir, "config")
	if err := os.WriteFile(name, content, 0o600); err != nil {
		return err
	}
	return use(name)
}
