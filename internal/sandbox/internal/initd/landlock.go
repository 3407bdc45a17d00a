//go:build linux

package initd

import (
	"path/filepath"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/toolfleet/toolfleet/internal/sandbox/internal/confine"
	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
)

// Landlock is what a command of driver landlock may do. Its directories are absolute paths.
type Landlock struct {
	Workspace, Scratch string
	Mounts             []isolation.Mount
	ReadOnly           bool
	Network            bool
}

// confine adds what gives up every right that the command must not have.
func (c *Landlock) confine(l *confine.List) error {
	core, err := confine.CoreLimit()
	if err != nil {
		return err
	}
	rules, err := confine.Existing(c.rules())
	if err != nil {
		return err
	}
	l.Step("core files")
	l.Do(unix.SYS_PRLIMIT64, 0, unix.RLIMIT_CORE, unsafe.Pointer(&unix.Rlimit{Cur: core, Max: core}), 0)
	l.Step("capabilities")
	confine.AddNoCaps(l)
	l.Step("no_new_privs")
	confine.AddNoNewPrivs(l)
	confine.AddLandlock(l, rules)
	l.Step("seccomp")
	if err := confine.AddSeccomp(l); err != nil {
		return err
	}
	var families []uint32
	if c.Network {
		families = []uint32{unix.AF_INET, unix.AF_INET6, unix.AF_NETLINK}
	}
	confine.AddHost(l, families)
	if c.ReadOnly {
		confine.AddReadOnly(l)
	}
	return nil
}

// programs are the directories of programs and libraries.
func programs() []string {
	return []string{"/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/usr", "/opt"}
}

// settings are the files of /etc that programs need, and that show nothing that the network would
// not show.
func settings() []string {
	return append(slices.Clone(Settings), "passwd", "group", "hosts", "host.conf")
}

// rules say what the command reaches.
func (c *Landlock) rules() []confine.Rule {
	all := confine.AccessRead | confine.AccessChange
	var rules []confine.Rule
	for _, dir := range programs() {
		rules = append(rules, confine.Rule{Path: dir, Access: confine.AccessRead})
	}
	for _, name := range settings() {
		rules = append(rules, confine.Rule{Path: filepath.Join("/etc", name), Access: confine.AccessRead})
	}
	if c.Network {
		rules = append(rules, confine.Rule{Path: "/etc/resolv.conf", Access: confine.AccessRead})
	}
	for _, name := range Devices {
		rules = append(rules, confine.Rule{Path: "/dev/" + name, Access: confine.AccessDevices})
	}
	// Of other processes the kernel shows names only: what is theirs takes the right to trace them.
	// What can be written there is the host's, or a setting of one's own that can be done without.
	rules = append(rules, confine.Rule{Path: "/proc", Access: confine.AccessRead})
	workspace := all
	if c.ReadOnly {
		workspace = confine.AccessRead
	}
	rules = append(rules, confine.Rule{Path: c.Workspace, Access: workspace}, confine.Rule{Path: c.Scratch, Access: all})
	for _, m := range c.Mounts {
		access := confine.AccessRead
		if m.Write && (m.Cache || !c.ReadOnly) {
			access = all
		}
		rules = append(rules, confine.Rule{Path: m.Host, Access: access})
	}
	return rules
}
