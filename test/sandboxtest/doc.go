// Package sandboxtest tests sandbox drivers: [Run] holds a driver to what package
// sandbox promises of every driver, and [RunFS] file operations to what
// [sandbox.FS] promises. What only drivers that isolate promise is tested elsewhere.
//
// The suite needs a POSIX host, and in the sandbox a POSIX shell with the usual
// programs and setsid. Whether a process is dead is seen from outside, by the end
// of a FIFO in the workspace that it held open: that needs no process ids, which
// mean nothing across sandboxes, and no waiting.
package sandboxtest
