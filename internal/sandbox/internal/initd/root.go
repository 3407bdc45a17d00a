//go:build linux

package initd

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/toolfleet/toolfleet/internal/sandbox/internal/confine"
	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
)

// Where a sandbox has its directories.
const (
	GuestWorkspace = "/workspace"
	GuestHome      = "/home/sandbox"
	GuestTemp      = "/tmp"
)

// HostTemp holds the mounts whose paths are below [GuestTemp]; links in [GuestTemp] lead to them.
// So a command that empties /tmp removes nothing of the host. A read-only command can write to
// /tmp, but not to the mounts.
const HostTemp = "/tmp.host"

// maxShm is how big /dev/shm may become, and bytesPerFile how much of that there is for each of its
// files: one with nothing in it takes a kilobyte of the kernel's memory.
const (
	maxShm       = 64 << 20
	bytesPerFile = 4 << 10
)

// ShmSize is how big /dev/shm may become in a sandbox with that limit of memory, 0 being none.
// Files there outlive commands: if they could use up all, there were no memory left to remove them.
func ShmSize(memory int64) int64 {
	if memory <= 0 {
		return maxShm
	}
	return min(maxShm, max(memory/2, 1<<20))
}

// System are the directories of programs and libraries. Where one of them is a symbolic link
// on the host, it is one in the sandbox.
var System = []string{"bin", "sbin", "lib", "lib32", "lib64", "libx32", "usr"} //nolint:gochecknoglobals // a constant

// Settings are the files of /etc that programs need and that reveal nothing. Certificates are
// public; files that name the host's users are replaced.
var Settings = []string{ //nolint:gochecknoglobals // a constant
	"ld.so.cache", "ld.so.conf", "ld.so.conf.d", "alternatives", "localtime", "timezone", "nsswitch.conf", "services", "protocols",
	"mime.types", "ssl/certs", "ssl/openssl.cnf", "ca-certificates.conf", "ca-certificates", "pki/tls/certs", "pki/ca-trust/extracted",
	"crypto-policies", "java-11-openjdk", "java-17-openjdk", "java-21-openjdk", "java-25-openjdk", "maven/m2.conf", "maven/logging",
}

// SettingsOf are the files of /etc of a sandbox, as the host has them.
func SettingsOf(config Config) []string {
	if config.Network == isolation.NetworkAll {
		return append([]string{"hosts", "resolv.conf"}, Settings...)
	}
	return Settings
}

// Devices are the device files of a sandbox.
var Devices = []string{"null", "zero", "full", "random", "urandom", "tty"} //nolint:gochecknoglobals // a constant

// rootPlace is where the new root is mounted while it is built: no directory of a sandbox is below
// it.
const rootPlace = "/proc"

// Pressure is where the kernel may report how busy the host is, and lets any process request to be
// woken for that. Such requests are the host's, and each of them takes so long to end that a
// process with thousands of them outlives its kill by minutes.
const Pressure = "/proc/pressure"

// Keys is where the kernel lists the keys of a user by their names, if it does: an ordinary
// worker's are the commands' there, too.
const Keys = "/proc/keys"

