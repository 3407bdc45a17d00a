// Package guard is the parent of one command that is not in a sandbox of namespaces: it adopts what
// the command leaves behind, and ends all of it with the command, with the worker, and with the
// worker's lease.
//
//	worker ──exec──► guard ──fork──► command ──► ...
//	   │ ◄─control socket─┘
//
// It is a stage of the program of package initd: one that starts fast.
package guard

// StatusFD is the descriptor on which what a driver starts instead of a command tells why it could
// not become the command: the number of the error of exec, or a text when it could not get that
// far. It says nothing and closes it (on exec) when all is well.
const StatusFD = 3
