package mcpserver

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// TestAnswers_AreUsedOnce, at the bound of what is known and beyond it, and one principal's are
// nothing to another's.
func TestAnswers_AreUsedOnce(t *testing.T) {
	t.Parallel()
	now := time.Now()
	question := func(n int, ends time.Duration) questionState {
		return questionState{Kind: askApproval, Call: protocol.CallID(fmt.Sprint(n)), Ends: now.Add(ends)}
	}
	var a answers
	for n := range maxAnswers {
		require.NoError(t, a.use("ada", question(n, time.Minute), now))
	}
	require.Equal(t, errState, a.use("ada", question(0, time.Minute), now), "used")
	require.Equal(t, errAnswers, a.use("ada", question(maxAnswers, time.Minute), now), "one more")
	require.NoError(t, a.use("bob", question(maxAnswers, time.Minute), now))
	later := now.Add(2 * time.Minute)
	require.Equal(t, errState, a.use("ada", question(1, time.Minute), later), "its time has passed")
	require.NoError(t, a.use("ada", question(maxAnswers+1, 3*time.Minute), later), "there is room again")
	require.Len(t, a.of["ada"].ends, 1)
	require.Equal(t, errState, a.use("ada", question(1, time.Minute), now), "the clock was set back, and nobody knows that it was used")
	require.Equal(t, errState, a.use("ada", question(maxAnswers+1, 3*time.Minute), now))
	require.NoError(t, a.use("ada", question(maxAnswers+2, 5*time.Minute), now))
}
