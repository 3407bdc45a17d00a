package fleet_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
	"github.com/toolfleet/toolfleet/pkg/tools/toolset"
	"github.com/toolfleet/toolfleet/pkg/worker"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestConnect_KeepsWhatItsDirectoryHas(t *testing.T) {
	t.Parallel()
	data := filepath.Join(t.TempDir(), "data")
	table, err := tools.NewTable(toolset.Core()...)
	require.NoError(t, err)
	call := func(tool, arguments string) fleet.Outcome {
		f, err := fleet.Connect(t.Context(), &fleet.Options{Data: data})
		require.NoError(t, err)
		require.NoError(t, f.StartWorker(t.Context(), &fleet.WorkerOptions{Sandbox: "process"}))
		outcome, err := f.Call(t.Context(), table, "s", tool, arguments, nil)
		require.NoError(t, err)
		require.NoError(t, f.Close())
		return outcome
	}
	require.Equal(t, protocol.StatusOK, call("write", `{"path":"a","content":"kept"}`).Status)
	require.Contains(t, call("read", `{"path":"a"}`).Text, "kept")
	refused := call("read", `{"path":"../a"}`)
	require.Equal(t, protocol.StatusRejected, refused.Status)
	require.Equal(t, protocol.CodePathEscape, refused.Error.Code)
	require.Contains(t, refused.Text, "[rejected: path_escape]")
	require.Nil(t, refused.Result)
	require.DirExists(t, data)
}

func TestClose_RemovesADirectoryOfItsOwn(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	f, err := fleet.Connect(t.Context(), nil)
	require.NoError(t, err)
	entries, err := os.ReadDir(os.TempDir())
	require.NoError(t, err)
	require.NotEmpty(t, entries)
	require.NoError(t, f.Close())
	entries, err = os.ReadDir(os.TempDir())
	require.NoError(t, err)
	require.Empty(t, entries)
}

func TestFleet_RefusesWhatCannotWork(t *testing.T) {
	t.Parallel()
	_, err := fleet.Connect(t.Context(), &fleet.Options{Name: "No Fleet"})
	require.ErrorIs(t, err, protocol.ErrInvalidName)
	_, err = fleet.OpenModel("nobody:x")
	require.ErrorContains(t, err, "openai:NAME")
	f, err := fleet.Connect(t.Context(), nil)
	require.NoError(t, err)
	defer func() { require.NoError(t, f.Close()) }()
	require.Error(t, f.StartWorker(t.Context(), &fleet.WorkerOptions{Sandbox: "jail"}))
	require.ErrorIs(t, f.StartWorker(t.Context(), &fleet.WorkerOptions{Handlers: []worker.Handler{{}}}), protocol.ErrInvalidKind)
}

func TestDeleteSession_RemovesItsWorkspace(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	f, err := fleet.Connect(t.Context(), &fleet.Options{Data: data})
	require.NoError(t, err)
	defer func() { require.NoError(t, f.Close()) }()
	require.NoError(t, f.StartWorker(t.Context(), &fleet.WorkerOptions{Sandbox: "process"}))
	table, err := tools.NewTable(toolset.Core()...)
	require.NoError(t, err)
	outcome, err := f.Call(t.Context(), table, "s", "write", `{"path":"a","content":"x"}`, nil)
	require.NoError(t, err)
	require.Nil(t, outcome.Error)
	require.DirExists(t, filepath.Join(data, "sandboxes", "s"))
	require.NoError(t, f.DeleteSession(t.Context(), "s", false))
	require.NoDirExists(t, filepath.Join(data, "sandboxes", "s"))
	require.NoError(t, f.DeleteSession(t.Context(), "s", false))
	require.ErrorIs(t, f.DeleteSession(t.Context(), "no/id", false), protocol.ErrInvalidName)
}
