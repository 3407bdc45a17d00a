package lane

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// What is older than a consumer that was made again may have been handed out by the one before.
func TestBooks_AConsumerThatIsMadeAgain(t *testing.T) {
	t.Parallel()
	var b books
	now := time.Now()
	require.False(t, b.remade("first", now))
	require.False(t, b.remade("first", now))
	require.Equal(t, doubtNothing, b.doubtConsumer(time.Hour, now), "it waited for a worker")
	require.True(t, b.remade(gone, now.Add(time.Minute)))
	require.True(t, b.remade("first", now.Add(2*time.Minute)), "of a backup")
	now = now.Add(3 * time.Minute)
	require.Equal(t, doubtStarted, b.doubtConsumer(time.Hour, now))
	require.Equal(t, doubtNothing, b.doubtConsumer(time.Second, now))
}

func TestReadMade(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ answer, want string }{
		"a consumer":         {`{"created":"2026-01-02T03:04:05.000000006Z"}`, "2026-01-02 03:04:05.000000006 +0000 UTC"},
		"none":               {`{"error":{"code":404,"err_code":10014}}`, gone},
		"nor a stream":       {`{"error":{"code":404,"err_code":10059}}`, gone},
		"another fault":      {`{"error":{"code":503,"err_code":10008}}`, unknown},
		"no time":            {`{"created":"0001-01-01T00:00:00Z"}`, unknown},
		"nothing of a kind":  {``, unknown},
		"nobody, as nothing": {`{}`, unknown},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, test.want, readMade([]byte(test.answer)))
		})
	}
}
