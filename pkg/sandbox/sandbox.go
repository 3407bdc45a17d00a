package sandbox

import (
	"context"
	"errors"
	"fmt"
	"time"
)

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
	ErrLevel = errors.New("sandbox level not reached")
	// ErrClosed says that the sandbox was closed.
	ErrClosed = errors.New("sandbox is closed")
	// ErrLeftover says that processes of a sandbox could not be killed.
	ErrLeftover = errors.New("processes are left")
	// ErrUnsupported says that the driver cannot enforce what was asked for: a read-only
	// command, a protected place, a kind of network. [Caps] tells before. Nothing was run.
	ErrUnsupported = errors.New("the sandbox driver cannot enforce this")
)

// Driver opens sandboxes of one kind. It is safe for concurrent use.
type Driver interface {
	// Name is the word by which operators choose the driver.
	Name() string
	// Probe opens a sandbox and tries what it promises.
	Probe(ctx context.Context) (Caps, error)
	// Open makes a sandbox. The error wraps [ErrLevel] when Spec.Require is not reached.
	Open(ctx context.Context, spec Spec) (Sandbox, error)
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
	// Owned says that both directories are nobody else's and stay on their file system: a driver
	// may give them to a project of the file system, to bound what they take up. What is in them
	// can then not be moved in from elsewhere by rename(2), only copied. It is not for directories
	// that are used in place.
	Owned bool
	// Env is the complete environment of commands, but for HOME and TMPDIR, which
	// the driver sets when they are absent. Nothing is inherited.
	Env map[string]string
	// Mounts are further host directories and files that the sandbox sees.
	Mounts []Mount
	// Protect are places of the workspace, files or directories with all that is in them, that
	// neither commands nor file operations change, make or move: relative paths, at most
	// [MaxProtected]. Where a place is missing, the sandbox makes an empty directory there, or at
	// the first directory on the way that is missing (where it may not, the directory above is
	// protected as a whole), and removes it when it is closed, if it is still empty. The
	// directories that a place is in cannot be moved either, and nothing can be renamed between
	// them and the rest of the workspace. Where a file is on the way to a place, that is protected.
	// A place that is a symbolic link, or that one leads to, cannot be protected and is refused.
	// Who changes the workspace from outside is not bound; what he has replaced is protected again
	// before the next operation that begins while no other is under way. A driver that cannot
	// enforce it (see [Caps].Protect) refuses with [ErrUnsupported].
	Protect []string
	// Missing are the contents of files that stand in protected places that are missing, by the
	// places in canonical form, instead of empty directories. A file that is there with just that
	// content is taken for one that a sandbox has made, and is removed as well.
	Missing map[string]string
	// Copies are protected files, in canonical form, in whose place the sandbox has a symbolic link
	// to a file that commands may change: a program that changes a file by renaming another over it
	// follows a link, and cannot replace a mount. The caller puts the file at [CopyOf] before the
	// sandbox is opened. A driver without [Caps].Copies refuses with [ErrUnsupported].
	Copies []string
	// Network is what of the network commands reach; the zero value is nothing. A driver
	// that isolates and cannot enforce it refuses with [ErrUnsupported].
	Network Network
	// Limits bound every command of the sandbox, and the sandbox.
	Limits Limits
	// LeaseEnd returns until when the caller surely has the right to this sandbox, as far as it
	// knows now; the time may move. When it has passed, all that runs in the sandbox is killed
	// and ends with [ReasonCancelled], also if the caller's process is stopped or dead by then.
	// A driver that cannot do that has a warning in its [Caps]. LeaseEnd is called again and
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
	// Write lets commands change it, but for those that are read-only.
	Write bool
	// Cache lets those change it as well, as they may change home and temporary files; it goes with
	// Write.
	Cache bool
	// AsOwner has commands be the owner of the mount in it, where the worker is root and the file
	// system can do that: otherwise they read what everybody may. A mount that they write to is
	// always so, or refused.
	AsOwner bool
}

