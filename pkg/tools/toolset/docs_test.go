package toolset_test

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/pkg/tools/toolset"
)

// The page about the tools has a row for each, with every argument.
func TestDocs_EveryToolAndArgument(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../../docs/tools.md")
	require.NoError(t, err)
	core, others, found := strings.Cut(string(page), "## Toolsets of other systems")
	require.True(t, found)
	for _, set := range toolset.Names() {
		require.Contains(t, string(page), "`"+set+"`")
		section := others
		if strings.HasPrefix(set, "core") {
			section = core
		}
		for _, definition := range setTable(t, set).Definitions() {
			var schema struct {
				Properties map[string]any `json:"properties"`
			}
			require.NoError(t, json.Unmarshal(definition.Schema, &schema))
			rows := ""
			for line := range strings.Lines(section) {
				if strings.HasPrefix(line, "|") && strings.Contains(line, "| `"+definition.Name+"` |") {
					rows += line
				}
			}
			require.NotEmpty(t, rows, "no row for %s of %s", definition.Name, set)
			for property := range schema.Properties {
				require.Contains(t, rows, "`"+property+"`", "%s of %s", definition.Name, set)
			}
		}
	}
}
