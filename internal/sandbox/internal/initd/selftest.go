//go:build linux

package initd

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/toolfleet/toolfleet/internal/sandbox/internal/confine"
	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/internal/system"
)

// want is what /proc shows of a thread without any rights.
var want = map[string]string{ //nolint:gochecknoglobals // a constant
	"CapInh": "0000000000000000", "CapPrm": "0000000000000000", "CapEff": "0000000000000000",
	"CapBnd": "0000000000000000", "CapAmb": "0000000000000000",
	"NoNewPrivs": "1", "Seccomp": "2",
	"Uid": "1000\t1000\t1000\t1000", "Gid": "1000\t1000\t1000\t1000",
}

// selfTest tries what a sandbox promises. It is run before anything else is.
func selfTest(landlock bool) error {
	if err := step("self-test: limits", testLimits); err != nil {
		return err
	}
	tests := []test{
		{"new user namespace", func() error { return unix.Unshare(unix.CLONE_NEWUSER) }, unix.EPERM},
		{"mount", func() error { return unix.Mount("none", "/tmp", "tmpfs", 0, "") }, unix.EPERM},
		{"AF_VSOCK", func() error { return try(unix.Socket(unix.AF_VSOCK, unix.SOCK_STREAM, 0)) }, unix.EAFNOSUPPORT},
		{"clone3", func() error { _, _, errno := unix.Syscall(unix.SYS_CLONE3, 0, 0, 0); return errno }, unix.ENOSYS},
		{"set-user-ID file", func() error { return unix.Fchmod(-1, 0o4755) }, unix.EPERM},
		{"file in the root", func() error { return try(unix.Open("/x", unix.O_CREAT|unix.O_WRONLY, 0o600)) }, unix.EROFS},
	}
	if landlock {
		// Without Landlock the capability that is not there is missed, with another word.
		null := int(unix.Mkdev(1, 3)) //nolint:gosec // a small number
		tests = append(tests, test{"device file", func() error { return unix.Mknod(GuestTemp+"/x", unix.S_IFCHR, null) }, unix.EACCES})
	}
	if Has(Pressure) {
		tests = append(tests, test{"pressure of the host", func() error { return try(unix.Open(Pressure+"/cpu", unix.O_RDWR|unix.O_CLOEXEC, 0)) }, unix.EROFS})
	}
	if Has(Keys) {
		tests = append(tests, test{"keys of the host", func() error { return try(unix.Open(Keys, unix.O_RDONLY|unix.O_CLOEXEC, 0)) }, unix.EACCES})
	}
	for _, t := range tests {
		if err := t.try(); !errors.Is(err, t.want) {
			return &stepError{step: "self-test: " + t.name, err: fmt.Errorf("%w instead of %w", err, t.want)}
		}
	}
	return nil
}

// test is something that has to fail, with that error.
type test struct {
	name string
	try  func() error
	want unix.Errno
}

func try(fd int, err error) error {
	if err == nil {
		_ = unix.Close(fd) // it must not have been there
	}
	return err
}

// testThreads looks at every thread of this process.
func testThreads() error {
	const dir = "/proc/self/task"
	threads, err := os.ReadDir(dir)
	if err != nil || len(threads) == 0 {
		return errors.Join(errors.New("no threads"), err)
	}
	buf := make([]byte, 4<<10)
	for _, thread := range threads {
		if err := testThread(filepath.Join(dir, thread.Name(), "status"), buf); err != nil {
			return fmt.Errorf("thread %s: %w", thread.Name(), err)
		}
	}
	return nil
}

func testThread(name string, buf []byte) (missing error) {
	text, err := readProc(name, buf)
	if err != nil {
		return err
	}
	seen := 0
	for line := range bytes.Lines(text) {
		key, value, _ := bytes.Cut(line, []byte(":"))
		expected, known := want[string(key)]
		if !known {
			continue
		}
		seen++
		if value = bytes.TrimSpace(value); string(value) != expected {
			missing = errors.Join(missing, fmt.Errorf("%s is %q, must be %q", key, value, expected))
		}
	}
	if missing != nil {
		return missing
	}
	if seen != len(want) {
		return fmt.Errorf("%d of %d facts found", seen, len(want))
	}
	return nil
}

