package lane

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/natsio/natsiotest"
)

// While the server is away many lanes try the same things many times a second. What is cancelled is
// no trouble.
func TestTroubles_EachKindIsLoggedOnceAMinute(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		all := &retryLog{logger: slog.New(slog.NewTextHandler(&log, nil))}
		cancelled, cancel := context.WithCancel(t.Context())
		cancel()
		all.log(cancelled, "one")
		require.Empty(t, log.String())
		for range 90 {
			for range 3 {
				all.log(t.Context(), "one", slog.String("error", "away"))
				all.log(t.Context(), "other")
			}
			time.Sleep(time.Second)
		}
		require.Equal(t, 4, strings.Count(log.String(), "\n"))
		require.Equal(t, 2, strings.Count(log.String(), `msg=one error=away`))
	})
}

// Each of the requests that wait at the server fails when its consumer is away.
func TestHolder_PullTroubleIsLoggedOnceAndSaysWhatHappened(t *testing.T) {
	t.Parallel()
	f := natsiotest.New(t, natsio.Topology{})
	var log bytes.Buffer
	nc := f.Connect()
	t.Cleanup(nc.Close)
	h, err := NewHolder(t.Context(), nc, nil, Options{Worker: "w", Logger: slog.New(slog.NewTextHandler(&log, nil))})
	require.NoError(t, err)
	for range 10 {
		h.onPullError(errNoConsumer)
	}
	require.Equal(t, 1, strings.Count(log.String(), "\n"), log.String())
	require.Contains(t, log.String(), `msg="pull request failed" pool=default error="the pool's consumer does not answer"`)

	nc.Close()
	log.Reset()
	for range 10 {
		h.onPullError(errors.New("server shutdown"))
	}
	require.Equal(t, 1, strings.Count(log.String(), "\n"), log.String())
	require.Contains(t, log.String(), `msg="consumer cannot be checked" pool=default error=`)
	require.Contains(t, log.String(), "connection closed")
}