// enterRoot builds the root of the sandbox and leaves the host's. Everything is opened
// before anything is covered, and mounted relative to the new root, which is the working
// directory. trees are the directories and the mounts if launch has opened them.
func enterRoot(l *confine.List, config Config, trees []int) error {
	v := &view{List: l, config: config, links: map[string]string{}, made: map[string]bool{".": true}}
	layer(l, config, "private mounts", func() { l.Do(unix.SYS_MOUNT, 0, "/", 0, unix.MS_REC|unix.MS_PRIVATE, 0) })
	if err := v.open(trees); err != nil {
		return err
	}
	l.Step("new root")
	l.Do(unix.SYS_MOUNT, "tmpfs", rootPlace, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0755,size=1m,nr_inodes=1k")
	l.Do(unix.SYS_CHDIR, rootPlace)
	for _, s := range v.steps() {
		layer(l, config, s.name, s.add)
	}
	return nil
}

// part is a step of the way into the root.
type part struct {
	name string
	add  func()
}

// steps are all that are left to do when the host's files are open.
func (v *view) steps() []part {
	return []part{
		{"system directories", v.placeSystem},
		{"settings", v.placeSettings},
		{"places for devices", v.makeDevices},
		{"places for mounts", v.makeGuests},
		{"read-only root", func() {
			v.set(unix.AT_FDCWD, ".", unix.AT_RECURSIVE, unix.MOUNT_ATTR_RDONLY|unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV)
		}},
		{"/proc", func() {
			v.Do(unix.SYS_MOUNT, "proc", "proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, 0)
		}},
		{"pressure of the host", v.readPressure},
		{"part of what users have", v.takeShares},
		{"/dev", v.placeDevices},
		{"keys of the host", v.hideKeys},
		{"directories", v.placeDirectories},
		{"pivot_root", func() {
			v.Do(unix.SYS_PIVOT_ROOT, ".", ".")
			v.Do(unix.SYS_UMOUNT2, ".", unix.MNT_DETACH)
			v.Do(unix.SYS_CHDIR, "/")
		}},
		{"working directory", func() { v.Do(unix.SYS_CHDIR, GuestWorkspace) }},
		{"protected places", v.protect}, // now no symbolic link on the way leads to the host
		{"links to mounts", v.keepLinks},
	}
}

// tree is something of the host that the sandbox will see.
type tree struct {
	fd    any    // a descriptor, or the result of the call that opens it
	guest string // relative to the root
	dir   bool
}

// view is everything that the sandbox will see.
type view struct {
	*confine.List

	config   Config
	links    map[string]string // of the system directories
	system   []tree
	settings []tree
	devices  []tree
	dirs     []tree          // workspace, home, temp
	mounts   []tree          // those of the configuration
	made     map[string]bool // directories that are there already
}

func (v *view) open(trees []int) error {
	for _, name := range System {
		if link, err := os.Readlink("/" + name); err == nil {
			v.links[name] = link
		} else if err := v.openSome(&v.system, "/"+name, name); err != nil {
			return err
		}
	}
	for _, name := range SettingsOf(v.config) {
		if err := v.openSome(&v.settings, "/etc/"+name, "etc/"+name); err != nil {
			return err
		}
	}
	for _, name := range Devices {
		if err := v.openSome(&v.devices, "/dev/"+name, "dev/"+name); err != nil {
			return err
		}
	}
	own := directories(v.config)
	for i, guest := range []string{GuestWorkspace, GuestHome, GuestTemp} {
		v.take(&v.dirs, &trees, own[i], tree{guest: guest[1:], dir: true})
	}
	for _, m := range v.config.Mounts {
		v.take(&v.mounts, &trees, m.Host, tree{guest: Guest(m)[1:], dir: isDir(m.Host)})
	}
	return nil
}

// isDir reports whether a path is a directory; what is not there is found out when it is opened.
func isDir(host string) bool {
	info, err := os.Stat(host)
	return err != nil || info.IsDir()
}

// Has reports whether the kernel has a file of /proc, such as [Pressure].
func Has(name string) bool {
	_, err := os.Stat(name)
	return err == nil
}

// openSome opens a path of the host, if it exists.
func (v *view) openSome(list *[]tree, host, guest string) error {
	var stat unix.Stat_t
	err := unix.Stat(host, &stat)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return &stepError{step: "open " + host, err: err}
	}
	v.take(list, new([]int), host, tree{guest: guest, dir: stat.Mode&unix.S_IFMT == unix.S_IFDIR})
	return nil
}

// take adds a tree: the next open one, or what a path of the host names.
func (v *view) take(list *[]tree, trees *[]int, host string, t tree) {
	if len(*trees) > 0 {
		t.fd, *trees = (*trees)[0], (*trees)[1:]
	} else {
		v.Step("open " + host)
		t.fd = v.Do(unix.SYS_OPEN_TREE, unix.AT_FDCWD, host, unix.AT_RECURSIVE|unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	}
	*list = append(*list, t)
}

// Guest is where a mount is: where it appears, or in [HostTemp].
func Guest(m isolation.Mount) string {
	guest := filepath.Clean(cmp.Or(m.Guest, m.Host))
	if below, is := strings.CutPrefix(guest, GuestTemp+"/"); is {
		return path.Join(HostTemp, below)
	}
	return guest
}

// TempLinks are the names of the links in [GuestTemp] that lead to mounts, sorted.
func TempLinks(mounts []isolation.Mount) []string {
	var names []string
	for _, m := range mounts {
		if below, is := strings.CutPrefix(Guest(m), HostTemp+"/"); is {
			name, _, _ := strings.Cut(below, "/")
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// set sets attributes of a mount.
func (v *view) set(fd any, at string, flags uint32, attributes uint64) {
	attr := &unix.MountAttr{Attr_set: attributes}
	v.Do(unix.SYS_MOUNT_SETATTR, fd, at, flags, unsafe.Pointer(attr), unsafe.Sizeof(*attr))
}

// mkdir makes a directory and those above it. What is there stays.
func (v *view) mkdir(dir string) {
	if v.made[dir] {
		return
	}
	v.mkdir(path.Dir(dir))
	v.made[dir] = true
	v.Do(unix.SYS_MKDIRAT, unix.AT_FDCWD, dir, 0o755)
	v.Pass(unix.EEXIST)
}

// makePlace makes what a tree is mounted on.
func (v *view) makePlace(t tree) {
	if t.dir {
		v.mkdir(t.guest)
		return
	}
	v.mkdir(path.Dir(t.guest))
	v.Do(unix.SYS_MKNODAT, unix.AT_FDCWD, t.guest, unix.S_IFREG|0o444, 0)
	v.Pass(unix.EEXIST)
}

func (v *view) attach(t tree) {
	v.Do(unix.SYS_MOVE_MOUNT, t.fd, "", unix.AT_FDCWD, t.guest, unix.MOVE_MOUNT_F_EMPTY_PATH)
}

func (v *view) place(what string, trees []tree) {
	for _, t := range trees {
		v.Step(what + " /" + t.guest)
		v.makePlace(t)
		v.attach(t)
	}
}

func (v *view) symlink(to, name string) { v.Do(unix.SYS_SYMLINKAT, to, unix.AT_FDCWD, name) }

func (v *view) placeSystem() {
	for name, link := range v.links {
		v.symlink(link, name)
	}
	v.place("system directory", v.system)
}

// Made are the files of /etc that are made for a sandbox, and their content.
func Made(config Config) map[string]string {
	made := map[string]string{
		"passwd":   fmt.Sprintf("sandbox:x:%d:%d:sandbox:%s:/bin/sh\n", User, User, GuestHome),
		"group":    fmt.Sprintf("sandbox:x:%d:\n", User),
		"hostname": HostName + "\n",
	}
	if config.Network != isolation.NetworkAll {
		made["hosts"] = "127.0.0.1 localhost " + HostName + "\n::1 localhost\n"
	}
	if config.Link {
		made["resolv.conf"] = "nameserver " + isolation.LinkResolver().String() + "\n"
	}
	return made
}

func (v *view) placeSettings() {
	v.mkdir("etc")
	for name, content := range Made(v.config) {
		file := v.Do(unix.SYS_OPENAT, unix.AT_FDCWD, "etc/"+name, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_CLOEXEC, 0o444)
		v.Do(unix.SYS_WRITE, file, []byte(content), len(content))
		v.Do(unix.SYS_CLOSE, file) // nothing becomes read-only while it is written
	}
	v.place("setting", v.settings)
}

// makeDevices makes the places of a /dev of harmless devices. Terminals and shared memory are the
// sandbox's own.
func (v *view) makeDevices() {
	v.mkdir("dev/pts")
	v.mkdir("dev/shm")
	for name, link := range map[string]string{
		"fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2", "ptmx": "pts/ptmx",
	} {
		v.symlink(link, "dev/"+name)
	}
	for _, t := range v.devices {
		v.makePlace(t)
	}
}

// makeGuests makes the places of what is mounted once the root is read-only.
func (v *view) makeGuests() {
	for _, dir := range []string{"proc", "run", "var/tmp", "root"} {
		v.mkdir(dir)
	}
	v.makeLinks()
	for _, t := range slices.Concat(v.dirs, v.mounts) {
		v.Step("place for /" + t.guest)
		v.makePlace(t)
	}
}

// readPressure has commands read the pressure, and ask for nothing.
func (v *view) readPressure() {
	if Has(Pressure) {
		v.Do(unix.SYS_MOUNT, Pressure[1:], Pressure[1:], 0, unix.MS_BIND, 0)
		v.set(unix.AT_FDCWD, Pressure[1:], 0, unix.MOUNT_ATTR_RDONLY)
	}
}

// hideKeys covers the files with names of keys by a device file that cannot be opened.
func (v *view) hideKeys() {
	if Has(Keys) {
		v.Do(unix.SYS_MOUNT, "dev/null", Keys[1:], 0, unix.MS_BIND, 0)
		v.set(unix.AT_FDCWD, Keys[1:], 0, unix.MOUNT_ATTR_RDONLY|unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV)
	}
}

// placeDevices fills /dev. It is part of the read-only root, in which no device would work; those
// that are mounted there do.
func (v *view) placeDevices() {
	for _, t := range v.devices {
		v.attach(t)
	}
	const flags = unix.MS_NOSUID | unix.MS_NOEXEC
	v.Step("/dev/pts")
	v.Do(unix.SYS_MOUNT, "devpts", "dev/pts", "devpts", flags, fmt.Sprintf("newinstance,ptmxmode=0666,mode=0620,max=%d", maxTerminals))
	v.Step("/dev/shm")
	v.Do(unix.SYS_MOUNT, "tmpfs", "dev/shm", "tmpfs", flags|unix.MS_NODEV, fmt.Sprintf("mode=1777,size=%d,nr_inodes=%d", v.config.Shm, v.config.Shm/bytesPerFile))
}

// keepLinks mounts the links to mounts on themselves: so commands cannot remove them.
func (v *view) keepLinks() {
	for _, name := range TempLinks(v.config.Mounts) {
		link := path.Join(GuestTemp, name)
		v.mountAt(link, link, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_RDONLY)
	}
}

func (v *view) placeDirectories() {
	for i, t := range slices.Concat(v.dirs, v.mounts) {
		attributes := uint64(unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV)
		if i >= len(v.dirs) && !v.config.Mounts[i-len(v.dirs)].Write {
			attributes |= unix.MOUNT_ATTR_RDONLY
		}
		v.Step("mount /" + t.guest)
		v.set(t.fd, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, attributes)
		v.attach(t)
	}
}
