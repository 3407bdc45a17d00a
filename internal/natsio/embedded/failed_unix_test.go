//go:build unix

package embedded_test

import "golang.org/x/sys/unix"

// takeFiles has this process open no more files.
func takeFiles() (giveBack func() error, err error) {
	var was unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
		return nil, err
	}
	return func() error { return unix.Setrlimit(unix.RLIMIT_NOFILE, &was) }, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 1, Max: was.Max})
}
