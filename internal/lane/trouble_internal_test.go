package lane

import (
	"bytes"
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

// While the server is away lanes try the same things many times a second, and some of what they do
// needs no server.
func TestTroubles_AreLoggedWhenTheyBeginAndWhenTheyAreOver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		all := &troubles{logger: slog.New(slog.NewTextHandler(&log, nil))}
		logged := func(text string) int { return strings.Count(log.String(), text) }
		for range 10 {
			for lane := range 3 {
				all.end(t.Context(), mailboxTrouble, lane, false)
				all.begin(t.Context(), releaseTrouble, lane, slog.String("error", "away"))
			}
			time.Sleep(time.Second)
		}
		all.end(t.Context(), releaseTrouble, 0, true)
		all.end(t.Context(), releaseTrouble, 1, false)
		all.end(t.Context(), releaseTrouble, 1, false)
		require.Equal(t, 1, logged("\n"), "the third lane has it still")
		require.Equal(t, 1, logged(`msg="`+releaseTrouble+`" error=away`))
		all.end(t.Context(), releaseTrouble, 2, false)
		require.Equal(t, 2, logged("\n"))
		require.Equal(t, 1, logged(`msg="trouble is over" trouble="`+releaseTrouble+`" lasted=10s met=3 lost=1`))

		for range 10 { // it comes and goes
			all.begin(t.Context(), releaseTrouble, 0)
			all.end(t.Context(), releaseTrouble, 0, false)
		}
		require.Equal(t, 2, logged("\n"))
		for range 120 { // it stays
			all.begin(t.Context(), releaseTrouble, 0)
			time.Sleep(time.Second)
		}
		require.Equal(t, 3, logged("\n"))
		all.end(t.Context(), releaseTrouble, 0, false)
		require.Equal(t, 1, logged("lasted=2m0s met=1 lost=0"))
		all.begin(t.Context(), releaseTrouble, 0)
		require.Equal(t, 5, logged("\n"), "the next one is told at once")
		all.end(t.Context(), releaseTrouble, 0, true)
		require.Equal(t, 1, logged("trouble has ended with its lanes"), "nothing has succeeded")
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
		h.pullFault(errNoConsumer)
	}
	require.Equal(t, 1, strings.Count(log.String(), "\n"), log.String())
	require.Contains(t, log.String(), `msg="pull request failed" pool=default error="the pool's consumer does not answer"`)

	nc.Close()
	log.Reset()
	for range 10 {
		h.pullFault(errors.New("server shutdown"))
	}
	require.Equal(t, 1, strings.Count(log.String(), "\n"), log.String())
	require.Contains(t, log.String(), `msg="consumer cannot be checked" pool=default error=`)
	require.Contains(t, log.String(), "connection closed")
	h.pullEnded()
	require.Contains(t, log.String(), `msg="trouble is over" trouble="pull request failed" lasted=`)
	require.Contains(t, log.String(), `msg="trouble is over" trouble="consumer cannot be checked" lasted=`)
}
