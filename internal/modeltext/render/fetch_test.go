package render_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/modeltext/render"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// TestFetch_WithoutText: a page whose text only scripts would make is no binary.
func TestFetch_WithoutText(t *testing.T) {
	t.Parallel()
	text := func(v protocol.HTTPFetchResult) string {
		v.Status, v.Bytes = 200, 9
		return render.Cut(render.Fetch)(&protocol.Result{Status: protocol.StatusOK, Value: v})
	}
	require.Contains(t, text(protocol.HTTPFetchResult{MediaType: "text/html"}), "the page has no visible text: raw returns its HTML]")
	for _, v := range []protocol.HTTPFetchResult{
		{MediaType: "application/zip"},
		{MediaType: "text/html", Headers: map[string]string{"Content-Encoding": "br"}},
	} {
		require.Contains(t, text(v), "not text: not shown]")
	}
}

// Brackets of a path are shown, to people and to models.
func TestMerge_PathsAreWhole(t *testing.T) {
	t.Parallel()
	result := wire.WorkspaceMergeResult{Written: []string{"app/[id]"}}
	require.Equal(t, "Merged into the workspace:\nchanged: app/[id]", render.MergeText(result))
	require.Equal(t, "[Merged into the workspace:\nchanged: app/[id]]", render.Merge(result))
}
