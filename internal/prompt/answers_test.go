package prompt

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/pkg/loop"
)

// The last events of a turn may come while whoever followed it leaves.
func TestAnswers_NothingIsAskedAfterTheEnd(t *testing.T) {
	t.Parallel()
	asked := 0
	a := &Answers{report: func(string) { asked++ }}
	question := loop.Event{Type: loop.EventApprovalAsked, CallFields: loop.CallFields{Name: "bash"}, Text: "look"}
	a.Observe(t.Context(), question)
	require.Equal(t, 1, asked)
	a.Close()
	a.Observe(t.Context(), question)
	require.Equal(t, 1, asked)
}
