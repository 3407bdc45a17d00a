// Package landlock is the weaker sandbox driver, for hosts that allow no user namespaces: commands
// are processes of the host, of the worker's user, that drop rights before they execute the
// program.
//
//	worker ──exec──► guard ──fork──► this program again ── no_new_privs, Landlock, seccomp ──exec──► command
//
// Guaranteed: a command reads the system's programs and libraries and nothing else of the host,
// writes its workspace and its scratch directory only, makes no sockets (or, when the network is
// allowed, only Internet sockets), shares no memory with others, and sends signals only to itself.
// The guard of driver process, which the command cannot signal, kills everything that it started
// when it ends, when the worker ends, and when the worker's lease ends. Control groups, if there
// are any, bound memory and processes.
//
// Not guaranteed, so the level is only [isolation.LevelPaths]: a command can change mode, times and
// extended attributes (not content) of any file of the worker's user; it can see the host's name,
// mounts, the user's keys and command lines of processes; it has no loopback, so programs cannot
// serve themselves; paths are those of the host, not /workspace.
//
// The driver refuses to run as root, which could change the mode of every file, and with a Landlock
// version that cannot restrict signals and abstract sockets.
package landlock
