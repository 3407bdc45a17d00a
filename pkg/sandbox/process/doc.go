// Package process is the sandbox driver that isolates nothing: commands are plain
// processes of this program's user, with its files, network and rights. It is for
// code that is trusted as much as the worker is, and never chosen by itself.
//
// What it does promise:
//
//   - a clean environment: Spec.Env, HOME and TMPDIR in the scratch directory when they
//     are absent, Cmd.Env, and one variable that marks the command ([MarkVar]);
//   - a start in a directory of the workspace, and file operations confined to it;
//   - bounded time and output, and
//   - the end of a command is the end of everything that it started.
//
// The last one takes work on Linux, where a process leaves its process group by
// setsid and its parent by a double fork:
//
//	command ends, times out or is cancelled
//	     │
//	     ▼        kill the process group ── no children left? ──► done
//	   scan /proc ◄────────────────────────┐
//	     │  members: descendants of the command; orphans in its session or
//	     │  with its mark in their environment, and their descendants
//	     ├─ none ──► done                  │
//	     └─ SIGKILL each, reap what is ours┘   (gives up after a while: ErrLeftover)
//
// Orphans come to this process because it makes itself a child subreaper when the
// first sandbox is opened. It reaps them by their ids and takes nobody else's
// children: processes in the session of this program are never touched. An orphan in
// another session that has wiped its environment cannot be told from a stranger: it is
// taken for one of ours when it was born while a command ran, and killed when that
// command was the only one. So a program that uses this driver should start no other
// children in sessions of their own.
//
// On other systems the process group is killed, and daemons that left it survive; on
// Windows only the command itself is killed.
package process
