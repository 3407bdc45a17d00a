package sandboxes

import (
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// memory is how much this process may use, in bytes.
func memory() int64 {
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) != nil {
		return defaultMemory
	}
	total := int64(info.Totalram) * int64(info.Unit)       //nolint:gosec // no machine has as much
	bound, err := os.ReadFile("/sys/fs/cgroup/memory.max") // of a container with a control group of its own
	if limit, parseErr := strconv.ParseInt(strings.TrimSpace(string(bound)), 10, 64); err == nil && parseErr == nil {
		total = min(total, limit)
	}
	return total
}
