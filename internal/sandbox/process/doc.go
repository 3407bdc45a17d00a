// Package process is the sandbox driver that isolates nothing: commands are plain processes of this
// program's user, with its files, network and rights. It is for code that is trusted as much as the
// worker is, and never chosen by itself.
//
// What it does promise:
//
//   - a clean environment: Spec.Env, HOME and TMPDIR in the scratch directory when they
//     are absent, and Cmd.Env;
//   - a start in a directory of the workspace, and file operations confined to it;
//   - bounded time and output, and on Linux, for each process, bounded processor time,
//     memory, files and open files, set just after it has started;
//   - the end of a command is the end of everything that it started, and
//   - on Linux a command ends with the worker and with the worker's lease (Spec.LeaseEnd).
//
// The last two are the work of a guard (package guard), a process for each command:
//
//	worker ──exec──► guard ──fork──► command ──► ...
//	   │ ◄─control socket─┘  adopts what loses its parent
//
// The guard is a child subreaper, so its descendants are the command's processes, whatever they do
// to hide, and when it has no child left there is none. It kills them when the command has ended,
// when the worker asks, when the control socket ends because the worker is gone, and when the lease
// has ended. It leads a session of its own: what stops the worker does not stop it. A command of
// this driver may kill its guard as it may kill the worker. Then the command itself ends, and what
// it has started goes on.
//
// Where the system has handed control groups to this program (package cgroup), each sandbox has
// one. Memory and processes are then bounded together.
//
// File operations are done by the worker itself. One that was stopped in the middle of such an
// operation finishes it when it goes on, also after its lease.
//
// On other systems there is no guard: the process group is killed, daemons that left it survive,
// and commands survive the worker; on Windows only the command itself is killed.
package process
