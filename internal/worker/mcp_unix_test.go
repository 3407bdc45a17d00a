//go:build unix

package worker_test

import (
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/mcp/toolserver/toolservertest"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
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

// A server may be a program of the folder of tools, and knows where that is.
func TestMCP_AServerInTheFolderOfTools(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	o := r.options()
	session := protocol.NewSessionID()
	server := toolservertest.Program("test")
	o.Tools = t.TempDir()
	require.NoError(t, os.Symlink(server.Command, filepath.Join(o.Tools, "server")))
	server.Command = "{tools}/server"
	_, stop := r.work(o)
	requireOK(t, r.do(session, wire.MCPList{Server: server}))
	require.Equal(t, o.Tools, said(t, r.do(session, serverCall(server, "env", `{"file":"TOOLFLEET_TOOLS"}`))))
	require.Equal(t, "1 calls, 0 overlap", said(t, r.do(session, serverCall(server, "count", `{}`))))
	require.Equal(t, "2 calls, 0 overlap", said(t, r.do(session, serverCall(server, "count", `{}`))))
	stop()

	r.work(r.options())
	without := r.do(protocol.NewSessionID(), wire.MCPList{Server: server})
	requireFault(t, without, protocol.StatusRejected, codes.InvalidPayload)
	require.Contains(t, without.Error.Message, "start it with --tools DIR")
}
