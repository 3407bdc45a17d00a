//go:build linux

package ns

import "github.com/toolfleet/toolfleet/pkg/sandbox"

// spareMemory is what the first process of a sandbox, and the kernel for it, may hold beside
// the commands.
const spareMemory = 16 << 20

// limitKinds says by what limits are enforced.
func limitKinds(grouped bool) sandbox.LimitKinds {
	kinds := sandbox.LimitKinds{
		CPU: sandbox.LimitRlimit, Memory: sandbox.LimitSoft, Processes: sandbox.LimitRlimit,
		OpenFiles: sandbox.LimitRlimit, FileSize: sandbox.LimitRlimit, Disk: sandbox.LimitSoft,
	}
	if grouped {
		kinds.Memory, kinds.Processes = sandbox.LimitCgroup, sandbox.LimitCgroup
	}
	return kinds
}
