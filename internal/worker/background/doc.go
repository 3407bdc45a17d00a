// Package background keeps the processes of a sandbox that outlive the calls that started them.
//
//	command_run, background ──► Start ──► sandbox.Exec in a goroutine ──► output ring
//	process_read, process_list ◄── what the ring has; the end                │
//	process_kill ──► cancel ─────────────────────────────────────────────────┘
//
// A process ends by itself, by process_kill, when its life time is over, or with its
// sandbox: that is when the worker stops, is lost, or loses the lane. As long as one
// lives the worker keeps the lane, and with it the sandbox, although no call comes.
// Later calls run at the same time as the process: its changes to the workspace have no
// order with theirs.
//
// What a process writes goes into a spool, both streams in order: all of it is read from there
// while the process lives, and handed to [Command.Keep] when it ends. How it ended, and the last
// [KeepBytes], are written to a file next to the workspace, so that they can be read after the
// sandbox has been closed, by whichever worker has the directory. Processes that lived when a
// worker was killed leave nothing.
package background
