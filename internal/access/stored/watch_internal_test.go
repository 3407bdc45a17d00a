package stored

import (
	"encoding/hex"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/access"
)

// A server that cannot read the tokens any more lets no client in, and one that answers from an
// older state brings back no removed token.
func TestWatch_KnowsNothingByOldState(t *testing.T) {
	t.Parallel()
	w := NewWatch(Store{}, slog.New(slog.DiscardHandler))
	digest := access.DigestOf("secret")
	list := []entry{{Token: Token{ID: "a", Name: "a", Role: "run", Expires: time.Now().Add(time.Hour)}, SHA256: hex.EncodeToString(digest[:])}}
	now := time.Now()
	apply := func(list []entry, revision uint64, stored time.Time) {
		w.apply(t.Context(), list, revision, stored, time.Now())
	}
	verify := func() error { _, err := w.Verify(t.Context(), "secret"); return err }
	apply(list, 7, now)
	require.NoError(t, verify())
	apply(nil, 8, now.Add(time.Second))
	require.ErrorIs(t, verify(), access.ErrUnknown)
	apply(list, 7, now)
	require.ErrorIs(t, verify(), access.ErrUnknown, "of a server that is behind")
	apply(list, 1, now.Add(2*time.Second))
	require.NoError(t, verify(), "of a stream that was made again")
	w.read = w.read.Add(-freshFor - time.Second)
	require.ErrorIs(t, verify(), errUnread)
}
