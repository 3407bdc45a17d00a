package examples_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
	"github.com/toolfleet/toolfleet/pkg/tools/manifest"
)

// toolsFleet is a fleet with the tools of the example folder.
func toolsFleet(t *testing.T) (*fleet.Fleet, *tools.Table) {
	t.Helper()
	folder, err := manifest.Open("tools")
	require.NoError(t, err)
	set := folder.Load(coreNames()...)
	require.Empty(t, set.Problems)
	table, err := tools.NewTable(append(tools.Core(), set.Tools...)...)
	require.NoError(t, err)
	f, err := fleet.Connect(t.Context(), nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, f.Close()) })
	require.NoError(t, f.StartWorker(t.Context(), &fleet.WorkerOptions{
		Sandbox: "process", Tools: folder.Dir(), Env: map[string]string{"NUMBERS_DIR": t.TempDir()},
	}))
	return f, table
}

func coreNames() []string {
	var names []string
	for _, tool := range tools.Core() {
		names = append(names, tool.Name)
	}
	return names
}

func call(t *testing.T, f *fleet.Fleet, table *tools.Table, tool, arguments string) fleet.Outcome {
	t.Helper()
	outcome, err := f.Call(t.Context(), table, "examples", tool, arguments)
	require.NoError(t, err)
	return outcome
}

func TestTools_WordCount(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skip("python3 is not installed, and the tool is a Python program")
	}
	f, table := toolsFleet(t)
	require.Nil(t, call(t, f, table, "write", `{"path":"a.txt","content":"the fox and the dog\nand the end\n"}`).Error)
	counted := call(t, f, table, "word_count", `{"path":"./a.txt","top":"2"}`)
	require.Nil(t, counted.Error)
	require.JSONEq(t, `{"words":8,"lines":2,"top":[{"word":"the","count":3},{"word":"and","count":2}]}`, counted.Text)

	missing := call(t, f, table, "word_count", `{"path":"b.txt"}`)
	require.Equal(t, protocol.StatusFailed, missing.Status)
	require.Contains(t, missing.Text, "b.txt cannot be counted")
	escape := call(t, f, table, "word_count", `{"path":"/etc/passwd"}`)
	require.Equal(t, protocol.CodePathEscape, escape.Error.Code)
}

// TestTools_ReserveNumber reserves from several sessions at once: no number is given twice.
func TestTools_ReserveNumber(t *testing.T) {
	t.Parallel()
	f, table := toolsFleet(t)
	const n = 8
	numbers := make([]fleet.Outcome, n)
	var group sync.WaitGroup
	for i := range numbers {
		group.Go(func() {
			session := protocol.SessionID("session-" + strconv.Itoa(i))
			numbers[i], _ = f.Call(t.Context(), table, session, "reserve_number", `{"series":"orders"}`) // the outcome tells
		})
	}
	group.Wait()
	seen := map[string]bool{}
	for _, outcome := range numbers {
		require.Nil(t, outcome.Error)
		seen[outcome.Text] = true
	}
	require.Len(t, seen, n)
	require.Contains(t, seen, strconv.Itoa(n))
	refused := call(t, f, table, "reserve_number", `{"series":"../x"}`)
	require.Equal(t, protocol.CodeInvalidArguments, refused.Error.Code)
}

// TestTools_FilesBelongToAManifest keeps the folder free of what no tool uses.
func TestTools_FilesBelongToAManifest(t *testing.T) {
	t.Parallel()
	entries, err := os.ReadDir("tools")
	require.NoError(t, err)
	var all []byte
	for _, entry := range entries {
		if filepath.Ext(entry.Name()) == ".yaml" {
			content, err := os.ReadFile(filepath.Join("tools", entry.Name()))
			require.NoError(t, err)
			all = append(all, content...)
		}
	}
	for _, entry := range entries {
		if filepath.Ext(entry.Name()) != ".yaml" {
			require.Contains(t, string(all), entry.Name())
		}
	}
}
