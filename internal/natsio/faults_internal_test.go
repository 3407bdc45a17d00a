package natsio

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestFaults_AreLoggedOnceAMinute(t *testing.T) {
	t.Parallel()
	now := time.Unix(0, 0)
	f := &connectionErrors{now: func() time.Time { return now }}
	require.True(t, f.isDue("refused"))
	require.False(t, f.isDue("refused"))
	require.True(t, f.isDue("slow"))
	now = now.Add(repeatEvery)
	require.True(t, f.isDue("refused"))
	for i := range 10 * maxRemembered {
		require.True(t, f.isDue(strconv.Itoa(i)))
		require.LessOrEqual(t, len(f.next), maxRemembered)
	}
}
