package confine

import "golang.org/x/sys/unix"

const (
	nativeArch = unix.AUDIT_ARCH_AARCH64
	foreignBit = 0
)

//nolint:gochecknoglobals // constants
var (
	deniedHere, changesHere []uint32
	modeCallsHere           []modeCall
)
