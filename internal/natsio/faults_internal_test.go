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
	f := &faults{now: func() time.Time { return now }}
	require.True(t, f.news("refused"))
	require.False(t, f.news("refused"))
	require.True(t, f.news("slow"))
	now = now.Add(repeatEvery)
	require.True(t, f.news("refused"))
	for i := range 10 * maxFaults {
		require.True(t, f.news(strconv.Itoa(i)))
		require.LessOrEqual(t, len(f.next), maxFaults)
	}
}