// readProc reads a file of /proc, into buf if it fits. The size of such files is unknown before,
// and a large buffer needs few calls.
func readProc(name string, buf []byte) ([]byte, error) {
	fd, err := unix.Open(name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: name, Err: err}
	}
	defer unix.Close(fd)
	for text := buf[:0]; ; {
		if len(text) == cap(text) {
			text = slices.Grow(text, len(text)+1)
		}
		n, err := unix.Read(fd, text[len(text):cap(text)])
		if err != nil {
			return nil, &os.PathError{Op: "read", Path: name, Err: err}
		}
		if n == 0 {
			return text, nil
		}
		text = text[:len(text)+n]
	}
}

// NamespaceKinds are the kinds of namespaces that a sandbox has for itself.
var NamespaceKinds = []string{"user", "mnt", "pid", "net", "ipc", "uts", "cgroup"} //nolint:gochecknoglobals // a constant

// Numbers as /proc has them.
const (
	userText    = "1000" // User
	controlText = "3"    // fdControl
)

// testView looks at what the sandbox sees of the host, once all of it is made: its
// namespaces, its users and its mounts.
func testView(config Config) error {
	return errors.Join(testNamespaces(config), testUsers(config), testMounts(config))
}

// Namespaces returns which namespaces the calling process is in, one for each of [NamespaceKinds].
func Namespaces() ([]string, error) {
	all := make([]string, len(NamespaceKinds))
	for i, kind := range NamespaceKinds {
		id, err := os.Readlink("/proc/self/ns/" + kind)
		if err != nil {
			return nil, fmt.Errorf("namespaces: %w", err)
		}
		all[i] = id
	}
	return all, nil
}

// testNamespaces wants namespaces that are not the worker's.
func testNamespaces(config Config) error {
	mine, err := Namespaces()
	if err != nil {
		return err
	}
	if len(config.Namespaces) != len(mine) {
		return fmt.Errorf("%d namespaces of the worker instead of %d", len(config.Namespaces), len(mine))
	}
	for i, kind := range NamespaceKinds {
		switch theirs := config.Namespaces[i]; {
		case kind == "net" && config.Network == isolation.NetworkAll:
		case kind == "cgroup" && config.Bwrap: // bubblewrap makes one where it can
		case theirs == "" || theirs == mine[i]:
			err = errors.Join(err, fmt.Errorf("the %s namespace is the worker's", kind))
		}
	}
	if pid := os.Getpid(); pid != 1 {
		err = errors.Join(err, fmt.Errorf("the first process has the id %d", pid))
	}
	return err
}

// testUsers wants one user and one group, and none of the worker's where that can be: an
// ordinary user cannot leave its groups.
func testUsers(config Config) (err error) {
	if groups, groupsErr := unix.Getgroups(); config.Privileged && (groupsErr != nil || len(groups) > 0) {
		err = errors.Join(groupsErr, fmt.Errorf("groups are %v, must be none", groups))
	}
	for _, name := range []string{"uid_map", "gid_map"} {
		text, readErr := readProc("/proc/self/"+name, make([]byte, 128))
		fields := strings.Fields(string(text))
		if readErr != nil || len(fields) != 3 || fields[0] != userText || fields[2] != "1" {
			err = errors.Join(err, readErr, fmt.Errorf("%s is %q, must be one line of user %s", name, text, userText))
		}
	}
	return err
}

// mounts are the mounts of this process's namespace.
func mounts() ([]system.Mount, error) {
	text, err := readProc("/proc/self/mountinfo", make([]byte, 16<<10))
	if err != nil {
		return nil, err
	}
	return system.ParseMounts(string(text))
}

// testMounts wants the mounts that were asked for and no others, with the rights that were
// asked for, and cut off from those of the host.
func testMounts(config Config) error {
	all, err := mounts()
	if err != nil {
		return err
	}
	roots := 0
	for _, m := range all {
		if m.Point == "/" {
			roots++
		}
	}
	if roots != 1 {
		return fmt.Errorf("%d mounts on /: the host's root is still there", roots)
	}
	places := placesOf(config)
	hidden := hiddenMounts(all)
	for _, m := range all {
		if hidden[m.ID] {
			continue // by a protected place, with its own copy of what is mounted below
		}
		if err := testMount(m, config, places); err != nil {
			return fmt.Errorf("mount %s %w", m.Point, err)
		}
	}
	return testProtected(config, all)
}

