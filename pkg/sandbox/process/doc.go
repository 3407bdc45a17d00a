// Package process is the sandbox driver that isolates nothing: commands are plain
// processes of this program's user, with its files, network and rights. It is for
// code that is trusted as much as the worker is, and never chosen by itself.
//
// What it does promise:
//
//   - a clean environment: Spec.Env, HOME and TMPDIR in the scratch directory when they
//     are absent, Cmd.Env, and one variable that marks the command ([MarkVar]);
//   - a start in a directory of the workspace, and file operations confined to it;
//   - bounded time and output, and on Linux, for each process, bounded processor time,
//     memory, files and open files, set just after it has started, and
//   - the end of a command is the end of everything that it started.
//
// The last one takes work on Linux, where a process leaves its process group by
// setsid and its parent by a double fork:
//
//	command ends, times out or is cancelled
//	     │
//	     ▼        kill the process group ── no children left? ──► done
//	   scan /proc ◄────────────────────────┐
//	     │  members: descendants of the command; orphans in a session of it, with
//	     │  its brand or its mark; and descendants of those
//	     ├─ none ──► done                  │
//	     └─ SIGKILL each, reap what is ours┘   (gives up after a while: ErrLeftover)
//
// Orphans come to this process because it makes itself a child subreaper when the
// first sandbox is opened. It reaps them by their ids and takes nobody else's
// children. A process is known by a value that it inherits and does not look at, the
// brand: a resource limit without effect that is set while a command is forked. The
// mark in the environment is for the case that the limit cannot be set. A process that
// is made to hide, with another limit and another environment, in a session of its
// own and without its parent, is not found: this driver isolates nothing.
//
// Where the system has handed control groups to this program (package cgroup), each sandbox has
// one. Memory and processes are then bounded together, the end of a command that runs alone is the end of all that is in
// the group, whatever it hides, and what hides beside other commands ends with the last of them.
//
// When this program itself is killed its commands go on: nothing is left that could
// end them. In control groups the next program that looks for its own ends them; only drivers with a process namespace of
// their own do better.
//
// On other systems the process group is killed, and daemons that left it survive; on
// Windows only the command itself is killed.
package process
