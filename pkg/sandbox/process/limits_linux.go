package process

import "github.com/toolfleet/toolfleet/pkg/sandbox"

func limitKinds() sandbox.LimitKinds {
	return sandbox.LimitKinds{
		CPU: sandbox.LimitRlimit, Memory: sandbox.LimitRlimit, OpenFiles: sandbox.LimitRlimit, FileSize: sandbox.LimitRlimit,
		Processes: sandbox.LimitNone, // the system counts all processes of the user, the worker's too
		Disk:      sandbox.LimitNone,
	}
}
