package examples_test

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
	"github.com/toolfleet/toolfleet/pkg/tools"
	"github.com/toolfleet/toolfleet/pkg/tools/manifest"
	"github.com/toolfleet/toolfleet/pkg/tools/toolset"
)

// toolsFleet is a fleet with the tools of the example folder.
func toolsFleet(t *testing.T, driver string) (*fleet.Fleet, *tools.Table) {
	t.Helper()
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skip("python3 is not installed, and the tools are Python programs")
	}
	folder, err := manifest.Open("tools")
	require.NoError(t, err)
	set := folder.Load(coreNames()...)
	require.Empty(t, set.Problems)
	table, err := tools.NewTable(append(toolset.Core(), set.Tools...)...)
	require.NoError(t, err)
	f, err := fleet.Connect(t.Context(), nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, f.Close()) })
	err = f.StartWorker(t.Context(), &fleet.WorkerOptions{Sandbox: driver, Tools: folder.Dir()})
	if errors.Is(err, sandbox.ErrLevel) {
		t.Skipf("no sandbox driver isolates here: %v", err)
	}
	require.NoError(t, err)
	return f, table
}

func coreNames() []string {
	var names []string
	for _, tool := range toolset.Core() {
		names = append(names, tool.Name)
	}
	return names
}

func call(t *testing.T, f *fleet.Fleet, table *tools.Table, tool, arguments string) fleet.Outcome {
	t.Helper()
	outcome, err := f.Call(t.Context(), table, "examples", tool, arguments, nil)
	require.NoError(t, err)
	return outcome
}

// TestTools_InEverySandbox: the folder is there without isolation, and where the sandbox
// has a root of its own.
func TestTools_InEverySandbox(t *testing.T) {
	t.Parallel()
	for _, driver := range []string{"process", "auto"} {
		t.Run(driver, func(t *testing.T) {
			t.Parallel()
			f, table := toolsFleet(t, driver)
			require.Nil(t, call(t, f, table, "write", `{"path":"a.txt","content":"the fox and the dog\nand the end\n"}`).Error)
			counted := call(t, f, table, "word_count", `{"path":"./a.txt","top":"2"}`)
			if driver != "process" && counted.Error != nil && counted.Error.Code == protocol.CodeCommandNotFound {
				t.Skip("python3 is installed where sandboxes do not see it")
			}
			require.Nil(t, counted.Error)
			require.JSONEq(t, `{"words":8,"lines":2,"top":[{"word":"the","count":3},{"word":"and","count":2}]}`, counted.Text)

			missing := call(t, f, table, "word_count", `{"path":"b.txt"}`)
			require.Equal(t, protocol.StatusFailed, missing.Status)
			require.Contains(t, missing.Text, "b.txt cannot be counted")
			escape := call(t, f, table, "word_count", `{"path":"/etc/passwd"}`)
			require.Equal(t, protocol.CodePathEscape, escape.Error.Code)

			digest := call(t, f, table, "digest", `{"text":"grüße"}`)
			require.Nil(t, digest.Error)
			require.Equal(t, fmt.Sprintf("%x", sha256.Sum256([]byte("grüße"))), digest.Text)
		})
	}
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
