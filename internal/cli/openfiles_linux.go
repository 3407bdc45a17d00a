package cli

import (
	"fmt"

	"golang.org/x/sys/unix"
)

const (
	// filesOfProcess is how many open files a worker has beside its calls, with an embedded server.
	filesOfProcess = 64
	// filesOfCall is how many a call has that runs in a sandbox of its own.
	filesOfCall = 8
)

// FewFiles returns a warning if a worker may open fewer files than its slots need.
func FewFiles(slots int) []string {
	var limit unix.Rlimit
	need := uint64(filesOfProcess + filesOfCall*slots) //nolint:gosec // slots are positive
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) != nil || limit.Cur >= need {
		return nil
	}
	return []string{fmt.Sprintf("this process may have %d open files, and %d slots need %d, so calls will fail when all are in use; "+
		"raise the limit (ulimit -n, LimitNOFILE in a systemd unit) or lower --slots", limit.Cur, slots, need)}
}
