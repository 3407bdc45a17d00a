package files

import (
	"strings"

	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// expected is what a file must be before it is changed.
type expected struct {
	sha256 string
	guard  protocol.Guard
}

// checkExpected returns an error unless the file is as expected.
func checkExpected(name string, expect expected, file current) error {
	switch {
	case expect.guard == protocol.GuardRead && expect.sha256 == "" && file.exists:
		return protocol.Errorf(protocol.CodeFileNotRead,
			"%q exists and has not been read in this session; nothing was changed. Read it first, then make the change", name)
	case expect.sha256 == "":
		return nil
	case !file.exists:
		return protocol.Errorf(protocol.CodeFileChanged,
			"%q no longer exists, and content with the SHA-256 %s was expected; nothing was changed. Read it again, then make the change", name, expect.sha256)
	}
	if now := digest(file.content); !strings.EqualFold(now, expect.sha256) {
		return protocol.Errorf(protocol.CodeFileChanged,
			"%q is not as it was read: its SHA-256 is %s, expected was %s; nothing was changed. Read it again, then make the change",
			name, now, expect.sha256)
	}
	return nil
}
