//go:build linux

package initd

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/toolfleet/toolfleet/internal/sandbox/internal/confine"
	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
)

// LandlockArg0 is the name under which the binary is what a command of driver landlock is before it
// becomes that: a program that gives up rights.
const LandlockArg0 = "toolfleet-landlock"

// LandlockConfig is what a command of driver landlock may do.
type LandlockConfig struct {
	Workspace string            `json:"workspace"`
	Scratch   string            `json:"scratch"`
	Mounts    []isolation.Mount `json:"mounts,omitempty"`
	Path      string            `json:"path"` // of the program
	ReadOnly  bool              `json:"read_only,omitempty"`
	Network   bool              `json:"network,omitempty"`
}

// It has to be found out before anything else whether this process is to be a command.
func init() { //nolint:gochecknoinits // there is no other way to be asked first
	if len(os.Args) > 2 && os.Args[0] == LandlockArg0 {
		become(os.Args[1], os.Args[2:])
		os.Exit(1)
	}
}

// become confines this process and makes it the command. It returns only if that fails, after it
// has reported why.
func become(encoded string, argv []string) {
	runtime.LockOSThread()
	var c LandlockConfig
	err := json.Unmarshal([]byte(encoded), &c)
	if err == nil {
		err = c.confine()
	}
	text := ""
	if err != nil {
		text = "confine: " + err.Error()
	} else if errno, ok := errors.AsType[unix.Errno](unix.Exec(c.Path, argv, os.Environ())); ok {
		text = strconv.Itoa(int(errno))
	}
	_, _ = unix.Write(StatusFD, []byte(text)) // there is no other way to report it
}

// confine gives up every right that the command must not have. The exec makes it so for
// every thread.
func (c LandlockConfig) confine() error {
	if err := unix.CloseRange(StatusFD, ^uint(0), unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return fmt.Errorf("close descriptors: %w", err)
	}
	core, err := confine.CoreLimit()
	if err != nil {
		return err
	}
	if err := unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{Cur: core, Max: core}); err != nil {
		return fmt.Errorf("no core files: %w", err)
	}
	families := []uint32{}
	if c.Network {
		families = []uint32{unix.AF_INET, unix.AF_INET6, unix.AF_NETLINK}
	}
	steps := []func() error{
		confine.DropCaps, confine.NoNewPrivs,
		func() error { return confine.Landlock(c.rules(), true) },
		confine.Seccomp,
		func() error { return confine.SeccompHost(families...) },
	}
	if c.ReadOnly {
		steps = append(steps, confine.SeccompReadOnly)
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
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
func (c LandlockConfig) rules() []confine.Rule {
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
