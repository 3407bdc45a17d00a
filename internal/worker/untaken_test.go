package worker_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/sandbox/snapshot"
	"github.com/toolfleet/toolfleet/internal/workspace"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// A workspace that no worker writes is a fault of the call, and nothing outside of it is touched.
func TestCheckpoint_ThatNoWorkerWrites(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	store, err := workspace.Open(t.Context(), r.NC, r.Name, "")
	require.NoError(t, err)
	o := r.options()
	r.work(o)
	for session, tree := range map[protocol.SessionID]snapshot.Tree{
		"above":    {"../../escaped": {Type: protocol.TypeDir}},
		"absolute": {filepath.ToSlash(filepath.Join(o.Data, "escaped")): {Type: protocol.TypeDir}},
		"device":   {"workspace": {Type: protocol.TypeDir}, "workspace/null": {Type: protocol.TypeOther}},
		"link": {
			"workspace": {Type: protocol.TypeDir}, "workspace/l": {Type: protocol.TypeSymlink, Target: o.Data},
			"workspace/l/escaped": {Type: protocol.TypeDir},
		},
	} {
		require.NoError(t, store.Begin(t.Context(), protocol.SandboxKey(string(session)).Lane(), tree, "c"))
		for range 2 {
			requireFault(t, r.do(session, bash("ls")), protocol.StatusFailed, protocol.CodeWorkspaceUnavailable)
		}
	}
	left, err := filepath.Glob(filepath.Join(o.Data, "*escaped*"))
	require.NoError(t, err)
	require.Empty(t, left)
	_, err = os.Stat(filepath.Join(o.Data, "sandboxes", "escaped"))
	require.ErrorIs(t, err, os.ErrNotExist)
}
