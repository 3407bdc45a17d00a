package lane

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/lane/core"
	"github.com/toolfleet/toolfleet/internal/lane/store"
	"github.com/toolfleet/toolfleet/internal/natsio/natsiotest"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// toldMailbox is a mailbox in a cluster, all of which is told.
type toldMailbox struct {
	*mailbox
	t *testing.T
}

// newToldMailbox listens to a lane at the stream's leader.
func newToldMailbox(t *testing.T, c *natsiotest.Cluster, hash protocol.LaneHash) *toldMailbox {
	t.Helper()
	leader := -1
	require.Eventually(t, func() bool {
		leader = c.Leader(protocol.DefaultFleet.CallsStream())
		return leader >= 0
	}, 60*time.Second, 10*time.Millisecond, "no leader")
	s, err := store.Open(t.Context(), c.ConnectTo(leader), protocol.DefaultFleet)
	require.NoError(t, err)
	t.Cleanup(s.Replies.Close)
	m := &toldMailbox{mailbox: newMailbox(s, s.Fleet, protocol.DefaultPool, hash), t: t}
	t.Cleanup(m.close)
	require.True(t, m.listen())
	require.NoError(t, s.NC.Flush())
	m.requireNext() // from now on it is told
	return m
}

// put stores calls, and returns their sequences when the mailbox was told of as many as it waits
// for.
func (m *toldMailbox) put(ids ...protocol.CallID) (seqs []uint64) {
	m.t.Helper()
	before := m.waiting()
	for _, id := range ids {
		seq, answer, err := m.store.Publish(m.t.Context(), nats.NewMsg(m.fleet.CallSubject(m.pool, m.hash, id)))
		require.NoError(m.t, err)
		require.Equal(m.t, store.Accepted, answer)
		seqs = append(seqs, seq)
	}
	require.Eventually(m.t, func() bool { return m.waiting() >= before+len(ids) }, 60*time.Second, time.Millisecond, "not told")
	return seqs
}

func (m *toldMailbox) waiting() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.told)
}

// lose forgets what was told with a sequence, as if a route had lost it.
func (m *toldMailbox) lose(seq uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for i, l := range m.told {
		if l.Sequence == seq {
			m.told = append(m.told[:i], m.told[i+1:]...)
			return
		}
	}
}

// repeat tells once more, or too early, what has a sequence.
func (m *toldMailbox) repeat(seq uint64, id protocol.CallID) {
	msg := nats.NewMsg("told")
	msg.Header.Set("Nats-Sequence", strconv.FormatUint(seq, 10))
	msg.Header.Set("Nats-Time-Stamp", time.Now().UTC().Format(time.RFC3339Nano))
	msg.Header.Set("Nats-Subject", m.fleet.CallSubject(m.pool, m.hash, id))
	m.tell(msg)
}

// requireNext reads the whole mailbox, and returns how many questions that took.
func (m *toldMailbox) requireNext(want ...uint64) (questions uint64) {
	m.t.Helper()
	before := m.store.NC.Stats().OutMsgs
	var got []uint64
	for {
		l, err := m.next(m.t.Context())
		require.NoError(m.t, err)
		if l == nil {
			break
		}
		got = append(got, l.Sequence)
	}
	require.Equal(m.t, want, got)
	return m.store.NC.Stats().OutMsgs - before
}

