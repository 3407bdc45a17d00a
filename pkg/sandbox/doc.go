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
