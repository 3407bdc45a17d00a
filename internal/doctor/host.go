package doctor

import (
	"fmt"
	"io/fs"
	"os"
	"path"
	"runtime"
	"slices"
	"strings"

	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// host is what the checks look at.
type host struct {
	system   string // GOOS
	root     bool   // this process is root
	files    fs.FS  // of the host, without the first slash
	landlock int    // ABI; 0 is none
	writable func(path string) bool
}

func thisHost() host {
	return host{
		system: runtime.GOOS, root: os.Geteuid() == 0, files: os.DirFS("/"),
		landlock: landlockABI(), writable: writable,
	}
}

// checks looks at the host. What would not change the level that was proven needs no advice.
func (h host) checks(proven sandbox.Level) []Check {
	if h.system != "linux" {
		return []Check{{
			Name: "system", State: Missing, Found: h.system,
			Advice: "sandboxes that isolate need Linux; on " + h.system + " run workers in a virtual machine with Linux",
		}}
	}
	full := proven >= sandbox.LevelFull
	return []Check{
		{Name: "kernel", State: OK, Found: h.read("proc/sys/kernel/osrelease")},
		h.namespaces(full), h.bubblewrap(full), h.checkLandlock(), h.seccomp(), h.cgroup(), h.container(full),
	}
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
		c.Advice = "why the driver ns does not work all the same is told with the driver above"
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
	c.State, c.Advice = Missing, "install it (apt install bubblewrap, dnf install bubblewrap): hosts that restrict namespaces often allow them to it"
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

// needed are the controllers for the limits of a sandbox as a whole.
func needed() []string { return []string{"cpu", "memory", "pids"} }

// cgroup looks at what a driver could use for hard limits; none does yet, and the advice says so.
func (h host) cgroup() Check {
	c := h.findCgroup()
	if c.Advice != "" {
		c.Advice = "nothing for now, because sandboxes do not use cgroups yet; later: " + c.Advice
	}
	return c
}

func (h host) findCgroup() Check {
	c := Check{Name: "cgroup v2", State: Missing}
	const top = "sys/fs/cgroup"
	if !h.exists(top + "/cgroup.controllers") {
		c.Found = "not mounted at /sys/fs/cgroup; limits are per process"
		c.Advice = "boot with systemd.unified_cgroup_hierarchy=1, or use a system that has cgroup v2 alone"
		return c
	}
	own := path.Join(top, h.ownGroup())
	have := strings.Fields(h.read(own + "/cgroup.controllers"))
	var lacking []string
	for _, controller := range needed() {
		if !slices.Contains(have, controller) {
			lacking = append(lacking, controller)
		}
	}
	switch {
	case len(lacking) > 0:
		c.State, c.Found = Limited, "without "+strings.Join(lacking, ", ")+" in /"+own+"; limits are per process"
		c.Advice = "delegate them: Delegate=yes in the worker's systemd unit, or systemd-run --user --scope -p Delegate=yes worker ..."
	case !h.writable("/" + own):
		c.State, c.Found = Limited, "/"+own+" is not writable; limits are per process"
		c.Advice = "delegate it: Delegate=yes in the worker's systemd unit; in a container mount /sys/fs/cgroup writable"
	default:
		c.State, c.Found = OK, "/"+own+" with "+strings.Join(needed(), ", ")
	}
	return c
}

// ownGroup is the path of this process's cgroup.
func (h host) ownGroup() string {
	for line := range strings.Lines(h.read("proc/self/cgroup")) {
		if group, found := strings.CutPrefix(strings.TrimSpace(line), "0::"); found {
			return group
		}
	}
	return ""
}

func (h host) container(full bool) Check {
	c := Check{Name: "container", State: OK, Found: "none"}
	if !h.exists(".dockerenv") && !h.exists("run/.containerenv") && !h.exists("var/run/secrets/kubernetes.io") {
		return c
	}
	c.Found = "this is one"
	if !full {
		c.State = Limited
		c.Advice = "the default filter of containers forbids namespaces: allow clone, unshare, mount and pivot_root in its seccomp profile " +
			"(docker: --security-opt seccomp=FILE --security-opt apparmor=unconfined; Kubernetes: a seccompProfile), or run the worker outside"
	}
	return c
}
