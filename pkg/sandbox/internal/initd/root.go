//go:build linux

package initd

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/toolfleet/toolfleet/pkg/sandbox"
	"github.com/toolfleet/toolfleet/pkg/sandbox/internal/wire"
)

// Where a sandbox has its directories.
const (
	GuestWorkspace = "/workspace"
	GuestHome      = "/home/sandbox"
	GuestTemp      = "/tmp"
)

// ShmSize is how big /dev/shm may become.
const ShmSize = 64 << 20

// System are the directories of programs and libraries. Where one of them is a symbolic link
// on the host, it is one in the sandbox.
var System = []string{"bin", "sbin", "lib", "lib32", "lib64", "libx32", "usr"} //nolint:gochecknoglobals // a constant

// settings are the files of /etc that programs need and that tell nothing. Certificates are
// public; what names the host's users is made anew.
var settings = []string{ //nolint:gochecknoglobals // a constant
	"ld.so.cache", "ld.so.conf", "ld.so.conf.d", "alternatives", "localtime", "timezone", "nsswitch.conf", "services", "protocols",
	"mime.types", "ssl/certs", "ssl/openssl.cnf", "ca-certificates.conf", "ca-certificates", "pki/tls/certs", "pki/ca-trust/extracted",
	"crypto-policies",
}

// SettingsOf are the files of /etc of a sandbox, as the host has them.
func SettingsOf(config wire.Config) []string {
	if config.Network == sandbox.NetworkAll {
		return append([]string{"hosts", "resolv.conf"}, settings...)
	}
	return settings
}

// devices are the device files of a sandbox.
var devices = []string{"null", "zero", "full", "random", "urandom", "tty"} //nolint:gochecknoglobals // a constant

// enterRoot builds the root of the sandbox and leaves the host's. Everything is opened
// before anything is covered, and mounted relative to the new root, which is the working
// directory.
func enterRoot(config wire.Config) error {
	if err := layer(config, "private mounts", func() error { return unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "") }); err != nil {
		return err
	}
	v, err := openView(config)
	if err != nil {
		return err
	}
	root, err := newRoot()
	if err != nil {
		return &stepError{step: "new root", err: err}
	}
	for _, s := range []struct {
		name string
		run  func() error
	}{
		{"system directories", v.placeSystem},
		{"settings", v.placeSettings},
		{"places for mounts", v.placeGuests},
		{"read-only root", func() error { return seal(root, unix.AT_RECURSIVE) }},
		{"/proc", func() error {
			return unix.Mount("proc", "proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "")
		}},
		{"/dev", v.placeDevices},
		{"directories", v.placeDirectories},
		{"pivot_root", leave},
	} {
		if err := layer(config, s.name, s.run); err != nil {
			return err
		}
	}
	return nil
}

// tree is something of the host that the sandbox will see.
type tree struct {
	fd    int
	guest string // relative to the root
	dir   bool
}

// view is everything that the sandbox will see.
type view struct {
	config   wire.Config
	links    map[string]string // of the system directories
	system   []tree
	settings []tree
	devices  []tree
	dirs     []tree // workspace, home, temp
	mounts   []tree
}

func openView(config wire.Config) (*view, error) {
	v := &view{config: config, links: map[string]string{}}
	for _, name := range System {
		if link, err := os.Readlink("/" + name); err == nil {
			v.links[name] = link
			continue
		}
		if err := v.open(&v.system, "/"+name, name); err != nil {
			return nil, err
		}
	}
	for _, name := range SettingsOf(config) {
		if err := v.open(&v.settings, "/etc/"+name, "etc/"+name); err != nil {
			return nil, err
		}
	}
	for _, name := range devices {
		if err := v.open(&v.devices, "/dev/"+name, "dev/"+name); err != nil {
			return nil, err
		}
	}
	return v, v.openDirectories()
}

