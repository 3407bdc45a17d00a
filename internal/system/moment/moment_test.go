package moment

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestParse_ReadsDaysAndTimes(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 12, 1, 7, 0, 0, 0, time.UTC)
	for text, ago := range map[string]time.Duration{"15m": 15 * time.Minute, "7d": 7 * day, "0.5d": 12 * time.Hour, "1d12h": 36 * time.Hour, "30d": 30 * day} {
		m, err := Parse(text)
		require.NoError(t, err, text)
		require.Equal(t, now.Add(-ago), m.Before(now), text)
		require.Equal(t, now.Add(ago), m.After(now), text)
	}
	m, err := Parse("2026-11-30T08:00:00+01:00")
	require.NoError(t, err)
	require.Equal(t, now.Add(-day), m.Before(now))
	require.Equal(t, now.Add(-day), m.After(now))
	m, err = Parse("0s")
	require.NoError(t, err)
	require.True(t, m.Before(now).IsZero())
	for _, since := range Sinces() {
		_, err := Parse(since)
		require.NoError(t, err, since)
	}
	for _, bad := range []string{"", "d", "-7d", "-1h", "7", "1w", "yesterday", "1d25h", "1d-1h", "999999999999d", "1e9d", "2026-11-30"} {
		_, err := Parse(bad)
		require.ErrorContains(t, err, "must", bad)
	}
}
