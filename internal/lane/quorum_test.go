package lane

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestReadLeadership(t *testing.T) {
	t.Parallel()
	const head = `{"name":"c","cluster":{"leader":"n1","leader_since":"2026-01-02T03:04:05Z","replicas":[`
	tests := map[string]struct {
		body          string
		heard, silent time.Duration
		ok            bool
	}{
		"the one that was heard last is enough":    {body: head + `{"current":true,"active":900},{"current":true,"active":100}]}}`, heard: 100, silent: 900, ok: true},
		"one that lags has not what was renewed":   {body: head + `{"current":true,"active":900},{"current":false,"active":100}]}}`, heard: 900, silent: 900, ok: true},
		"one that is offline was heard long ago":   {body: head + `{"current":true,"active":900},{"current":true,"offline":true,"active":0}]}}`, heard: 900, silent: never, ok: true},
		"nobody follows":                           {body: head + `{"current":false,"active":1},{"current":false,"active":1}]}}`, silent: 1},
		"one that was never heard of":              {body: head + `{"current":true,"active":1},{"current":false,"active":0}]}}`, heard: 1, silent: never, ok: true},
		"of five servers, two others":              {body: head + `{"current":true,"active":4},{"current":true,"active":1},{"current":true,"active":3},{"current":true,"active":2}]}}`, heard: 2, silent: 4, ok: true},
		"of two servers, the other":                {body: head + `{"current":true,"active":7}]}}`, heard: 7, silent: 7, ok: true},
		"a leader alone":                           {body: head + `]}}`, ok: true},
		"a server on its own, which has no leader": {body: `{"name":"c"}`, silent: never},
		"no consumer":                              {body: `{"error":{"code":404,"err_code":10014,"description":"consumer not found"}}`, silent: never},
		"no JSON":                                  {body: `x`, silent: never},
		"nothing":                                  {silent: never},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			by, heard, silent, ok := readLeadership([]byte(test.body))
			require.Equal(t, test.ok, ok)
			require.Equal(t, test.silent, silent)
			if ok {
				require.EqualValues(t, "n1 since 2026-01-02T03:04:05Z", by)
				require.Equal(t, test.heard, heard)
			}
		})
	}
}

// Guard: the leader of a cluster's consumer confirms a renewal before the other servers have it.
func TestFact_RenewalCountsOnceTheOthersHaveIt(t *testing.T) {
	t.Parallel()
	now := time.Now()
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	l := lease{length: 10 * time.Second, shared: true, since: ago(5 * time.Second)}
	end := 3 * time.Second // from now, as it is without a renewal
	l.confirm(ago(2*time.Second), "a")
	require.False(t, l.trusted(now.Add(end)), "confirmed, and no more")
	l.agreed(ago(2*time.Second), "a")
	require.False(t, l.trusted(now.Add(end)), "heard when the renewal may have been on its way")
	l.agreed(ago(time.Second), "a")
	require.True(t, l.trusted(now.Add(end)))
	require.False(t, l.trusted(now.Add(end+3*time.Second)), "from when it was sent")

	l.confirm(ago(500*time.Millisecond), "a")
	l.agreed(now, "b")
	l.agreed(now, "a")
	require.False(t, l.trusted(now.Add(end+3*time.Second)), "another leader may not know of it")
	require.True(t, l.due(now), "renewed at that one soon")
	l.confirm(ago(400*time.Millisecond), "")
	l.agreed(now, "b")
	require.False(t, l.trusted(now.Add(end+3*time.Second)), "who led when it was sent is not known")

	late := lease{length: 10 * time.Second, shared: true, since: ago(7 * time.Second)}
	late.confirm(ago(6*time.Second), "a")
	late.since = ago(9 * time.Second)
	late.agreed(now, "a")
	require.False(t, late.trusted(now), "an end that has come stays")
}

