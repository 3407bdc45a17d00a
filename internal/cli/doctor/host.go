package doctor

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/sandbox/drivers"
	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
)

// host is what the checks look at.
type host struct {
	system   string // GOOS
	root     bool   // this process is root
	engine   bool   // its environment is one of containers
	files    fs.FS  // of the host, without the first slash
	landlock int    // ABI; 0 is none
	groups   func() (dir string, err error)
	free     func() (dir string, bytes int64, err error) // of the disk of the data
}

func thisHost(data string) host {
	return host{
		system: runtime.GOOS, root: os.Geteuid() == 0, files: os.DirFS("/"),
		engine:   os.Getenv("container") != "" || os.Getenv("KUBERNETES_SERVICE_HOST") != "",
		landlock: landlockABI(), groups: drivers.Groups,
		free: func() (string, int64, error) { return freeBytes(cmp.Or(data, os.TempDir())) },
	}
}

// checks looks at the host. What would not change the level that was proven needs no advice.
func (h host) checks(proven isolation.Level) []Check {
	if h.system != "linux" {
		return []Check{{
			Name: "system", State: Missing, Found: h.system,
			Advice: "sandboxes that isolate need Linux; on " + h.system + " run workers in a virtual machine with Linux",
		}}
	}
	full := proven >= isolation.LevelFull
	return []Check{
		{Name: "kernel", State: OK, Found: h.read("proc/sys/kernel/osrelease")},
		h.namespaces(full), h.bubblewrap(full), h.checkLandlock(), h.seccomp(), h.cgroup(), h.disk(), h.openFiles(), h.container(full),
	}
}

// Advice says what to set for sandboxes of level full where those of this process reach less.
func Advice() []string { return thisHost("").advice() }

func (h host) advice() []string {
	if h.system != "linux" {
		return nil
	}
	var lines []string
	for _, c := range []Check{h.namespaces(false), h.bubblewrap(false), h.seccomp(), h.container(false)} {
		if c.State != OK {
			lines = append(lines, c.Name+": "+c.Found+"; "+c.Advice)
		}
	}
	return lines
}

// read returns a file without the white space around; "" when it cannot be read.
func (h host) read(name string) string {
	data, _ := fs.ReadFile(h.files, name) // "" is the answer then
	return strings.TrimSpace(string(data))
}

func (h host) exists(name string) bool {
	_, err := fs.Stat(h.files, name)
	return err == nil
}

func (h host) namespaces(full bool) Check {
	c := Check{Name: "user namespaces", State: OK, Found: "allowed"}
	switch {
	case h.read("proc/sys/user/max_user_namespaces") == "0":
		c.State, c.Found = Missing, "user.max_user_namespaces is 0"
		c.Advice = "allow them: sysctl -w user.max_user_namespaces=15000, and the same line in /etc/sysctl.d"
	case !h.root && h.read("proc/sys/kernel/unprivileged_userns_clone") == "0":
		c.State, c.Found = Missing, "kernel.unprivileged_userns_clone is 0"
		c.Advice = "allow them to ordinary users: sysctl -w kernel.unprivileged_userns_clone=1, and the same line in /etc/sysctl.d"
	case !h.root && h.read("proc/sys/kernel/apparmor_restrict_unprivileged_userns") == "1":
		c.State, c.Found = Limited, "AppArmor allows them only to programs with a profile"
		if !full {
			c.Advice = "install bubblewrap (apt install bubblewrap), whose /usr/bin/bwrap has a profile; " +
				"or give the worker's binary one with the rule \"userns,\""
		}
	case !full:
		c.Found = "not forbidden by a setting"
		c.Advice = "driver ns does not work for the reason above"
	}
	return c
}

func (h host) bubblewrap(full bool) Check {
	const at = "usr/bin/bwrap"
	c := Check{Name: "bubblewrap", State: OK, Found: "/" + at}
	if h.exists(at) {
		return c
	}
	c.Found = "not installed"
	if full {
		c.Found += ", and not needed"
		return c
	}
	c.State, c.Advice = Missing, "install it (apt install bubblewrap, dnf install bubblewrap): hosts that restrict namespaces often allow them to bubblewrap"
	return c
}

// landlockScopes is the ABI that cuts off signals and abstract sockets.
const landlockScopes = 6

