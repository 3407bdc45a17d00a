// Package isolation is the interface between workers and sandbox drivers: the requests to a driver,
// and the properties that it has proven on this host. Handlers of programs see only package
// sandbox.
//
//	Driver ──Probe──► Caps             what this host lets the driver prove, by trying it
//	   │
//	   └────Open───► sandbox.Sandbox   of a Spec: directories, mounts, network, limits, least Level
//
// Drivers differ in how much they isolate ([Level]). The level is proven by a probe, published by
// the worker, repeated in every result, and never lowered silently: [Spec].Require refuses less.
// The driver "process" isolates nothing but the environment and the lifetime of processes, and is
// used only on request.
//
// A background command needs no support by a driver: another goroutine waits for its Exec, Live
// gets its output, and its context ends it.
package isolation

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// Dialer is a [sandbox.Sandbox] whose servers can be reached from without.
type Dialer interface {
	// Dial connects to what listens on a TCP port of the sandbox's own loopback. It fails at once
	// when nothing does, with [sandbox.ErrClosed] when the sandbox was closed, and with
	// [sandbox.ErrUnsupported] when the sandbox has no network of its own. The connection does not
	// end with ctx.
	Dial(ctx context.Context, port uint16) (net.Conn, error)
	// Listens reports whether something listens there, without connecting; false when that is not
	// known.
	Listens(port uint16) bool
}

// Level says how much a sandbox isolates; more is greater.
type Level uint8

// The levels.
const (
	LevelNone   Level = iota // no isolation: driver process
	LevelPaths               // file system paths only: Landlock
	LevelFull                // namespaces, Landlock and seccomp
	LevelKernel              // a kernel of its own
)

// String returns the word of the level: none, paths, full or kernel.
func (l Level) String() string {
	switch l {
	case LevelNone:
		return "none"
	case LevelPaths:
		return "paths"
	case LevelFull:
		return "full"
	case LevelKernel:
		return "kernel"
	default:
		return fmt.Sprintf("level(%d)", uint8(l))
	}
}

// ParseLevel is the inverse of [Level.String]; "" is [LevelNone].
func ParseLevel(s string) (Level, error) {
	if s == "" {
		return LevelNone, nil
	}
	for l := LevelNone; l <= LevelKernel; l++ {
		if l.String() == s {
			return l, nil
		}
	}
	return LevelNone, fmt.Errorf("sandbox level %q: must be none, paths, full or kernel", s)
}

// Errors that callers branch on.
var (
	// ErrLevel says that the driver does not reach the level that was required.
	ErrLevel = sandbox.ErrLevel
	// ErrLeftover says that processes of a sandbox could not be killed.
	ErrLeftover = errors.New("processes are left")
)

// Driver opens sandboxes of one kind. It is safe for concurrent use.
type Driver interface {
	// Name is the word by which operators choose the driver.
	Name() string
	// Probe opens a sandbox and tries what it promises.
	Probe(ctx context.Context) (Caps, error)
	// Open makes a sandbox. The error wraps [ErrLevel] when Spec.Require is not reached.
	Open(ctx context.Context, spec Spec) (sandbox.Sandbox, error)
}

// Protection is what of a workspace a sandbox keeps from being changed.
type Protection struct {
	// Protect are paths of files or directories, with all that is in them, that neither commands
	// nor file operations change, create or move. They are relative to the workspace, at most
	// [MaxProtected].
	//
	// Instead of a missing path the sandbox makes an empty directory, there or at the first missing
	// parent, and removes it at the end if it is still empty. If it may not make one, the directory
	// above is protected as a whole. If a parent is a file, that file is protected. The parents of
	// a path cannot be moved, and nothing can be renamed between them and the rest of the
	// workspace. A path that is, or leads through, a symbolic link is refused.
	//
	// Programs outside of the sandbox can change the paths. What they replaced is protected again
	// before the next operation that begins while no other runs. A driver that cannot enforce it
	// (see [Caps].Protect) refuses with [sandbox.ErrUnsupported].
	Protect []string
	// Missing are the contents of files that the sandbox makes instead of empty directories, by
	// missing protected paths in canonical form. An existing file with exactly that content counts
	// as made by a sandbox, and is removed as well.
	Missing map[string]string
	// Copies are protected files, in canonical form, that the sandbox replaces by symbolic links to
	// files that commands may change: a program that renames a new file over an old one follows a
	// link, but cannot replace a mount. The caller writes the files at [CopyOf] before it opens the
	// sandbox. A driver without [Caps].Copies refuses with [sandbox.ErrUnsupported].
	Copies []string
}

