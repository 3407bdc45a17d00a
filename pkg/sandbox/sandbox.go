// Package sandbox runs commands and file operations in isolated directories. Handlers of a
// program's own tools get the [Sandbox] of their call from the worker.
//
//	Sandbox ──Exec──► Result   a process that failed is a Result
//	   │                       a Go error means that the sandbox failed
//	   └──FS────► typed results or a *protocol.Error
//
// A sandbox has a workspace, a directory tree that outlives it. Commands are processes with a
// complete environment of their own, under [Limits]. File operations ([FS]) are confined to the
// workspace.
//
// Killing means the whole tree of a command: on timeout, on cancel, and on its normal end.
// Commands end one by one; the end of one leaves concurrent ones alone. Closing a sandbox returns
// when no process of it is left.
//
// Payloads and values of file operations, and expected errors, are those of package protocol.
package sandbox

import (
	"context"
	"errors"
	"time"
)

// Errors that callers branch on.
var (
	// ErrClosed says that the sandbox was closed.
	ErrClosed = errors.New("sandbox is closed")
	// ErrLevel says that no sandbox driver of the host isolates as much as was required.
	ErrLevel = errors.New("sandbox level not reached")
	// ErrUnsupported says that the sandbox cannot enforce what was requested, such as a read-only
	// command. Nothing was run.
	ErrUnsupported = errors.New("the sandbox driver cannot enforce this")
)

// Sandbox is one isolated place. It is safe for concurrent use.
type Sandbox interface {
	// Exec runs a command to its end and kills whatever of it is left. A command that
	// fails, times out or is cancelled is a Result with everything it wrote so far.
	// A command that cannot be started because the caller asked for the wrong thing
	// (program, directory) is a *[protocol.Error]. Every other error, such as
	// [ErrClosed], means that the sandbox failed. Several commands may run side by side.
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
	// Env is added to the environment of the sandbox.
	Env map[string]string
	// Stdin is all that the command can read.
	Stdin []byte
	// Typed, when set, gives the command a terminal of 120 columns and 40 rows instead
	// of pipes, and is what is typed there until the command ends; closing it ends nothing. Stdin
	// is not used then, and all output is of one stream, [Stdout]. A sandbox that has no terminals
	// refuses with [ErrUnsupported].
	Typed <-chan []byte
	// Feed, when set, is the command's input instead of Stdin, as it comes; closing it ends the
	// input. Data is received only while the command runs.
	Feed <-chan []byte
	// Limits tighten those of the sandbox and never widen them.
	Limits Limits
	// ReadOnly runs the command with a workspace that nothing can change through it;
	// home and temporary files stay writable. A sandbox that cannot enforce it
	// refuses with [ErrUnsupported].
	ReadOnly bool
	// Live, when set, is called with all output as it comes; calls do not overlap, and
	// none comes after Exec returned. It should not block: the command's output waits
	// for it. The slice is valid only during the call.
	Live func(stream Stream, data []byte)
}

// Limits bound a command, or all of a sandbox; zero values mean the documented default, and where
// there is none, no limit. Negative values are an error. A limit that the sandbox cannot enforce is
// ignored; the worker publishes what enforces each.
type Limits struct {
	// Wall is the longest run; 0 is bounded by the context only.
	Wall time.Duration
	// CPU is how much processor time one process may use, in whole seconds; with a
	// fraction it is rounded up. A process that uses more is killed.
	CPU time.Duration
	// Memory is how many bytes the processes of a sandbox may hold together. A command
	// that is killed for it ends with [ReasonOOM]. Shared memory is limited to half of it.
	Memory int64
	// Processes is how many processes and threads a sandbox may have at once; 0 means
	// 1024. The next fork fails.
	Processes int64
	// OpenFiles is how many files a process may have open; 0 means 4096.
	OpenFiles int64
	// FileSize is how big a file may become, in bytes. The write fails, and the process
	// gets SIGXFSZ.
	FileSize int64
	// Disk is how many bytes workspace and scratch may take up together. It is checked while the
	// command runs. A command that is killed for it ends with [ReasonDiskLimit].
	Disk int64
	// Output is how many bytes of each stream are kept, head and tail; 0 means
	// 128 KiB. A command may write as much as it likes.
	Output int64
	// Grace is the time between SIGTERM and SIGKILL; 0 means 2 s.
	Grace time.Duration
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
	// LimitKinds has the mechanism that enforced each limit of the command: cgroup, rlimit,
	// soft or none, by the names of [protocol.Execution]. It is nil if they are those that the
	// worker publishes.
	LimitKinds map[string]string
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
	// speed.
	Throttled time.Duration
}
