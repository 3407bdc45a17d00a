package lane

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Guard: an answer to a renewal confirms a lease only while it is trusted, because JetStream
// answers whoever asks. A process that slept finds such answers when it wakes.
func TestFact_LateAnswerIsNoRenewal(t *testing.T) {
	t.Parallel()
	now := time.Now()
	slept := lease{length: 10 * time.Second, since: now.Add(-11 * time.Second)}
	slept.confirm(now.Add(-7*time.Second), "") // sent in time; somebody else has claimed the lane meanwhile
	require.False(t, slept.trusted(now))
	awake := lease{length: 10 * time.Second, since: now.Add(-7 * time.Second)}
	awake.confirm(now.Add(-time.Second), "")
	require.True(t, awake.trusted(now.Add(6*time.Second)), "from when the renewal was sent")
	require.False(t, awake.trusted(now.Add(7*time.Second+time.Millisecond)), "not from when it was answered")
}

// Guard: a server on its own may die before it has written a renewal down. Then the lease ends when the
// renewal before would have ended it.
func TestFact_RecentRenewalMayBeForgotten(t *testing.T) {
	t.Parallel()
	now := time.Now()
	l := lease{length: 10 * time.Second, since: now.Add(-5 * time.Second)}
	l.confirm(now.Add(-200*time.Millisecond), "")
	require.True(t, l.trusted(now.Add(4*time.Second)))
	l.doubt(now.Add(-forgetful))
	require.True(t, l.trusted(now.Add(2*time.Second)))
	require.False(t, l.trusted(now.Add(4*time.Second)))
	l.confirm(now.Add(-100*time.Millisecond), "")
	require.True(t, l.trusted(now.Add(4*time.Second)), "renewed at the server as it runs now")

	short := lease{length: 2 * time.Second, since: now.Add(-900 * time.Millisecond)}
	short.confirm(now.Add(-100*time.Millisecond), "")
	short.doubt(now.Add(-forgetful))
	require.False(t, short.trusted(now), "nothing of it is surely known")
}
