package examples_test

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
	"github.com/toolfleet/toolfleet/pkg/tools/manifest"
	"github.com/toolfleet/toolfleet/pkg/tools/toolset"
	"github.com/toolfleet/toolfleet/pkg/worker"
)

// toolsFleet is a fleet with the tools of the example folder.
func toolsFleet(t *testing.T, driver string) (*fleet.Client, *tools.Table) {
	t.Helper()
	f, folder := folderFleet(t, driver, "tools")
	set := folder.Load(coreNames()...)
	require.Empty(t, set.Problems)
	table, err := tools.NewTable(append(toolset.Core(), set.Tools...)...)
	require.NoError(t, err)
	return f, table
}

// folderFleet is a fleet whose worker has a folder of examples.
func folderFleet(t *testing.T, driver, name string) (*fleet.Client, *manifest.Folder) {
	t.Helper()
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skip("python3 is not installed, and the tools are Python programs")
	}
	folder, err := manifest.Open(name)
	require.NoError(t, err)
	f, err := fleet.Connect(t.Context(), fleet.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, f.Close()) })
	_, err = f.StartWorker(t.Context(), worker.Options{Driver: driver, Tools: folder.Dir()})
	if errors.Is(err, isolation.ErrLevel) {
		t.Skipf("no sandbox driver isolates here: %v", err)
	}
	require.NoError(t, err)
	return f, folder
}

func coreNames() []string {
	var names []string
	for _, tool := range toolset.Core() {
		names = append(names, tool.Name)
	}
	return names
}

func call(t *testing.T, f *fleet.Client, table *tools.Table, tool, arguments string) fleet.Result {
	t.Helper()
	outcome, err := f.Call(t.Context(), fleet.Call{Table: table, Session: "examples", Tool: tool, Arguments: arguments})
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
			require.Equal(t, codes.PathEscape, escape.Error.Code)

			digest := call(t, f, table, "digest", `{"text":"grüße"}`)
			require.Nil(t, digest.Error)
			require.Equal(t, fmt.Sprintf("%x", sha256.Sum256([]byte("grüße"))), digest.Text)
		})
	}
}

// TestServers_InEverySandbox: the program of a server is in the folder, and its tools are used as
// the manifest says.
func TestServers_InEverySandbox(t *testing.T) {
	t.Parallel()
	for _, driver := range []string{"process", "auto"} {
		t.Run(driver, func(t *testing.T) {
			t.Parallel()
			f, folder := folderFleet(t, driver, "servers")
			set := folder.Load()
			require.Empty(t, set.Problems)
			made, problems, err := f.ServerTools(t.Context(), "examples", set.Servers, nil)
			require.NoError(t, err)
			if driver != "process" && len(problems) == 1 && strings.Contains(problems[0].Error(), string(protocol.CodeCommandNotFound)) {
				t.Skip("python3 is installed where sandboxes do not see it")
			}
			require.Empty(t, problems)
			table, err := tools.NewTable(made...)
			require.NoError(t, err)
			require.Equal(t, []string{"todo__add", "todo__show"}, table.Names())
			_, plan, refusal := table.Plan(tools.Scope{Session: "examples", Sandbox: "examples"}, "todo__add", `{"path":"a/../b.md","item":"x"}`)
			require.Nil(t, refusal)
			require.Equal(t, []protocol.Use{{Key: "sandbox/examples/b.md", Access: protocol.Exclusive}}, plan.Resources)
			require.Equal(t, protocol.AtMostOnce, plan.Delivery)
			require.Equal(t, "1 added in this session", call(t, f, table, "todo__add", `{"path":"b.md","item":"one"}`).Text)
			require.Equal(t, "2 added in this session", call(t, f, table, "todo__add", `{"path":"b.md","item":"two"}`).Text)
			require.Equal(t, "- [ ] one\n- [ ] two", call(t, f, table, "todo__show", `{"path":"b.md"}`).Text)
			require.Contains(t, call(t, f, table, "todo__show", `{"path":"c.md"}`).Text, "No such file")
		})
	}
}

// TestTools_FilesBelongToAManifest keeps the folders free of what no tool uses.
func TestTools_FilesBelongToAManifest(t *testing.T) {
	t.Parallel()
	for _, folder := range []string{"tools", "servers"} {
		entries, err := os.ReadDir(folder)
		require.NoError(t, err)
		var all []byte
		for _, entry := range entries {
			if filepath.Ext(entry.Name()) == ".yaml" {
				content, err := os.ReadFile(filepath.Join(folder, entry.Name()))
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
}