// openDirectories opens the directories and mounts, unless launch did.
func (v *view) openDirectories() error {
	dirs := []struct{ host, guest string }{
		{v.config.Workspace, GuestWorkspace}, {v.config.Home, GuestHome}, {v.config.Temp, GuestTemp},
	}
	if v.config.Privileged {
		fd := fdMounts
		for _, d := range dirs {
			v.dirs = append(v.dirs, tree{fd: fd, guest: d.guest[1:], dir: true})
			fd++
		}
		for _, m := range v.config.Mounts {
			if err := v.add(&v.mounts, fd, Guest(m)[1:]); err != nil {
				return err
			}
			fd++
		}
		return nil
	}
	for _, d := range dirs {
		if err := v.open(&v.dirs, d.host, d.guest[1:]); err != nil {
			return err
		}
	}
	for _, m := range v.config.Mounts {
		if err := v.open(&v.mounts, m.Host, Guest(m)[1:]); err != nil {
			return err
		}
	}
	if want := len(dirs) + len(v.config.Mounts); len(v.dirs)+len(v.mounts) != want {
		return &stepError{step: "open directories", err: fs.ErrNotExist}
	}
	return nil
}

// open opens a path of the host, if it exists.
func (v *view) open(list *[]tree, host, guest string) error {
	fd, err := openTree(host, unix.AT_RECURSIVE)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return &stepError{step: "open " + host, err: err}
	}
	return v.add(list, fd, guest)
}

func (v *view) add(list *[]tree, fd int, guest string) error {
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil {
		return &stepError{step: "look at /" + guest, err: err}
	}
	*list = append(*list, tree{fd: fd, guest: guest, dir: stat.Mode&unix.S_IFMT == unix.S_IFDIR})
	return nil
}

// Guest is where a mount appears.
func Guest(m sandbox.Mount) string {
	if m.Guest == "" {
		return filepath.Clean(m.Host)
	}
	return filepath.Clean(m.Guest)
}

// newRoot covers a directory with an empty file system, goes there, and returns it.
func newRoot() (int, error) {
	config, err := unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("fsopen: %w", err)
	}
	defer unix.Close(config)
	for key, value := range map[string]string{"mode": "0755", "size": "1m", "nr_inodes": "1k"} {
		if err := unix.FsconfigSetString(config, key, value); err != nil {
			return -1, fmt.Errorf("fsconfig %s: %w", key, err)
		}
	}
	if err := unix.FsconfigCreate(config); err != nil {
		return -1, fmt.Errorf("fsconfig: %w", err)
	}
	root, err := unix.Fsmount(config, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV)
	if err != nil {
		return -1, fmt.Errorf("fsmount: %w", err)
	}
	if err := unix.MoveMount(root, "", unix.AT_FDCWD, "/tmp", unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return -1, fmt.Errorf("move_mount: %w", err)
	}
	return root, unix.Fchdir(root)
}

// seal makes a mount read-only.
func seal(fd int, flags uint) error {
	return unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH|flags,
		&unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV})
}

