// Package toolstest tests the built-in toolsets end to end: [Run] makes tool calls as a model does,
// has a fleet execute them, and holds what a model would read to what the tools promise, and
// [RunLarge] does so with what is as large as can be. The fleet can be a worker with any sandbox
// driver, or real processes.
//
// Everything is done by tool calls: the suite sees no directory of the host. It needs a POSIX shell
// with the usual programs in the sandbox.
package toolstest