func TestCluster_WhatWasToldIsMadeSureOfTogether(t *testing.T) {
	t.Parallel()
	c := natsiotest.NewCluster(t)
	t.Run("one", func(t *testing.T) {
		t.Parallel()
		m := newToldMailbox(t, c, "one")
		seqs := m.put("a")
		require.EqualValues(t, 1, m.requireNext(seqs...))
	})
	t.Run("several", func(t *testing.T) {
		t.Parallel()
		m := newToldMailbox(t, c, "several")
		seqs := m.put("a", "b", "c", "d")
		require.EqualValues(t, 1, m.requireNext(seqs...))
		more := m.put("e", "f") // what was read and is still there was not missed
		require.EqualValues(t, 1, m.requireNext(more...))
		require.NoError(t, m.store.Remove(t.Context(), append(seqs, more...)...))
		require.EqualValues(t, 1, m.requireNext(m.put("g", "h")...))
		require.Len(t, m.read, 2, "what is gone is remembered for ever")
	})
	t.Run("late", func(t *testing.T) { // the one who leads now has told before the one who led
		t.Parallel()
		m := newToldMailbox(t, c, "late")
		seqs := m.put("a", "b", "c")
		m.lose(seqs[0])
		m.repeat(seqs[0], "a")
		m.repeat(seqs[1], "b")
		require.EqualValues(t, 1, m.requireNext(seqs...))
	})
	t.Run("missed", func(t *testing.T) {
		t.Parallel()
		m := newToldMailbox(t, c, "missed")
		seqs := m.put("a", "b", "c", "d")
		m.lose(seqs[1])
		require.EqualValues(t, 2, m.requireNext(seqs...))
	})
	t.Run("missed first", func(t *testing.T) {
		t.Parallel()
		m := newToldMailbox(t, c, "first")
		seqs := m.put("a", "b", "c")
		m.lose(seqs[0])
		require.EqualValues(t, 2, m.requireNext(seqs...))
	})
	t.Run("most missed", func(t *testing.T) { // reading costs less then
		t.Parallel()
		m := newToldMailbox(t, c, "most")
		seqs := m.put("a", "b", "c", "d", "e", "f", "g")
		for _, seq := range seqs[:5] {
			m.lose(seq)
		}
		require.EqualValues(t, 1+2+7+1, m.requireNext(seqs...), "it is tried again and again")
	})
	t.Run("removed", func(t *testing.T) { // settled by the lane's last holder, and told only now
		t.Parallel()
		m := newToldMailbox(t, c, "removed")
		seqs := m.put("a", "b", "c")
		require.NoError(t, m.store.Remove(t.Context(), seqs[1]))
		require.EqualValues(t, 1, m.requireNext(seqs[0], seqs[2]))
	})
	t.Run("behind", func(t *testing.T) { // whoever is asked does not know the last one yet
		t.Parallel()
		m := newToldMailbox(t, c, "behind")
		seqs := m.put("a", "b")
		m.lose(seqs[0])
		m.repeat(seqs[1]+1000, "b")
		m.requireNext(seqs...)
		require.Equal(t, 1, m.waiting())
	})
	t.Run("long", func(t *testing.T) { // a long list costs more than it saves, unless it is long because nobody looked
		t.Parallel()
		m := newToldMailbox(t, c, "long")
		seqs := m.put("a", "b")
		m.read = map[string]struct{}{}
		for i := range perListed {
			m.read[fmt.Sprint("old", i)] = struct{}{}
		}
		require.EqualValues(t, 2, m.requireNext(seqs...))
		for i := range readMost {
			m.read[fmt.Sprint("old", i)] = struct{}{}
		}
		require.EqualValues(t, 1, m.requireNext(m.put("c")...))
		require.Len(t, m.read, 3)
	})
}

// What was there at the claim was read then. The lane's last holder may have settled what is told
// of it later.
func TestCluster_WhatIsToldOfTheTimeBeforeTheClaimIsOld(t *testing.T) {
	t.Parallel()
	m := newToldMailbox(t, natsiotest.NewCluster(t), "lane")
	l := &held{mail: m.mailbox, first: firstRead{snapshot: &snapshot{last: m.put("a")[0], whole: true}}}
	l.catchUp()
	require.Zero(t, m.requireNext())
	m.requireNext(m.put("b")...)
}

// TestHeld_ReadingIsPutOffOnlyWhenNothingCouldStart: what need not wait for a call in hand is not
// kept waiting.
func TestHeld_ReadingIsPutOffOnlyWhenNothingCouldStart(t *testing.T) {
	t.Parallel()
	const lane = protocol.Lane("account/a")
	clustered := newToldMailbox(t, natsiotest.NewCluster(t), lane.Hash())
	whole := protocol.Use{Key: "account/a", Access: protocol.Exclusive}
	newLane := func(running bool, use protocol.Use) *held {
		m := newMailbox(clustered.store, protocol.DefaultFleet, protocol.DefaultPool, lane.Hash())
		m.subscription, m.empty = clustered.subscription, true
		l := &held{holder: &Holder{store: m.store}, lane: lane, mail: m, schedule: core.NewSchedule(), first: firstRead{caughtUp: true, fed: time.Now()}}
		l.schedule.Add(&core.Entry{Call: &protocol.Call{ID: "x", Resources: []protocol.Use{use}}, Running: running})
		return l
	}
	require.True(t, newLane(false, whole).hasTime())
	require.False(t, newLane(true, whole).hasTime(), "while it runs there is time to read")
	require.False(t, newLane(false, protocol.Use{Key: "account/a", Access: protocol.Shared}).hasTime())
	require.False(t, newLane(false, protocol.Use{Key: "account/a/b", Access: protocol.Exclusive}).hasTime())
	for what, change := range map[string]func(*held){
		"a look at the claim":    func(l *held) { l.first.caughtUp = false },
		"a call of its own":      func(l *held) { l.first.inline = &core.Entry{} },
		"a question":             func(l *held) { l.oversight.asked.Store(true) },
		"a pause":                func(l *held) { l.oversight.paused.Store(true) },
		"a look at the stream":   func(l *held) { l.mail.refresh() },
		"a while":                func(l *held) { l.first.fed = l.first.fed.Add(-lookPeriod) },
		"nothing is told":        func(l *held) { l.mail.subscription = nil },
		"something is sure":      func(l *held) { l.mail.sure = []*message{{}} },
		"a request to cancel it": func(l *held) { l.mail.tell(nats.NewMsg(l.mail.fleet.CancelSubject(l.mail.pool, lane.Hash(), "x"))) },
	} {
		l := newLane(false, whole)
		change(l)
		require.False(t, l.hasTime(), what)
	}
}
