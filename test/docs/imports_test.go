package docs_test

import (
	"go/parser"
	"go/token"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestCoordinator_UsesThePublicClient: files of cmd/coordinator import packages of the engine only
// where the public client, pkg/fleet, does not have what they need yet. Take a file off the list
// when it needs no such package any more; add none.
func TestCoordinator_UsesThePublicClient(t *testing.T) {
	t.Parallel()
	engine := []string{"approval", "dispatch", "fleet", "journal", "lane", "lane/operator", "limits", "natsio", "schedule", "session", "workspace"}
	allowed := []string{
		"approve.go", "call.go", "call_batch.go", "compact.go", "mcp.go", "run.go", "serve.go",
		"session.go", "session_attach.go", "session_change.go", "session_files.go", "session_show.go", "submit.go",
		"tools.go", "view.go",
		"bench.go",   // measures the engine itself
		"context.go", // contexts of NATS, for each command
	}
	files, err := filepath.Glob("../../cmd/coordinator/*.go")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	found := map[string]bool{}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ImportsOnly)
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
