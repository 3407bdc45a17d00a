// Package calls prepares system calls, to be made one after the other later on, by a process in
// which nothing but system calls works.
//
//	var list calls.List
//	list.Step("new root")
//	config := list.Do(unix.SYS_FSOPEN, "tmpfs", 0)
//	list.Do(unix.SYS_FSCONFIG, config, unix.FSCONFIG_CMD_CREATE, 0, 0, 0)
//	root := list.Do(unix.SYS_FSMOUNT, config, 0, 0)
//	...
//	pid, err := list.Fork(flags, socket)
//
// The copy of a Go program that clone(2) makes has one thread, and the runtime of Go does not work
// in it: nothing may be allocated, no function called that may need more stack. So the system calls
// of a new process before it executes a program are listed first, with all their memory, and the
// copy makes the calls of the list. That spares it one start of a program, which takes longer than
// all of the calls.
//
// The parent does not wait for the calls. [List.Fork] reports a failed call through a socket.
package calls
