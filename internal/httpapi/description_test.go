package httpapi_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/httpapi"
)

func TestDescription_IsKept(t *testing.T) {
	t.Parallel()
	text, err := httpapi.Description("1")
	require.NoError(t, err)
	file := filepath.Join("..", "..", "docs", "openapi.json")
	if os.Getenv("UPDATE") != "" {
		require.NoError(t, os.WriteFile(file, append(text, '\n'), 0o644))
	}
	kept, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, string(kept), string(text)+"\n")
}

// What a request must have is in its example, which test/integration sends to a server: they are in
// description.go.
func TestDescription_HasExamples(t *testing.T) {
	t.Parallel()
	text, err := httpapi.Description("1")
	require.NoError(t, err)
	var described struct {
		Tags []struct{ Name, Description string }

		Paths map[string]map[string]struct {
			ID         string `json:"operationId"` //nolint:tagliatelle // as OpenAPI names it
			Parameters []struct {
				Name     string
				Required bool
				Example  any
			}
			Body *struct {
				Content map[string]struct{ Example any }
			} `json:"requestBody"` //nolint:tagliatelle // as OpenAPI names it
		}
	}
	require.NoError(t, json.Unmarshal(text, &described))
	for _, tag := range described.Tags {
		require.NotEmpty(t, tag.Description, "groups in description.go have no text for %s", tag.Name)
	}
	for _, methods := range described.Paths {
		for _, op := range methods {
			for _, p := range op.Parameters {
				require.False(t, p.Required && p.Example == nil, "%s: %s has no example in description.go", op.ID, p.Name)
			}
			if op.Body != nil && op.ID != "unpack-archive" { // no text shows an archive
				for kind, content := range op.Body.Content {
					require.NotNil(t, content.Example, "%s: a body of type %s has no example in description.go", op.ID, kind)
				}
			}
		}
	}
}
