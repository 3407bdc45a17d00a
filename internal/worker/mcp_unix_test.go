//go:build unix

package worker_test

import (
	"strconv"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/pkg/protocol"
)

func TestMCP_AServerEndsWithItsWorker(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	_, stop := r.work(r.options())
	process, err := strconv.Atoi(said(t, r.do(protocol.NewSessionID(), mcpCall("pid", ""))))
	require.NoError(t, err)
	require.NoError(t, syscall.Kill(process, 0))
	stop()
	require.ErrorIs(t, syscall.Kill(process, 0), syscall.ESRCH)
}
