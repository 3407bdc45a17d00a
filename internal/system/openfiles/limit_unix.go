//go:build unix

// Package openfiles knows how many files this process may have open. Connections count as such, so
// whoever listens takes only a share of them: a process without any can store nothing.
package openfiles

import "golang.org/x/sys/unix"

// most is more than any listener here needs.
const most = 1 << 20

// Limit is how many files this process may have open.
func Limit() int {
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) != nil {
		return most
	}
	return int(min(uint64(limit.Cur), most)) //nolint:gosec,unconvert,nolintlint // it is signed on some systems
}
