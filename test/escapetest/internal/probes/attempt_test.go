//go:build linux

package probes

import (
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/toolfleet/toolfleet/test/escapetest/internal/canary"
)

func TestAttempt_FaultIsAnAnswer(t *testing.T) {
	t.Parallel()
	page, err := unix.Mmap(-1, 0, 1, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	require.NoError(t, err)
	defer func() { require.NoError(t, unix.Munmap(page)) }()
	v := attemptFault(func(canary.Host) canary.Verdict {
		page[0] = 1 // as int 0x80 does where the kernel has no 32-bit entry: SIGSEGV
		return escape("passed")
	}, canary.Host{})
	require.Equal(t, canary.Refused, v.Outcome)
	require.Contains(t, v.Detail, "fault at address 0x")
}

func TestAttempt_ErrorOfTheProbePanics(t *testing.T) {
	t.Parallel()
	var none *syscall.Stat_t
	require.Panics(t, func() {
		attemptFault(func(canary.Host) canary.Verdict { none.Mode = 1; return escape("passed") }, canary.Host{})
	})
}