// Guard: a leader that stood still finds answers of the others from just before, and takes them for new.
func TestFact_ALeaderThatWasSilentIsNotBelievedAtOnce(t *testing.T) {
	t.Parallel()
	start := time.Now()
	at := func(seconds float64) time.Time { return start.Add(time.Duration(seconds * float64(time.Second))) }
	var c contact
	require.True(t, c.heard("a", at(0), at(0.1)))
	require.True(t, c.heard("a", at(2.5), at(3)), "no silence in which another could have been chosen")
	require.False(t, c.heard("a", at(3), at(7)), "asked in time, answered late")
	require.False(t, c.heard("a", at(6.9), at(7)))
	require.False(t, c.heard("a", at(9), at(9.4)))
	require.True(t, c.heard("a", at(9.4), at(9.6)), "by now it would know")
	require.True(t, c.heard("b", at(14), at(14)), "the next one knows what the others have")
	require.False(t, c.heard("b", at(20), at(20)))
	require.True(t, c.heard("c", at(20), at(20)))
}

// Guard: the next leader delivers at once what this one was heard to renew, unless a majority has the renewal.
func TestFact_ANewLeaderMayBeReplacedAtOnce(t *testing.T) {
	t.Parallel()
	start := time.Now()
	at := func(seconds float64) time.Time { return start.Add(time.Duration(seconds * float64(time.Second))) }
	var c contact
	require.False(t, c.settled(at(0)), "nothing is known yet")
	for s := range 12 {
		c.heard("a", at(float64(s)), at(float64(s)))
		require.Equal(t, s >= 10, c.settled(at(float64(s))), "after %d s", s)
	}
	require.False(t, c.settled(at(14.1)), "silence")
	for s := 15; s < 30; s++ {
		c.heard("a", at(float64(s)), at(float64(s)))
		require.Equal(t, s >= 25, c.settled(at(float64(s))), "after %d s", s)
	}
	c.heard("b", at(30), at(30))
	require.False(t, c.settled(at(30)))

	l := lease{length: 10 * time.Second, shared: true, since: time.Now().Add(-time.Second)}
	sent := time.Now().Add(-500 * time.Millisecond)
	l.confirm(sent, "a")
	require.False(t, l.counts(sent), "answered, and no more")
	l.agreed(time.Now(), "a")
	require.True(t, l.counts(sent))
}

// Guard: a leader that is well seems silent to whoever asks it seldom, as with a lease of a minute.
func TestFact_ALeaderIsAskedMoreOftenThanItMayBeSilent(t *testing.T) {
	t.Parallel()
	const heartbeat, late = time.Second, 200 * time.Millisecond
	for _, length := range []time.Duration{time.Second, 10 * time.Second, 40 * time.Second, time.Minute, time.Hour} {
		var c contact
		start := time.Now()
		for at := start; at.Before(start.Add(time.Minute)); at = at.Add(keeperPeriod(length)) {
			followed := at.Add(-at.Sub(start)%heartbeat - late)
			require.True(t, c.heard("a", followed, at), "lease of %s, after %s", length, at.Sub(start))
		}
		require.True(t, c.settled(start.Add(time.Minute)), "lease of %s", length)
	}
}

// Guard: a leader that was cut off or stood still answers from its own past until it hears of the one that the others have
// chosen. They need to have missed it for 4 s before.
func TestFact_WhoWasSilentMayAnswerFromItsPast(t *testing.T) {
	t.Parallel()
	start := time.Now()
	at := func(seconds float64) time.Time { return start.Add(time.Duration(seconds * float64(time.Second))) }
	var c contact
	require.False(t, c.calm(at(0)), "nothing is known yet")
	for s := 1; s < 10; s++ {
		c.watch("a", time.Second, at(float64(s)))
		require.Equal(t, s > 3, c.calm(at(float64(s))), "after %d s", s)
	}
	require.False(t, c.calm(at(11.1)), "no word of anybody")
	c.watch("a", time.Second, at(11.5))
	require.False(t, c.calm(at(13)), "meanwhile any of them may have been silent")
	c.watch("a", time.Second, at(13))
	require.True(t, c.calm(at(14)))
	c.watch("a", 2500*time.Millisecond, at(14.5))
	require.False(t, c.calm(at(14.5)))
	c.watch("a", 0, at(16))
	require.False(t, c.calm(at(16)), "it has only just come back")
	c.watch("a", 0, at(17))
	require.True(t, c.calm(at(17)))
	c.watch("b", 0, at(18))
	require.False(t, c.calm(at(18)), "another leader")
}
