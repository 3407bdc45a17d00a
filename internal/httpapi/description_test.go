package httpapi_test

import (
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
