// Package ns is the sandbox driver that isolates: each sandbox is a set of Linux namespaces of its
// own, with Landlock and a system call filter on top and no capability in it.
//
//	worker                               sandbox
//	  Open ───launch─────────────────────► first process: its own root, users, processes,
//	   │                                   network, host name; gives up its rights; tests itself
//	  Exec ───argv, pipes──control───────►   fork ─► command
//	   │ ◄────output through the pipes──────────────────┘
//	   │ ◄────how it ended, all of it dead── │
//	  FS ─────request────────────────────►   file operation, inside
//	  Close ──kill the first process─────► the kernel kills all others
//
// A sandbox is warm: its first process, package initd, is started once, and a command costs one
// fork. What a sandbox sees is made for it: the host's /usr read-only, a small /etc, /proc and /dev
// of its own, its workspace, and a home and a /tmp that are the scratch directory. There is no
// network but a loopback, unless the sandbox is made with one.
//
// The driver fails closed. The first process tests from inside that every layer holds, before
// anything else runs in the sandbox, and does not serve otherwise.
//
// When the worker is root, each sandbox has a user id of its own on the host that owns nothing
// there; its directories are mounted so that their owner appears as that user. For an ordinary user
// it is that user, who cannot be anybody else.
//
// Where the system has delegated control groups to the worker, a sandbox is started in one of its
// own (package cgroup), and its memory and processes are bounded by the kernel; otherwise memory is
// watched from inside. [sandbox.Result].Limits says which it was.
//
// Killing is the first process's work while it answers: on time-out and cancel, everything of the
// command is asked to end, after the grace time it is killed, and so is whatever a command leaves.
// If it does not answer it is killed itself, from outside, and the kernel leaves no process of the
// sandbox: [sandbox.ReasonLost]. The next command gets a new one. The first process ends by itself
// when the worker is gone or its lease has ended.
package ns
