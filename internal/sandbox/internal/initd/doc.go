// Package initd is the program inside of a sandbox: its first process, which has started the
// sandbox before it was shut in, and then runs commands and file operations on request.
//
//	worker ──exec──► launch   one for all sandboxes, with the worker's rights; opens what
//	                   │      the sandbox will see
//	                   │ clone: new user, mount, process, network, IPC, host name namespaces
//	                   ▼
//	                 setup    PID 1; a copy of launch that makes a list of system calls: builds its
//	                   │      own root and leaves the old one; gives up every right that it can give up
//	                   │ exec, so that every thread is restricted
//	                   ▼
//	                 serve    tests itself; answers requests until the worker is gone
//
// Where the host allows only bwrap to create namespaces, bwrap does the work of launch and the
// first half of setup; the other half is then a stage that is called shut.
//
// The stages, but for setup, are one binary, see [Main]. It is started from a sealed memory file:
// what runs as the sandbox's first process is no file of the host, and needs none to be reachable.
// Its environment says how many threads it may use and nothing else, and it has these descriptors:
// 0 to 2 are nothing, 3 is the control socket, 4 the binary; from 5 on are directories that launch
// has opened.
//
// A failure before serve is reported to the worker, with the step, and ends the sandbox. When the
// worker is gone, the control socket ends, the first process with it, and the kernel kills the
// rest. The same happens when the worker's lease has ended; the first process is notified of each
// renewal (package start).
package initd
