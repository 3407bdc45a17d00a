package render_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/modeltext/render"
	"github.com/toolfleet/toolfleet/internal/wire"
)

// Brackets of a path are shown, to people and to models.
func TestMerge_PathsAreWhole(t *testing.T) {
	t.Parallel()
	result := wire.WorkspaceMergeResult{Written: []string{"app/[id]"}}
	require.Equal(t, "Merged into the workspace:\nchanged: app/[id]", render.MergeText(result))
	require.Equal(t, "[Merged into the workspace:\nchanged: app/[id]]", render.Merge(result))
}
