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
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	require.NoError(t, natsio.Ensure(t.Context(), js, natsio.Topology{}))
	f := &fleet{t: t, nc: nc, js: js, dial: dial, logger: slog.New(slog.DiscardHandler)}
	do(f, f.pool(time.Second))
}

// A server writes no removal down for the last message of a file, and keeps the file while something older is in the stream. So
// one that is killed brings such messages back. A ready message among them is never delivered, and refuses all others: whoever waits
// replaces it. A call among them has its result, and does not run again.
func TestFact_WhatWasRemovedMayComeBack(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	ran := newCall("s", exclusive("account/ran"))
	stuck, waits := newCall("s", exclusive("account/stuck")), newCall("s", exclusive("account/stuck"))
	mailbox := func(c *protocol.Call) string {
		return factFleet.CallSubject(c.Pool, c.Lane().Hash(), c.ID)
	}
	onFiles(t, data, func(f *fleet, c jetstream.Consumer) {
		store := func(subject string, bytes int) uint64 {
			ack, err := f.js.Publish(t.Context(), subject, make([]byte, bytes))
			require.NoError(t, err)
			return ack.Sequence
		}
		store(mailbox(newCall("s", exclusive("account/old"))), 0) // it stays
		var large []uint64
		for range 12 { // more than one file
			large = append(large, store(mailbox(newCall("s", exclusive("account/large"))), 900<<10))
		}
		for _, seq := range large {
			f.deleteMsg(seq)
		}
		raw(t, f, mailbox(ran), ran)
		f.storeResult(ran)
		behind := store(mailbox(newCall("s", exclusive("account/other"))), 0)
		f.deleteMsg(behind)
		f.deleteMsg(behind - 1) // the last one of its file
		ready := store(readyOf(stuck.Lane()), 0)
		held := f.take(c)
		f.deleteMsg(store(mailbox(stuck), 0))
		f.deleteMsg(ready) // again
		require.NoError(t, held.DoubleAck(t.Context()))
		require.EqualValues(t, 1, f.stored())
	})
	// One that is killed leaves no index of its files that is up to date.
	require.NoError(t, os.Remove(filepath.Join(data, "jetstream", "$G", "streams", factFleet.CallsStream(), "msgs", "index.db")))
	onFiles(t, data, func(f *fleet, c jetstream.Consumer) {
		s, err := f.js.Stream(t.Context(), factFleet.CallsStream())
		require.NoError(t, err)
		for _, subject := range []string{readyOf(stuck.Lane()), mailbox(ran)} {
			_, err := s.GetLastMsgForSubject(t.Context(), subject)
			require.NoError(t, err, "nothing comes back: unblock and held.mayBeBack are not needed any more")
		}
		_, err = c.Next(jetstream.FetchMaxWait(time.Second))
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
			_, err := s.GetLastMsgForSubject(t.Context(), mailbox(ran))
			return errors.Is(err, jetstream.ErrMsgNotFound)
		}, patience, time.Millisecond)
		require.Len(t, runs, 1, "it ran once more")
	})
}
