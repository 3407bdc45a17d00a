package sandbox

import (
	"cmp"
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
)

// Caps is what a driver has proven on this host.
type Caps struct {
	Driver   string   // name of the driver
	Level    Level    // proven by running probes in a sandbox
	Warnings []string // what an operator should know
}

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
	// Env is the complete environment of commands, but for HOME and TMPDIR, which
	// the driver sets when they are absent. Nothing is inherited.
	Env map[string]string
	// Limits bound every command of the sandbox.
	Limits Limits
	// Require is the least level that will do.
	Require Level
}

// Limits bound a command; zero values mean the documented default.
type Limits struct {
	// Wall is the longest run; 0 is bounded by the context only.
	Wall time.Duration
	// Output is how many bytes of each stream are kept, head and tail; 0 means
	// [DefaultOutput]. A command that writes more than four times as much to one stream is killed.
	Output int64
	// Grace is the time between SIGTERM and SIGKILL; 0 means [DefaultGrace].
	Grace time.Duration
}

// Defaults of [Limits].
const (
	DefaultOutput = 128 << 10
	DefaultGrace  = 2 * time.Second
)

// Tighten returns l where each limit that by sets lower is lowered to it.
func (l Limits) Tighten(by Limits) Limits {
	return Limits{
		Wall:   tighter(l.Wall, by.Wall),
		Output: tighter(l.Output, by.Output),
		Grace:  tighter(l.Grace, by.Grace),
	}
}

// WithDefaults returns l with the documented defaults in place of zero values.
// Wall stays as it is: 0 is no limit.
func (l Limits) WithDefaults() Limits {
	l.Output = cmp.Or(max(l.Output, 0), DefaultOutput)
	l.Grace = cmp.Or(max(l.Grace, 0), DefaultGrace)
	return l
}

// tighter returns the smaller of two limits, where 0 and less is none.
func tighter[T ~int64](a, b T) T {
	if b > 0 && (a <= 0 || b < a) {
		return b
	}
	return a
}

// Sandbox is one isolated place. It is safe for concurrent use.
type Sandbox interface {
	// Exec runs a command to its end and kills whatever of it is left. A command that
	// fails, times out or is cancelled is a Result with everything it wrote so far.
	// A command that cannot be started because the caller asked for the wrong thing
	// (program, directory) is a *[Fault]. Every other error is about the sandbox:
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
	// Limits tighten [Spec].Limits and never widen them.
	Limits Limits
	// Live, when set, is called with output as it comes; calls do not overlap, and
	// none comes after Exec returned. It should not block: the command's output waits
	// for it. The slice is valid only during the call.
	Live func(stream Stream, data []byte)
}

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
	ReasonExited      Reason = "exited"
	ReasonSignaled    Reason = "signaled"
	ReasonTimeout     Reason = "timeout"
	ReasonOOM         Reason = "oom"
	ReasonOutputLimit Reason = "output_limit"
	ReasonDiskLimit   Reason = "disk_limit"
	ReasonCancelled   Reason = "cancelled"
	ReasonLost        Reason = "sandbox_lost"
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
	Wall   time.Duration
	CPU    time.Duration
	// MaxRSS is in bytes.
	MaxRSS int64
}

// Captured is what was kept of a stream.
type Captured struct {
	// Data is all of the stream, or its head, a mark, and its tail.
	Data []byte
	// Total is how many bytes were written.
	Total int64
	// Truncated says that Data is not all.
	Truncated bool
}
