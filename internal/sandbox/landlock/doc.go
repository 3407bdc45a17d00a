// Package landlock is the degraded sandbox driver, for hosts that allow no namespaces to anybody:
// commands are processes of the host, of the worker's user, that give up rights before they become
// what was asked for.
//
//	worker ──exec──► guard ──fork──► this program again ── no_new_privs, Landlock, seccomp ──exec──► command
//
// What holds: a command reads the system's programs and libraries and nothing else of the host,
// writes its workspace and its scratch directory only, makes no sockets (or, when the network is
// allowed, only Internet sockets), shares no memory with others, and sends signals only to itself.
// Everything it started is ended with it, with the worker, and with the worker's lease, by the
// guard of driver process, which it cannot reach. Where there are control groups, they bound memory
// and processes.
//
// What does not hold, and why the level is only [isolation.LevelPaths]: mode, times and extended
// attributes of any file of the worker's user can be changed, though not its content; the names of
// the host, its mounts, the user's keys and the command lines of processes can be seen; there is no
// loopback of a sandbox's own, so programs cannot serve themselves; paths are those of the host,
// not /workspace.
//
// The driver refuses to work for root, whose right to change modes would be the right to
// everything, and with a Landlock that cannot keep signals and abstract sockets in.
package landlock
