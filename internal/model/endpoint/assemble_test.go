package endpoint_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/model/endpoint"
	"github.com/toolfleet/toolfleet/pkg/loop"
)

// Calls are passed on in their order once they are complete, which the last one of a stream is only
// at the end. Nothing is passed on behind one that may be another in the reply.
func TestAssembler_EmitsCallsThatAreComplete(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		pieces []endpoint.CallPiece
		want   []string // ids after each piece
	}{
		"in order": {
			[]endpoint.CallPiece{{0, "a", "bash", `{"x":`}, {0, "", "", `1}`}, {1, "b", "bash", `{}`}, {2, "c", "bash", `{`}, {2, "", "", `}`}},
			[]string{"", "", "a", "ab", "ab"},
		},
		"no id":         {[]endpoint.CallPiece{{0, "", "bash", `{}`}, {1, "b", "bash", `{}`}, {2, "c", "bash", `{}`}}, []string{"", "", ""}},
		"an id twice":   {[]endpoint.CallPiece{{0, "a", "bash", `{}`}, {1, "a", "bash", `{}`}, {2, "c", "bash", `{}`}}, []string{"", "a", "a"}},
		"not whole yet": {[]endpoint.CallPiece{{0, "a", "bash", `{`}, {1, "b", "bash", `{}`}, {0, "", "", `}`}, {2, "c", "bash", `{}`}}, []string{"", "", "", ""}},
		"no arguments":  {[]endpoint.CallPiece{{0, "a", "now", ``}, {1, "b", "bash", `{}`}}, []string{"", ""}},
	} {
		var parts endpoint.Assembler
		reported := ""
		for i, piece := range test.pieces {
			parts.AddCall(piece)
			parts.Emit(func(d loop.Delta) {
				require.Equal(t, len(reported), d.Index, name)
				reported += d.Call.ID
			})
			require.Equal(t, test.want[i], reported, "%s: piece %d", name, i)
		}
		for i, call := range parts.Reply().ToolCalls[:len(reported)] {
			require.Equal(t, reported[i:i+1], call.ID, name)
		}
	}
}