// hiddenMounts are the mounts, by id, to which no path leads: another one is mounted, in the same
// mount, on a directory above, or they are below such a mount.
func hiddenMounts(all []system.Mount) map[string]bool {
	hidden := map[string]bool{}
	for _, m := range all {
		for _, over := range all {
			if over.ID != m.ID && over.Parent == m.Parent && over.Point != m.Point && system.Within(over.Point, m.Point) {
				hidden[m.ID] = true
			}
		}
	}
	for known := -1; known < len(hidden); {
		known = len(hidden)
		for _, m := range all {
			if hidden[m.Parent] {
				hidden[m.ID] = true
			}
		}
	}
	return hidden
}

// placement is where something may be mounted, and what may be done there.
type placement struct {
	path     string
	writable bool
	devices  bool
}

// placesOf are the places of a sandbox; the last one that a mount is in counts.
func placesOf(config Config) []placement {
	var all []placement
	for _, name := range System {
		all = append(all, placement{path: "/" + name})
	}
	all = append(all, placement{path: "/etc"}, placement{path: "/proc", writable: true}, placement{path: Pressure},
		placement{path: Keys}, placement{path: "/dev", writable: true, devices: true})
	mounted := slices.Clone(config.Mounts)
	slices.SortFunc(mounted, func(a, b isolation.Mount) int { return len(Guest(a)) - len(Guest(b)) })
	for _, m := range mounted {
		all = append(all, placement{path: Guest(m), writable: m.Write})
	}
	for _, dir := range []string{GuestWorkspace, GuestHome, GuestTemp} {
		all = append(all, placement{path: dir, writable: true})
	}
	return append(all, guarded(config)...)
}

// testMount compares one mount with its place.
func testMount(m system.Mount, config Config, places []placement) error {
	at := placement{path: "/"}
	for _, p := range places {
		if system.Within(p.path, m.Point) {
			at = p
		}
	}
	switch {
	case at.path == "/" && m.Point != "/":
		return errors.New("was not asked for")
	case !at.writable && !m.Has("ro"):
		return errors.New("can be written to")
	case !at.devices && (!m.Has("nosuid") || !m.Has("nodev")):
		return errors.New("has set-user-ID programs or devices")
	}
	for _, peer := range m.Peers {
		// Bubblewrap's mounts follow those of the host, but not the other way round.
		if !config.Bwrap || !strings.HasPrefix(peer, "master:") {
			return fmt.Errorf("is not private: %s", peer)
		}
	}
	return nil
}

// testDescriptors checks that no descriptor of this process leads to the host: three lead to
// /dev/null, the others are the control socket, this process's own score, and those of the Go
// runtime.
func testDescriptors() error {
	const dir = "/proc/self/fd/"
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		to, linkErr := os.Readlink(dir + entry.Name())
		switch {
		case linkErr != nil: // of the directory itself, which is closed
		case to == "/dev/null", strings.HasPrefix(to, "anon_inode:"):
		case strings.HasPrefix(to, "socket:") && entry.Name() == controlText:
		case to == scoreFile && score != nil && entry.Name() == strconv.Itoa(int(score.Fd())):
		default:
			err = errors.Join(err, fmt.Errorf("descriptor %s is %s", entry.Name(), to))
		}
	}
	return err
}

// testLimits wants no core files, and a process into which others cannot look.
func testLimits() error {
	var core unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_CORE, &core); err != nil {
		return err
	}
	if core.Max > confine.NoCore {
		return fmt.Errorf("core files of %d bytes", core.Max)
	}
	dumpable, err := unix.PrctlRetInt(unix.PR_GET_DUMPABLE, 0, 0, 0, 0)
	if err == nil && dumpable != 0 {
		err = errors.New("the first process is dumpable")
	}
	return err
}
