package isolation

import (
	"fmt"
	"slices"
)

// Caps is what a driver has proven on this host, by trying it in a sandbox.
type Caps struct {
	// Driver is the name of the driver.
	Driver string
	// Launcher is how the driver gets its namespaces: native or bwrap; "" when it has none.
	Launcher string
	Level    Level
	// Limits says by what each limit is enforced.
	Limits LimitKinds
	// Landlock is the ABI that confines commands; 0 when Landlock does not.
	Landlock int
	// Seccomp says that system calls are filtered.
	Seccomp bool
	// Networks are the kinds of network that can be enforced.
	Networks []NetworkMode
	// Link says that sandboxes of [NetworkProxy] have a link ([Network].ServeLink): programs need
	// not know of the proxy.
	Link bool
	// ReadOnly says that [sandbox.Cmd].ReadOnly is enforced.
	ReadOnly bool
	// Protect says that [Spec].Protect is enforced.
	Protect bool
	// Copies says that [Spec].Copies can be had.
	Copies bool
	// HostUID says that commands run as the worker's own user on the host; otherwise each
	// sandbox has a user of its own there.
	HostUID bool
	// Warnings are what an operator should know.
	Warnings []string
}

// Enforces reports whether the driver can enforce that kind of network.
func (c Caps) Enforces(mode NetworkMode) bool {
	if mode == "" {
		mode = NetworkNone
	}
	return slices.Contains(c.Networks, mode)
}

// LimitKind says by what a limit is enforced.
type LimitKind string

// The kinds of limits, best first. What is counted differs with the kind.
const (
	// LimitCgroup is enforced by the kernel for a whole sandbox, its files in memory included.
	LimitCgroup LimitKind = "cgroup"
	// LimitRlimit is enforced by the kernel for each process, or for a user in the sandbox.
	LimitRlimit LimitKind = "rlimit"
	// LimitSoft is looked at from time to time; it can be exceeded for a moment.
	LimitSoft LimitKind = "soft"
	// LimitNone is not enforced.
	LimitNone LimitKind = "none"
)

// LimitKinds says by what each of [sandbox.Limits] is enforced. Wall time, output and
// grace are enforced by every driver.
type LimitKinds struct {
	CPU       LimitKind
	Memory    LimitKind
	Processes LimitKind
	OpenFiles LimitKind
	FileSize  LimitKind
	Disk      LimitKind
}

// Words returns the kinds by the snake_case names of the limits, for reports.
func (k LimitKinds) Words() map[string]string {
	return map[string]string{
		"cpu": string(k.CPU), "memory": string(k.Memory), "processes": string(k.Processes),
		"open_files": string(k.OpenFiles), "file_size": string(k.FileSize), "disk": string(k.Disk),
	}
}

// UnusableError says why the control groups of the host, which make limits hard, cannot be used,
// and what to do about it.
type UnusableError struct {
	// Found is the actual state, Advice how to change it; "" if it cannot be changed.
	Found, Advice string
	// Err is the error of the system; nil when nothing was tried.
	Err error
}

// Error implements the error interface.
func (e *UnusableError) Error() string { return "control groups cannot be used: " + e.Why() }

// Why is what was found, and the error of the system.
func (e *UnusableError) Why() string {
	if e.Err != nil {
		return fmt.Sprintf("%s: %v", e.Found, e.Err)
	}
	return e.Found
}

// Unwrap returns the error of the system.
func (e *UnusableError) Unwrap() error { return e.Err }
