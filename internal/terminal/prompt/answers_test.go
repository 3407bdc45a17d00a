package prompt

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
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

// A session asks for one approval at a time; what a running call asks meanwhile stays.
func TestAnswers_AnApprovalReplacesAnApproval(t *testing.T) {
	t.Parallel()
	p := &Prompt{always: map[string]bool{}, asking: make(chan struct{}, 1), wanted: make(chan struct{})}
	p.asking <- struct{}{} // a question is shown
	question, answered := context.WithCancel(t.Context())
	a := &Answers{prompt: p, open: map[protocol.CallID]context.CancelFunc{"question": answered}}
	for _, call := range []protocol.CallID{"one", "two"} {
		a.Observe(t.Context(), loop.Event{Type: loop.EventApprovalAsked, CallFields: loop.CallFields{CallID: call, Name: "bash"}})
	}
	require.NoError(t, question.Err())
	require.Contains(t, a.open, protocol.CallID("two"))
	require.NotContains(t, a.open, protocol.CallID("one"))
	a.Close()
	require.Error(t, question.Err())
}
