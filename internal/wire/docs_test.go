package wire_test

import (
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// TestDocs_WireNamesEveryField of those bodies that docs/wire.md describes field by field.
func TestDocs_WireNamesEveryField(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/wire.md")
	require.NoError(t, err)
	for paragraph, bodies := range map[string][]any{
		"Turns": {wire.TurnRun{}, protocol.InstructionFile{}, protocol.Author{}, wire.TurnRunResult{}},
		"MCP servers": {
			protocol.MCPServer{},
			protocol.MCPClient{},
			wire.MCPList{},
			wire.MCPListResult{},
			wire.MCPTool{},
			protocol.MCPCall{},
			protocol.MCPCallResult{},
			protocol.MCPContent{},
		},
	} {
		_, after, found := strings.Cut(string(page), "\n**"+paragraph+".** ")
		require.True(t, found, paragraph)
		text, _, _ := strings.Cut(after, "\n**")
		for _, body := range bodies {
			for _, field := range reflect.VisibleFields(reflect.TypeOf(body)) {
				if field.Anonymous { // its fields are visible themselves
					continue
				}
				name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
				require.Contains(t, text, "`"+name+"`", "docs/wire.md, %s: %T", paragraph, body)
			}
		}
	}
}
