package lane

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// While the server is away a lane tries the same things many times a second, and some of what it does needs no server.
func TestHeld_TroubleIsLoggedOnceUntilItIsOver(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	l := &held{holder: &Holder{options: Options{Logger: slog.New(slog.NewTextHandler(&log, nil))}}, ctx: t.Context()}
	away := errors.New("away")
	for range 10 {
		l.over(mailboxTrouble)
		l.complain(releaseTrouble, away)
	}
	require.Equal(t, 1, strings.Count(log.String(), releaseTrouble))
	l.over(releaseTrouble)
	l.complain(releaseTrouble, away)
	require.Equal(t, 2, strings.Count(log.String(), releaseTrouble))
}
