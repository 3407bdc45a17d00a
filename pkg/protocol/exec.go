package protocol

import "encoding/json"

// CommandRun runs a shell command, or an argument vector without a shell.
type CommandRun struct {
	// Command is run by the sandbox's shell. Exactly one of Command and Argv is set.
	Command string   `json:"command,omitempty"`
	Argv    []string `json:"argv,omitempty"`
	// Cwd is a directory of the workspace.
	Cwd string `json:"cwd,omitempty"`
	// Env is added to the sandbox's environment.
	Env   map[string]string `json:"env,omitempty"`
	Stdin Bytes             `json:"stdin,omitempty"`
	// ReadOnly asks for a workspace that nothing can change through this command. Only
	// such a command may use its sandbox shared. A worker that cannot enforce it rejects the call.
	ReadOnly bool `json:"read_only,omitempty"`
	// KeepShell starts the command in the directory and with the exported variables
	// that the sandbox's last such command ended with, and keeps its own for the next.
	KeepShell bool `json:"keep_shell,omitempty"`
	// Background starts the command and answers at once with a handle; the process
	// lives beside later calls until it ends, is killed, or its sandbox ends.
	Background bool `json:"background,omitempty"`
	// TTY gives a background process a terminal, where a payload of kind process_send types.
	TTY bool `json:"tty,omitempty"`
	// Limits tighten those of the worker.
	Limits Limits `json:"limits,omitzero"`
}

// CodeRun runs a program text with the interpreter or compiler of its language.
type CodeRun struct {
	Code     string            `json:"code"`
	Language string            `json:"language"` // python, sh, node, go
	Cwd      string            `json:"cwd,omitempty"`
	Env      map[string]string `json:"env,omitempty"`
	// ReadOnly is as in [CommandRun].
	ReadOnly bool `json:"read_only,omitempty"`
	// Limits tighten those of the worker.
	Limits Limits `json:"limits,omitzero"`
}

// Limits bound a command; 0 is the worker's own limit. They can only be tighter
// than that. Which of them a worker enforces, and how, is in [Execution].
type Limits struct {
	// Wall is the longest run; the call's run timeout bounds it too. Of a background
	// process it is the longest life.
	Wall Millis `json:"wall_ms,omitempty"`
	// CPU is processor time of one process, in whole seconds, rounded up.
	CPU Millis `json:"cpu_ms,omitempty"`
	// Memory is what the processes may hold together.
	Memory int64 `json:"memory_bytes,omitempty"`
	// Processes is how many processes and threads there may be at once.
	Processes int64 `json:"processes,omitempty"`
	// OpenFiles is how many files one process may have open.
	OpenFiles int64 `json:"open_files,omitempty"`
	// FileSize is how big a file may become.
	FileSize int64 `json:"file_size_bytes,omitempty"`
	// Disk is what workspace, home and temporary files may take up together.
	Disk int64 `json:"disk_bytes,omitempty"`
	// Output is how much of each stream is in the result. All of what is more is kept, see [Kept].
	Output int64 `json:"output_bytes,omitempty"`
}

// Execution is how a process ended and what it wrote.
type Execution struct {
	// ExitCode is the exit status; -1 when a signal ended it, or it has not ended.
	ExitCode int `json:"exit_code"`
	// Signal names the signal that ended it, as in "SIGKILL".
	Signal string `json:"signal,omitempty"`
	// Reason is exited, signaled, timeout, oom, disk_limit, cancelled or sandbox_lost; of a
	// background process that lives, running.
	Reason string `json:"reason"`
	// Stdout and Stderr are what was kept: all of it, or head and tail with a mark between them.
	Stdout Bytes `json:"stdout"`
	Stderr Bytes `json:"stderr"`
	// Combined is both in the order in which they came, kept in the same way; absent
	// when only one of them was written to.
	Combined Bytes `json:"combined,omitempty"`
	// StdoutBytes and StderrBytes are how much was written.
	StdoutBytes int64 `json:"stdout_bytes"`
	StderrBytes int64 `json:"stderr_bytes"`
	// StdoutLines and StderrLines are how many lines that is.
	StdoutLines int64 `json:"stdout_lines,omitempty"`
	StderrLines int64 `json:"stderr_lines,omitempty"`
	// Truncated says that a stream is not kept whole here.
	Truncated   bool    `json:"truncated,omitempty"`
	CPUMS       float64 `json:"cpu_ms"`
	MaxRSSBytes int64   `json:"max_rss_bytes"`
	// LimitKinds says by what each limit was enforced: cgroup, rlimit, soft or none.
	LimitKinds map[string]string `json:"limit_kinds,omitempty"`
	// Notes are what the worker has to say about it, a sentence each.
	Notes []string `json:"notes,omitempty"`
}

// CommandRunResult answers [CommandRun].
type CommandRunResult struct {
	Execution

	// Process is the handle of a background process.
	Process string `json:"process,omitempty"`
	// TTY says that it has a terminal.
	TTY bool `json:"tty,omitempty"`
}

// CodeRunResult answers [CodeRun].
type CodeRunResult struct{ Execution }

// ToolRun runs the command of a tool of the user's own: the tool call's arguments
// on its standard input, its output from its standard output. A call whose resources
// are not of a sandbox gets an empty one that ends with its lane.
type ToolRun struct {
	// Argv is the program and its arguments, without a shell. "{tools}" in any of them
	// stands for the worker's folder of tools, which is also TOOLFLEET_TOOLS in the environment.
	Argv []string `json:"argv"`
	// Arguments is a JSON object.
	Arguments json.RawMessage `json:"arguments"`
	// Env is added to the sandbox's environment.
	Env map[string]string `json:"env,omitempty"`
	// Text says that standard output is text; otherwise it is one JSON value.
	Text bool `json:"text,omitempty"`
}

// ToolRunResult answers [ToolRun].
type ToolRunResult struct {
	// Output is the standard output of the command, if it is valid; text as a JSON string. Stdout
	// is empty then.
	Output json.RawMessage `json:"output,omitempty"`
	Execution
}
