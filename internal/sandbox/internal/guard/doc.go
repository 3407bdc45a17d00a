// Package guard is the parent of one command that is not in a sandbox of namespaces: it adopts what
// the command leaves behind, and ends all of it with the command, with the worker, and with the
// worker's lease.
//
//	worker ──exec──► guard ──fork──► command ──► ...
//	   │ ◄─control socket─┘
//
// It is a stage of the program of package initd: one that starts fast.
package guard

// StatusFD is the descriptor on which a driver's stage reports why it could not become the command:
// the number of the error of exec, or a text if it failed before. If all is well, it is closed by
// exec without a report.
const StatusFD = 3