// Sandbox is one isolated place. It is safe for concurrent use.
type Sandbox interface {
	// Exec runs a command to its end and kills whatever of it is left. A command that
	// fails, times out or is cancelled is a Result with everything it wrote so far.
	// A command that cannot be started because the caller asked for the wrong thing
	// (program, directory) is a *[protocol.Error]. Every other error is about the sandbox:
	// [ErrClosed], [ErrLeftover]. Several commands may run side by side.
	Exec(ctx context.Context, cmd Cmd) (Result, error)
	// FS returns the file operations of the workspace.
	FS() FS
	// Reset kills every process and empties the scratch directory; the workspace stays.
	// Commands that run are ended with [ReasonCancelled]; new ones wait until it is done.
	Reset(ctx context.Context) error
	// Close kills every process and returns when none is left. It is idempotent.
	// Commands that run are ended with [ReasonCancelled].
	Close() error
}

// Cmd is a command to run.
type Cmd struct {
	// Argv is the program, looked up in the sandbox's PATH, and its arguments.
	Argv []string
	// Dir is a directory, relative to the workspace; "" is the workspace.
	Dir string
	// Env is laid over [Spec].Env.
	Env map[string]string
	// Stdin is all that the command can read.
	Stdin []byte
	// Typed, when set, gives the command a terminal of [TerminalColumns] and [TerminalRows] instead
	// of pipes, and is what is typed there until the command ends; closing it ends nothing. Stdin
	// is not used then, and all output is of one stream, [Stdout]. A driver that has no terminals
	// refuses with [ErrUnsupported].
	Typed <-chan []byte
	// Feed, when set, is what the command reads in the place of Stdin, as it comes; closing it ends
	// the input. What is sent is taken only while the command runs.
	Feed <-chan []byte
	// Limits tighten [Spec].Limits and never widen them.
	Limits Limits
	// ReadOnly runs the command with a workspace that nothing can change through it;
	// home and temporary files stay writable. A driver that cannot enforce it
	// (see [Caps].ReadOnly) refuses with [ErrUnsupported].
	ReadOnly bool
	// Live, when set, is called with all output as it comes; calls do not overlap, and
	// none comes after Exec returned. It should not block: the command's output waits
	// for it. The slice is valid only during the call.
	Live func(stream Stream, data []byte)
}

// The size of terminals: wide enough that few lines are broken.
const (
	TerminalColumns = 120
	TerminalRows    = 40
)

// Stream names an output stream.
type Stream uint8

// The output streams.
const (
	Stdout Stream = 1
	Stderr Stream = 2
)

// Reason says why a command ended.
type Reason string

// Every reason. What ended a command counts, not how it took it: one that was
// asked to stop and then exits 0 has timed out or was cancelled.
const (
	ReasonExited    Reason = "exited"
	ReasonSignaled  Reason = "signaled"
	ReasonTimeout   Reason = "timeout"
	ReasonOOM       Reason = "oom"
	ReasonDiskLimit Reason = "disk_limit"
	ReasonCancelled Reason = "cancelled"
	ReasonLost      Reason = "sandbox_lost"
)

// Result is how a command ended.
type Result struct {
	// ExitCode is the exit status; -1 when a signal ended the command.
	ExitCode int
	// Signal is the name of that signal, as in "SIGKILL".
	Signal string
	Reason Reason
	Stdout Captured
	Stderr Captured
	// Combined is both streams in the order in which they were written. On systems other
	// than Linux, what a command writes to one and then at once to the other may be swapped.
	Combined Captured
	Wall     time.Duration
	CPU      time.Duration
	// MaxRSS is the most memory that one process of the command held, in bytes.
	MaxRSS int64
	// Limits says by what each limit of the command was enforced, where that is not what
	// [Caps].Limits says of all; otherwise it may be zero.
	Limits LimitKinds
}

// Captured is what was kept of a stream.
type Captured struct {
	// Data is all of the stream, or its head, a mark, and its tail.
	Data []byte
	// Total is how many bytes were written, and Lines how many lines, the last one also if it has
	// no end.
	Total int64
	Lines int64
	// Truncated says that Data is not all. [Cmd].Live gets all.
	Truncated bool
	// Throttled is for how long the writes waited because there was more than is read at full
	// speed, see package capture.
	Throttled time.Duration
}