func (h host) checkLandlock() Check {
	c := Check{Name: "Landlock", State: OK, Found: fmt.Sprintf("ABI %d", h.landlock)}
	switch {
	case h.landlock == 0:
		c.State, c.Found = Missing, "the kernel does not offer it"
		c.Advice = "use a kernel from 5.13 on with CONFIG_SECURITY_LANDLOCK, and name landlock in the boot parameter lsm="
		if list := h.read("sys/kernel/security/lsm"); list != "" {
			c.Found += "; active are " + list
		}
	case h.landlock < landlockScopes:
		c.State = Limited
		c.Advice = fmt.Sprintf("a kernel from 6.12 on (ABI %d) also cuts off signals and abstract sockets; the driver landlock needs it", landlockScopes)
	}
	return c
}

func (h host) seccomp() Check {
	actions := h.read("proc/sys/kernel/seccomp/actions_avail")
	if slices.Contains(strings.Fields(actions), "kill_process") {
		return Check{Name: "seccomp", State: OK, Found: "filters can kill"}
	}
	return Check{
		Name: "seccomp", State: Missing, Found: "no filters", Advice: "use a kernel from 4.14 on with CONFIG_SECCOMP_FILTER",
	}
}

// cgroup looks for what makes limits of memory and processes hard.
func (h host) cgroup() Check {
	dir, err := h.groups()
	if err == nil {
		return Check{Name: "cgroup v2", State: OK, Found: "sandboxes have groups in " + dir}
	}
	return unusable("cgroup v2", err, "memory is checked, not enforced")
}

// disk compares what is free with what a server of this host reserves there.
func (h host) disk() Check {
	dir, free, err := h.free()
	c := Check{Name: "disk space", State: OK, Found: fmt.Sprintf("%d MiB free in %s", free>>20, dir)}
	switch {
	case err != nil:
		c.State, c.Found = Limited, "unknown: "+err.Error()
	case free < natsio.LeastFree:
		c.State = Missing
		c.Found += fmt.Sprintf("; run and serve --listen need %d MiB for their server, plus what they store", natsio.LeastFree>>20)
		c.Advice = "make room there, or keep the data on another disk: --data DIR"
	case free < natsio.WholeFree:
		c.State = Limited
		c.Found += fmt.Sprintf("; with %d MiB a server here has the whole room for waiting calls", natsio.WholeFree>>20)
		c.Advice = "make room there, or keep the data on another disk: --data DIR"
	}
	return c
}

// openFiles looks whether one sandbox could use up the number of open files that the host has for
// all users but root.
func (h host) openFiles() Check {
	c := Check{Name: "open files", State: OK, Found: "enough of them"}
	const one = isolation.DefaultProcesses * isolation.DefaultOpenFiles
	if most, err := strconv.ParseUint(h.read("proc/sys/fs/file-max"), 10, 64); err == nil && most <= one {
		c.State = Limited
		c.Found = fmt.Sprintf("fs.file-max is %d; the commands of one sandbox may have %d (--limit-processes times --limit-open-files)", most, one)
		c.Advice = "let memory be the limit, as systemd does: sysctl -w fs.file-max=9223372036854775807, and the same line in /etc/sysctl.d"
	}
	return c
}

// unusable is a check of something that is not there, for a reason and with a consequence.
func unusable(name string, err error, so string) Check {
	c := Check{Name: name, State: Limited, Found: err.Error()}
	if why, ok := errors.AsType[*isolation.UnusableError](err); ok {
		c.Found, c.Advice = why.Why(), why.Advice
	}
	c.Found += "; " + so
	return c
}

func (h host) container(full bool) Check {
	c := Check{Name: "container", State: OK, Found: "none"}
	if !h.engine && !h.exists(".dockerenv") && !h.exists("run/.containerenv") && !h.exists("var/run/secrets/kubernetes.io") {
		return c
	}
	c.Found = "this process runs in one"
	if !full {
		c.State = Limited
		c.Advice = "containers forbid system calls that sandboxes need: give it the profile deploy/seccomp.json, all of /proc, and no AppArmor profile " +
			"(docker, podman: --security-opt seccomp=FILE --security-opt systempaths=unconfined --security-opt apparmor=unconfined; " +
			"Kubernetes: seccompProfile, hostUsers: false with procMount: Unmasked, appArmorProfile), or run the worker outside"
	}
	return c
}
