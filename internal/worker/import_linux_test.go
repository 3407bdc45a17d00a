package worker_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/workspace"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// TestWorkspaceImport_FailedLeavesNothing of an upload that is deeper than files may be open.
func TestWorkspaceImport_FailedLeavesNothing(t *testing.T) { //nolint:paralleltest // it has a limit of the process
	r := newRig(t)
	o := r.options()
	r.work(o)
	root := emptyRoot(t)
	require.NoError(t, root.MkdirAll(strings.Repeat("d/", 600), 0o700))
	require.NoError(t, root.WriteFile("z", bytes.Repeat([]byte("last"), 1<<10), 0o600))
	requireOK(t, r.do(protocol.NewSessionID(), r.uploadRoot(t, "cut", root)))
	cut := r.uploadRoot(t, "cut", root)
	store, err := workspace.Open(t.Context(), r.NC, r.Name, "")
	require.NoError(t, err)
	known, err := store.Last(t.Context(), "cut")
	require.NoError(t, err)
	require.NoError(t, natsio.DeleteObjects(t.Context(), r.JS, wire.BodiesBucket(r.Name), known["z"].Parts[0].Body))
	var was unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &was))
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 400, Max: was.Max}))
	defer func() { require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &was)) }()
	session := protocol.NewSessionID()
	requireFault(t, r.do(session, cut), protocol.StatusFailed, protocol.CodeNotFound)
	requireTidy(t, o.Data, session)
}
