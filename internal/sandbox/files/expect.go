package files

import (
	"strings"

	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// checkExpected says what is wrong when a file is not what a change was meant for.
func checkExpected(name string, expect sandbox.Expect, file current) error {
	switch {
	case expect.Absent && file.exists:
		return sandbox.Faultf(sandbox.FaultFileNotRead,
			"%q exists and has not been read in this session; nothing was changed. Read it first, then make the change", name)
	case expect.SHA256 == "":
		return nil
	case !file.exists:
		return sandbox.Faultf(sandbox.FaultFileChanged,
			"%q no longer exists, and content with the SHA-256 %s was expected; nothing was changed. Read it again, then make the change", name, expect.SHA256)
	}
	if now := digest(file.content); !strings.EqualFold(now, expect.SHA256) {
		return sandbox.Faultf(sandbox.FaultFileChanged,
			"%q is not as it was read: its SHA-256 is %s, expected was %s; nothing was changed. Read it again, then make the change",
			name, now, expect.SHA256)
	}
	return nil
}
