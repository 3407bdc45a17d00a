//go:build linux

package initd

import (
	"fmt"
	"math/rand/v2"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/toolfleet/toolfleet/internal/sandbox/internal/confine"
	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
)

// Users of sandboxes on the host, when the worker is root: far from those of people,
// services and containers.
const (
	firstUID = 1 << 30
	countUID = 1 << 29
)

// owner is who owns the directories of a sandbox on disk.
type owner struct{ uid, gid int }

// translations say that what has some owner on disk belongs to a user of the host, who is new and
// owns nothing else, in the mounts that are translated.
type translations struct {
	host int           // user and group
	fds  map[owner]int // user namespaces
}

func newTranslations() *translations {
	return &translations{host: firstUID + rand.IntN(countUID), fds: map[owner]int{}} //nolint:gosec // not secret
}

// translate has what belongs to an owner belong to the new user in a tree of mounts. Where one
// below the first cannot be translated (its file system cannot, or it is already), all those below
// are shown as they are, read-only: what is made there would belong to the new user on disk.
func (t *translations) translate(tree int, path string, of owner) error {
	owners, err := t.namespace(of)
	if err != nil {
		return &stepError{step: StepNamespaces, err: err}
	}
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(owners)} //nolint:gosec // a descriptor
	err = unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, &attr)
	if err == nil {
		return nil
	}
	first, err := firstReadOnly(tree)
	if err == nil && !first {
		attr.Attr_clr = unix.MOUNT_ATTR_RDONLY
	}
	if err == nil {
		err = unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY})
	}
	if err == nil {
		err = unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH, &attr)
	}
	if err != nil {
		return &stepError{step: StepTranslate, err: fmt.Errorf("%s: %w", path, err)}
	}
	return nil
}

// firstReadOnly reports whether the first mount of a tree is read-only.
func firstReadOnly(tree int) (bool, error) {
	var fs unix.Statfs_t
	err := unix.Fstatfs(tree, &fs)
	return fs.Flags&unix.ST_RDONLY != 0, err
}

// translateOwn does so for the owner of what is mounted.
func (t *translations) translateOwn(tree int, m isolation.Mount) error {
	var stat unix.Stat_t
	if err := unix.Fstat(tree, &stat); err != nil {
		return &stepError{step: "open " + m.Host, err: err}
	}
	err := t.translate(tree, m.Host, owner{int(stat.Uid), int(stat.Gid)})
	if !m.Write {
		return nil // it is shown as it is
	}
	return err
}

// namespace is one in which the owner is the new user. It is that of a process that does nothing,
// and lives only until it is open.
func (t *translations) namespace(of owner) (int, error) {
	if fd, known := t.fds[of]; known {
		return fd, nil
	}
	c := &cloned{flags: unix.CLONE_NEWUSER, setgroups: true, uids: []ids{{of.uid, t.host}}, gids: []ids{{of.gid, t.host}}}
	var life [2]int
	if err := unix.Pipe2(life[:], unix.O_CLOEXEC); err != nil {
		return -1, err
	}
	defer closeAll(life[:])
	pid, err := idle(&confine.List{}, life).Fork(c.flags, -1, nil)
	if err != nil {
		return -1, err
	}
	defer func() {
		_ = unix.Kill(pid, unix.SIGKILL)
		_, _ = unix.Wait4(pid, nil, 0, nil) // it is ours and dies
	}()
	if err := c.mapUsers(pid); err != nil {
		return -1, err
	}
	fd, err := unix.Open("/proc/"+strconv.Itoa(pid)+"/ns/user", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err == nil {
		t.fds[of] = fd
	}
	return fd, err
}

// idle adds what a forked process does that is only there for its namespaces: it waits until its
// parent closes the pipe life, or is gone. PR_SET_PDEATHSIG would miss a parent that is killed
// before the process has set it.
func idle(l *confine.List, life [2]int) *confine.List {
	l.Do(unix.SYS_CLOSE, life[1])
	l.Do(unix.SYS_READ, life[0], make([]byte, 1), 1)
	l.Do(unix.SYS_EXIT_GROUP, 0)
	return l
}

func (t *translations) close() {
	for _, fd := range t.fds {
		_ = unix.Close(fd)
	}
}

// directories are the host's that are the sandbox's own.
func directories(config Config) []string {
	return []string{config.Workspace, config.Home, config.Temp}
}

// StepTranslate is the step that fails on file systems that cannot show files under another
// owner.
const StepTranslate = "translate owners"

// openTrees opens what only the worker's user may open: the directories, with the sandbox's user in
// the place of their owner, and the mounts. On failure too, what was opened is returned.
func openTrees(config Config, owners *translations) ([]int, error) {
	var trees []int
	own := owner{config.OwnerUID, config.OwnerGID}
	if _, err := owners.namespace(own); err != nil { // first: where there is none, nothing else works
		return nil, &stepError{step: StepNamespaces, err: err}
	}
	for _, dir := range directories(config) {
		tree, err := openTree(&trees, dir)
		if err == nil {
			err = owners.translate(tree, dir, own)
		}
		if err != nil {
			return trees, err
		}
	}
	for _, m := range config.Mounts {
		tree, err := openTree(&trees, m.Host)
		if err == nil && (m.Write || m.AsOwner) {
			err = owners.translateOwn(tree, m)
		}
		if err != nil {
			return trees, err
		}
	}
	return trees, nil
}

// openTree opens a path, with all that is mounted below, as something to mount, and adds it to
// trees. It does not follow the mounts of the host any more.
func openTree(trees *[]int, host string) (int, error) {
	tree, err := unix.OpenTree(unix.AT_FDCWD, host, unix.AT_RECURSIVE|unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return -1, &stepError{step: "open " + host, err: err}
	}
	*trees = append(*trees, tree)
	err = unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, &unix.MountAttr{Propagation: unix.MS_PRIVATE})
	if err != nil {
		return -1, &stepError{step: "private mounts of " + host, err: err}
	}
	return tree, nil
}
