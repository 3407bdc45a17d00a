package worker

import (
	"fmt"
	"time"

	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// endFault is the error of a command that did not end by itself; nil when it did. It names the one
// of the command's limits that ended it, so that a model knows how much to do at once.
func endFault(r *sandbox.Result, limits sandbox.Limits) error {
	switch r.Reason {
	case sandbox.ReasonExited, sandbox.ReasonSignaled:
		return nil
	case sandbox.ReasonTimeout:
		return protocol.Errorf(protocol.CodeRunTimeout, "the command used up its time (%s, of that %s on the processor) and was killed%s; do less at once",
			r.Wall.Round(timeUnit), r.CPU.Round(timeUnit), timeAllowed(r, limits))
	case sandbox.ReasonOOM:
		return protocol.Errorf(protocol.CodeOOM, "the command used too much memory%s and was killed", atMost(limits.Memory))
	case sandbox.ReasonDiskLimit:
		return diskFault(r, limits)
	case sandbox.ReasonLost, sandbox.ReasonCancelled:
		return protocol.Errorf(protocol.CodeSandboxLost, "the sandbox was lost while the command ran")
	default:
		return protocol.Errorf(protocol.CodeInternal, "the sandbox ended the command for a reason that this worker does not know: %s", r.Reason)
	}
}

const timeUnit = 10 * time.Millisecond

// timeAllowed says what a command may have that used up its time. Without a limit it was the time
// of its call.
func timeAllowed(r *sandbox.Result, limits sandbox.Limits) string {
	switch {
	case r.Signal == "SIGXCPU":
		return fmt.Sprintf(": a process may have %s on the processor, whatever timeout is asked for", limits.CPU)
	case limits.Wall > 0:
		return fmt.Sprintf(": it may run for %s, whatever timeout is asked for", limits.Wall)
	default:
		return ""
	}
}

// diskFault is that of a command which wrote too much to files: to one, where the system has said
// so, or in all.
func diskFault(r *sandbox.Result, limits sandbox.Limits) error {
	if r.Signal == "SIGXFSZ" {
		limit := limits.FileSize
		if limit == 0 || limits.Disk > 0 && limits.Disk < limit {
			limit = limits.Disk
		}
		return protocol.Errorf(protocol.CodeDiskLimit, "the command wrote too much to one file%s and was killed; write less, or to several files", atMost(limit))
	}
	return protocol.Errorf(protocol.CodeDiskLimit, "the command used up what its sandbox may have on disk%s; remove what is not needed, or write less", atMost(limits.Disk))
}

// atMost puts a limit in bytes beside what it bounds; nothing when there is none.
func atMost(limit int64) string {
	if limit <= 0 {
		return ""
	}
	return fmt.Sprintf(" (%d bytes at most)", limit)
}
