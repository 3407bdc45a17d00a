package docs_test

import (
	"bytes"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestCoordinator_UsesThePublicClient: cmd/coordinator does with a fleet what the public client,
// pkg/fleet, can do. Some files import packages of the engine, or use the fleet behind the client
// ([environment.Environment].Fleet). Take a file off the list when it no longer does; add none.
func TestCoordinator_UsesThePublicClient(t *testing.T) {
	t.Parallel()
	engine := []string{"approval", "dispatch", "fleet", "journal", "lane", "lane/operator", "limits", "natsio", "schedule", "session", "workspace"}
	allowed := []string{
		"bench.go",      // measures the engine itself
		"call.go",       // judges a call before it opens a fleet, which a refused one needs not; reports its waits
		"call_batch.go", // sends all calls in one step, and reports their waits, which futures do not
		"context.go",    // contexts of NATS, for each command
		"mcp.go",        // is a server: its sessions are processes of clients
		"run.go",        // aborts the worker in this process, binds a model's limits, lists as tools.go
		"serve.go",      // is a part of the fleet, not a client of it
		"tools.go",      // reports what MCP servers wait for to start, which Client.ServerTools does not
	}
	files, err := filepath.Glob("../../cmd/coordinator/*.go")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	found := map[string]bool{}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		content, err := os.ReadFile(name)
		require.NoError(t, err)
		if bytes.Contains(content, []byte("env.Fleet")) {
			found[filepath.Base(name)] = true
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, content, parser.ImportsOnly)
		require.NoError(t, err)
		for _, spec := range file.Imports {
			imported, err := strconv.Unquote(spec.Path.Value)
			require.NoError(t, err)
			if slices.Contains(engine, strings.TrimPrefix(imported, "github.com/toolfleet/toolfleet/internal/")) {
				found[filepath.Base(name)] = true
			}
		}
	}
	require.Equal(t, slices.Sorted(slices.Values(allowed)), slices.Sorted(maps.Keys(found)))
}
