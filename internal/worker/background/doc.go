// Package background keeps the processes of a sandbox that live beside its calls.
//
//	command_run, background ──► Start ──► sandbox.Exec in a goroutine ──► output ring
//	process_read, process_list ◄── what the ring has; the end                │
//	process_kill ──► cancel ─────────────────────────────────────────────────┘
//
// A process ends by itself, by process_kill, when its life time is over, or with its
// sandbox: that is when the worker stops, is lost, or loses the lane. As long as one
// lives the worker keeps the lane, and with it the sandbox, although no call comes.
// Calls that follow run beside the process: what it does to the workspace is in no
// order with what they do.
//
// What a process writes goes into a spool, both streams in order: all of it is read from there
// while the process lives, and handed to [Command.Keep] when it ends. How it ended, and the last
// [KeepBytes], are written to a file beside the workspace, so that they can be read after the
// sandbox has been closed, by whichever worker has the directory. Processes that lived when a
// worker was killed leave nothing.
package background