// makePlace makes what a tree is mounted on.
func makePlace(t tree) error {
	dir := t.guest
	if !t.dir {
		dir = filepath.Dir(dir)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil || t.dir { //nolint:gosec // for everybody in the sandbox
		return err
	}
	file, err := os.OpenFile(t.guest, os.O_CREATE|os.O_RDONLY, 0o444) //nolint:gosec // as above
	if err != nil {
		return err
	}
	return file.Close()
}

func attach(t tree) error {
	err := unix.MoveMount(t.fd, "", unix.AT_FDCWD, t.guest, unix.MOVE_MOUNT_F_EMPTY_PATH)
	if err != nil {
		return fmt.Errorf("/%s: %w", t.guest, err)
	}
	return nil
}

func place(trees []tree) error {
	for _, t := range trees {
		if err := makePlace(t); err != nil {
			return err
		}
		if err := attach(t); err != nil {
			return err
		}
	}
	return nil
}

func (v *view) placeSystem() error {
	for name, link := range v.links {
		if err := os.Symlink(link, name); err != nil {
			return err
		}
	}
	return place(v.system)
}

// Made are the files of /etc that are made for a sandbox, and their content.
func Made(config wire.Config) map[string]string {
	made := map[string]string{
		"passwd":   fmt.Sprintf("sandbox:x:%d:%d:sandbox:%s:/bin/sh\n", User, User, GuestHome),
		"group":    fmt.Sprintf("sandbox:x:%d:\n", User),
		"hostname": HostName + "\n",
	}
	if config.Network != sandbox.NetworkAll {
		made["hosts"] = "127.0.0.1 localhost " + HostName + "\n::1 localhost\n"
	}
	return made
}

func (v *view) placeSettings() error {
	if err := os.Mkdir("etc", 0o755); err != nil { //nolint:gosec // as above
		return err
	}
	for name, content := range Made(v.config) {
		if err := os.WriteFile("etc/"+name, []byte(content), 0o444); err != nil { //nolint:gosec // for everybody in the sandbox
			return err
		}
	}
	return place(v.settings)
}

// placeGuests makes the places of what is mounted once the root is read-only.
func (v *view) placeGuests() error {
	for _, dir := range []string{"proc", "dev", "run", "var/tmp", "root"} {
		if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // as above
			return err
		}
	}
	for _, t := range slices.Concat(v.dirs, v.mounts) {
		if err := makePlace(t); err != nil {
			return err
		}
	}
	return nil
}

// placeDevices makes a /dev of harmless devices. Terminals and shared memory are the
// sandbox's own.
func (v *view) placeDevices() error {
	flags := uintptr(unix.MS_NOSUID | unix.MS_NOEXEC)
	if err := unix.Mount("tmpfs", "dev", "tmpfs", flags, "mode=0755,size=64k"); err != nil {
		return err
	}
	if err := place(v.devices); err != nil {
		return err
	}
	for name, link := range map[string]string{
		"fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2", "ptmx": "pts/ptmx",
	} {
		if err := os.Symlink(link, "dev/"+name); err != nil {
			return err
		}
	}
	if err := errors.Join(os.Mkdir("dev/pts", 0o755), os.Mkdir("dev/shm", 0o755)); err != nil { //nolint:gosec // as above
		return err
	}
	if err := unix.Mount("devpts", "dev/pts", "devpts", flags, "newinstance,ptmxmode=0666,mode=0620"); err != nil {
		return fmt.Errorf("devpts: %w", err)
	}
	if err := unix.Mount("tmpfs", "dev/shm", "tmpfs", flags|unix.MS_NODEV, fmt.Sprintf("mode=1777,size=%d", ShmSize)); err != nil {
		return fmt.Errorf("shm: %w", err)
	}
	return unix.MountSetattr(unix.AT_FDCWD, "dev", 0, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY})
}

func (v *view) placeDirectories() error {
	for _, t := range v.dirs {
		attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV}
		if err := unix.MountSetattr(t.fd, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, &attr); err != nil {
			return fmt.Errorf("/%s: %w", t.guest, err)
		}
		if err := attach(t); err != nil {
			return err
		}
	}
	for i, t := range v.mounts {
		attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV}
		if !v.config.Mounts[i].Write {
			attr.Attr_set |= unix.MOUNT_ATTR_RDONLY
		}
		if err := unix.MountSetattr(t.fd, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, &attr); err != nil {
			return fmt.Errorf("/%s: %w", t.guest, err)
		}
		if err := attach(t); err != nil {
			return err
		}
	}
	return nil
}

// leave makes the working directory the root and lets go of the host's.
func leave() error {
	if err := unix.PivotRoot(".", "."); err != nil {
		return err
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("unmount the old root: %w", err)
	}
	return os.Chdir(GuestWorkspace)
}
