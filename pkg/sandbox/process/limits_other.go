//go:build !linux

package process

import "github.com/toolfleet/toolfleet/pkg/sandbox"

func limitKinds() sandbox.LimitKinds {
	return sandbox.LimitKinds{
		CPU: sandbox.LimitNone, Memory: sandbox.LimitNone, Processes: sandbox.LimitNone,
		OpenFiles: sandbox.LimitNone, FileSize: sandbox.LimitNone, Disk: sandbox.LimitNone,
	}
}

func limitProcess(int, sandbox.Limits) {}
