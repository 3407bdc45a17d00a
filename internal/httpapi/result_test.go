package httpapi_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/httpapi"
	"github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools/policy"
)

// The hooks of a tool decide what is read of its results, and of those of calls that name no tool
// of the table: hooks may have judged such a call as one of their tool, as the reading of a
// resource is judged.
func TestResultOf_HooksOfOtherNames(t *testing.T) {
	t.Parallel()
	o := httpapi.Options{Hooks: []loop.Hook{{
		Event: loop.HookAfter, Matches: func(tool string) bool { return tool == "read" },
		Run: func(context.Context, loop.HookRequest) (loop.HookAnswer, error) {
			return loop.HookAnswer{Decision: policy.Denied, Reason: "private"}, nil
		},
	}}}
	for tool, digest := range map[string]string{"resources/read": "", "": "", "read": "d"} {
		made, err := httpapi.ResultOf(t.Context(), o, fleet.Result{
			Result: protocol.Result{SessionID: "s", CallID: "c", Tool: tool, Digest: digest, Status: protocol.StatusOK, Value: protocol.FilesReadResult{}}, Text: "secret",
		})
		require.NoError(t, err)
		require.Contains(t, made.Text, "private", tool)
		require.Nil(t, made.Value, tool)
		require.Equal(t, tool, made.Tool)
	}
}
