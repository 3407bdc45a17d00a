package lane_test

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/internal/lane/operator"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/natsio/embedded"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// onFiles runs a server of its own on a data directory for as long as do lasts.
func onFiles(t *testing.T, data string, do func(f *fleet, c jetstream.Consumer)) {
	t.Helper()
	server, err := embedded.Start(t.Context(), embedded.Options{Data: data})
	require.NoError(t, err)
	defer server.Close()
	dial := func() *nats.Conn {
		nc, err := natsio.Connect(t.Context(), "", natsio.ConnectOptions{Options: server.Options()})
		require.NoError(t, err)
		return nc
	}
	nc := dial()
	defer nc.Close()
	js, err := jetstream.New(nc, jetstream.WithDefaultTimeout(patience))
	require.NoError(t, err)
	require.NoError(t, natsio.Ensure(t.Context(), js, natsio.Topology{}))
	f := &fleet{t: t, nc: nc, js: js, dial: dial, logger: slog.New(slog.DiscardHandler)}
	do(f, f.pool(briefLease))
}

// comesBack makes a data directory of which a server brings back, when it starts, the call ran, which has its result, and an empty
// ready message of a lane that was released. A server writes no removal down for the last message of a file, and keeps the file
// while something older is in the stream; one that is killed leaves no index that knows better.
func comesBack(t *testing.T, ran *protocol.Call, released protocol.Lane) (data string) {
	t.Helper()
	data = t.TempDir()
	onFiles(t, data, func(f *fleet, c jetstream.Consumer) {
		store := func(subject string, bytes int) uint64 {
			ack, err := f.js.Publish(t.Context(), subject, make([]byte, bytes))
			require.NoError(t, err)
			return ack.Sequence
		}
		store(mailboxOf(newCall("s", exclusive("account/old"))), 0) // it stays
		var large []uint64
		for range 12 { // more than one file
			large = append(large, store(mailboxOf(newCall("s", exclusive("account/large"))), 900<<10))
		}
		for _, seq := range large {
			f.deleteMsg(seq)
		}
		raw(t, f, mailboxOf(ran), ran)
		f.storeResult(ran)
		behind := store(mailboxOf(newCall("s", exclusive("account/other"))), 0)
		f.deleteMsg(behind)
		f.deleteMsg(behind - 1) // the last one of its file
		ready := store(readyOf(released), 0)
		held := f.take(c)
		f.deleteMsg(store(mailboxOf(newCall("s", exclusive(string(released)))), 0))
		f.deleteMsg(ready) // again
		require.NoError(t, held.DoubleAck(t.Context()))
		require.EqualValues(t, 1, f.stored())
	})
	require.NoError(t, os.Remove(filepath.Join(data, "jetstream", "$G", "streams", factFleet.CallsStream(), "msgs", "index.db")))
	return data
}

// mailboxOf is the subject of a call in its mailbox.
func mailboxOf(c *protocol.Call) string { return factFleet.CallSubject(c.Pool, c.Lane().Hash(), c.ID) }

// A ready message that is back is never delivered, and refuses all others: whoever waits replaces it. A call that is back has
// its result, and does not run again.
func TestFact_WhatWasRemovedMayComeBack(t *testing.T) {
	t.Parallel()
	ran, waits := newCall("s", exclusive("account/ran")), newCall("s", exclusive("account/stuck"))
	onFiles(t, comesBack(t, ran, waits.Lane()), func(f *fleet, c jetstream.Consumer) {
		s, err := f.js.Stream(t.Context(), factFleet.CallsStream())
		require.NoError(t, err)
		for _, subject := range []string{readyOf(waits.Lane()), mailboxOf(ran)} {
			_, err := s.GetLastMsgForSubject(t.Context(), subject)
			require.NoError(t, err, "nothing comes back: Unblock and held.mayBeBack are not needed any more")
		}
		_, err = c.Next(jetstream.FetchMaxWait(noNews))
		require.ErrorIs(t, err, nats.ErrTimeout, "the ready message is back, and is not delivered")
		p := f.publisher()
		put(t, p, waits)
		require.NoError(t, p.Kick(t.Context(), waits))
		runs := make(chan protocol.CallID, 9)
		h := f.hold(tells(runs), lane.Options{})
		defer h.stop()
		require.Equal(t, protocol.StatusOK, f.await(p, waits).Status)
		require.NoError(t, p.Kick(t.Context(), ran)) // as whoever uses that lane
		require.Eventually(t, func() bool {
			_, err := s.GetLastMsgForSubject(t.Context(), mailboxOf(ran))
			return errors.Is(err, jetstream.ErrMsgNotFound)
		}, patience, time.Millisecond)
		require.Len(t, runs, 1, "it ran once more")
	})
}

func TestOperator_KickReplacesAReadyMessageThatIsBack(t *testing.T) {
	t.Parallel()
	waits := newCall("s", exclusive("account/stuck"))
	onFiles(t, comesBack(t, newCall("s", exclusive("account/ran")), waits.Lane()), func(f *fleet, c jetstream.Consumer) {
		_, err := c.Next(jetstream.FetchMaxWait(noNews))
		require.ErrorIs(t, err, nats.ErrTimeout, "the ready message is back, and is not delivered")
		o, p := f.operator(), f.publisher()
		f.enqueueWithoutReady(waits)
		h := f.hold(succeeds, lane.Options{})
		defer h.stop()
		did, err := o.Kick(t.Context(), pool, waits.Lane())
		require.NoError(t, err)
		require.Equal(t, operator.KickedReplaced, did)
		require.Equal(t, protocol.StatusOK, f.await(p, waits).Status)
	})
}