// Spec describes a sandbox.
type Spec struct {
	// ID names the sandbox, for logs.
	ID string
	// Workspace is an existing host directory.
	Workspace string
	// Scratch is an existing host directory for the home and temporary files of
	// the sandbox; the sandbox may fill it, its owner removes it.
	Scratch string
	// Env is the complete environment of commands, but for HOME and TMPDIR, which
	// the driver sets when they are absent. Nothing is inherited.
	Env map[string]string
	// Mounts are further host directories and files that the sandbox sees.
	Mounts []Mount
	Protection
	// Network is what of the network commands reach; the zero value is nothing. A driver
	// that isolates and cannot enforce it refuses with [sandbox.ErrUnsupported].
	Network Network
	// Limits bound every command of the sandbox, and the sandbox.
	Limits sandbox.Limits
	// LeaseEnd returns until when the caller surely has the right to this sandbox, as far as it
	// knows now; the time may move. When it has passed, all that runs in the sandbox is killed
	// and ends with [sandbox.ReasonCancelled], also if the caller's process is stopped or dead by
	// then. A driver that cannot do that has a warning in its [Caps]. LeaseEnd is called again and
	// again while the sandbox is open, by another goroutine. nil means no end.
	LeaseEnd func() time.Time
	// Require is the least level that will do.
	Require Level
}

// Mount is a host directory or file in a sandbox.
type Mount struct {
	// Host is an absolute path.
	Host string
	// Guest is where it appears: an absolute path, not the root, nor /proc, /dev, /sys, /etc,
	// /workspace, /tmp, the home directory (/home/sandbox), or below or above one of these. ""
	// means the same path as Host.
	Guest string
	// Write lets commands change it, except read-only ones.
	Write bool
	// Cache lets those change it as well, as they may change home and temporary files; it goes with
	// Write.
	Cache bool
	// AsOwner has commands own the files of the mount, if the worker is root and the file system
	// supports that. Otherwise they read what all users may read. A mount that they write to is
	// always theirs, or refused.
	AsOwner bool
}

// The size of terminals: wide enough that few lines are broken.
const (
	TerminalColumns = 120
	TerminalRows    = 40
)

// NetworkMode says what of the network commands reach.
type NetworkMode string

// The network modes. "" is [NetworkNone].
const (
	// NetworkNone is nothing but a loopback of the sandbox's own.
	NetworkNone NetworkMode = "none"
	// NetworkProxy is a proxy on the sandbox's loopback, a link where there is one, and nothing
	// else.
	NetworkProxy NetworkMode = "proxy"
	// NetworkAll is the host's network.
	NetworkAll NetworkMode = "all"
)

// Network is what of the network commands reach; the zero value is nothing.
type Network struct {
	Mode NetworkMode
	// Serve is the proxy of [NetworkProxy]. It is called once for a sandbox, in a
	// goroutine of its own, with a listener that commands of this sandbox alone reach. It
	// must return when the listener is closed or ctx ends, which is when the sandbox
	// closes: Close waits for it. The driver sets HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and
	// their lower-case forms to http://<address> where Spec.Env does not, and NO_PROXY to
	// the loopback.
	Serve func(ctx context.Context, listener net.Listener)
	// ServeLink is the network of programs that use no proxy; nil for none. Drivers with
	// [Caps].Link call it as they call Serve, with the other end of a network interface in the
	// sandbox: each Read is one IPv4 packet from it, each Write one to it, of up to [LinkMTU]
	// bytes. The sandbox has [LinkAddress] there, sends to [LinkNames] and Addresses, and asks
	// [LinkResolver] for names.
	ServeLink func(ctx context.Context, link io.ReadWriteCloser)
	// Addresses are IPv4 addresses that lead to the link unchanged.
	Addresses []netip.Addr
}

// LinkMTU is the size of the largest packet of a link, in bytes.
const LinkMTU = 16 << 10

// LinkNames are the addresses of a link. They are reserved for measurements (RFC 2544), so no host
// has them.
func LinkNames() netip.Prefix { return netip.MustParsePrefix("198.18.0.0/15") }

// LinkAddress is the address of a sandbox at its link.
func LinkAddress() netip.Addr { return netip.AddrFrom4([4]byte{198, 18, 0, 1}) }

// LinkResolver is whom a sandbox asks for names.
func LinkResolver() netip.Addr { return netip.AddrFrom4([4]byte{198, 18, 0, 2}) }

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
