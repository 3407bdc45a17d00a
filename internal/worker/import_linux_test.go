package worker_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/sandbox/snapshot"
)

// TestWorkspaceImport_FailedLeavesNothing of an archive that is deeper than files may be open.
func TestWorkspaceImport_FailedLeavesNothing(t *testing.T) { //nolint:paralleltest // it has a limit of the process
	r := newRig(t)
	o := r.options()
	r.work(o)
	dir := t.TempDir()
	root, err := os.OpenRoot(dir)
	require.NoError(t, err)
	defer root.Close()
	require.NoError(t, root.MkdirAll(strings.Repeat("d/", 600), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "z"), bytes.Repeat([]byte("last"), 1<<10), 0o600))
	var packed bytes.Buffer
	_, _, err = snapshot.Pack(t.Context(), root, &packed, nil)
	require.NoError(t, err)
	r.store(t, "cut", packed.Bytes()[:packed.Len()-8])
	var was unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &was))
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 400, Max: was.Max}))
	defer func() { require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &was)) }()
	session := protocol.NewSessionID()
	requireFault(t, r.do(session, protocol.WorkspaceImport{Blob: "cut"}), protocol.StatusFailed, protocol.CodeWorkspaceUnavailable)
	requireTidy(t, o.Data, session)
}
