//go:build unix

package system

import "golang.org/x/sys/unix"

// mostFiles is more than any listener here needs.
const mostFiles = 1 << 20

// OpenFiles is how many files this process may have open. Connections count as such, so a listener
// takes only a share of them: a process without any can store nothing.
func OpenFiles() int {
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) != nil {
		return mostFiles
	}
	return int(min(uint64(limit.Cur), mostFiles)) //nolint:gosec,unconvert,nolintlint // it is signed on some systems
}
