// Package sandbox runs commands and file operations in isolated places.
//
// A [Driver] opens sandboxes of one kind; a [Sandbox] is one isolated place with
// a workspace, a directory tree that outlives it. Commands are processes with a
// complete environment of their own, under limits; file operations ([FS]) are
// confined to the workspace.
//
//	Driver ──Probe──► Caps    what this host lets the driver prove, by trying it
//	   │
//	   └────Open───► Sandbox ──Exec──► Result   a process that failed is a Result
//	                    │                       a Go error means that the sandbox failed
//	                    └──FS────► typed results or a *protocol.Error
//
// Drivers differ in how much they isolate ([Level]). The level is proven by a
// probe, published by the worker, repeated in every result, and never lowered
// silently: [Spec].Require refuses less. The driver "process" isolates nothing but
// the environment and the life time of processes, and is used only when it is asked for.
//
// Killing means the whole tree of a command: on timeout, on cancel, and on its
// normal end. Closing a sandbox returns when no process of it is left.
//
// A command that is to run in the background needs nothing of a driver: it is an Exec
// that somebody else waits for, with its output through Live, ended by its context.
// Commands end one by one; the end of one leaves those beside it alone.
//
// Payloads and values of file operations, and expected errors, are those of package protocol:
// workers return them unchanged. The package knows nothing of transport.
package sandbox
