package lane

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestBacklog_OneMakesWayForOne(t *testing.T) {
	t.Parallel()
	now := time.Now()
	var c backlog
	step := func(after time.Duration) (waits, ask bool) {
		now = now.Add(after)
		return c.next(now)
	}
	expect := func(after time.Duration, waits, ask bool, why string) {
		t.Helper()
		haveWaits, haveAsk := step(after)
		require.Equal(t, []bool{waits, ask}, []bool{haveWaits, haveAsk}, why)
	}
	answer := func(waiting int) { c.waiting, c.told, c.asked = waiting, now, time.Time{} }
	expect(0, false, true, "the server knows")
	expect(time.Millisecond, false, false, "asked already")
	answer(2)
	expect(0, true, false, "the first that waits")
	expect(0, true, false, "the second")
	expect(0, false, false, "there are no more")
	expect(backlogFresh, false, true, "that was long ago")
	answer(0)
	expect(0, false, false, "nobody waits")
	expect(backlogFresh, false, true, "that was long ago")
	expect(backlogWait, true, true, "without an answer one may wait")
	expect(time.Millisecond, false, false, "and is asked for again")
}

func TestReadBacklog(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		body string
		held int
		want int
		ok   bool
	}{
		"nothing waits":                {`{"name":"p","num_ack_pending":4}`, 4, 0, true},
		"never delivered":              {`{"name":"p","num_pending":3,"num_ack_pending":4}`, 4, 3, true},
		"handed back, or held by some": {`{"name":"p","num_ack_pending":9}`, 4, 5, true},
		"just taken":                   {`{"name":"p","num_ack_pending":3}`, 4, 0, true},
		"another has room":             {`{"name":"p","num_pending":3,"num_ack_pending":9,"num_waiting":1}`, 4, 0, true},
		"no consumer":                  {`{"error":{"code":404}}`, 4, 0, false},
		"no answer":                    {``, 4, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			waiting, ok := readBacklog([]byte(test.body), test.held)
			require.Equal(t, test.want, waiting)
			require.Equal(t, test.ok, ok)
		})
	}
}
