package channel_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/toolfleet/toolfleet/internal/calls/channel"
	"github.com/toolfleet/toolfleet/internal/calls/ports"
	"github.com/toolfleet/toolfleet/internal/judge"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/natsio/natsiotest"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const work = "default.work"

func open(t *testing.T) *channel.Store {
	t.Helper()
	js, err := jetstream.New(natsiotest.New(t, natsio.Topology{}).Connect(), jetstream.WithDefaultTimeout(time.Minute))
	require.NoError(t, err)
	_, err = channel.Open(t.Context(), js, protocol.DefaultFleet)
	require.NoError(t, err)
	store, err := channel.Open(t.Context(), js, protocol.DefaultFleet) // what is there already
	require.NoError(t, err)
	return store
}

func message(from protocol.SessionID, text string) ports.ChannelMessage {
	return ports.ChannelMessage{From: from, Call: wire.RandomCallID(), Text: text}
}

// read is the texts of the messages behind a sequence.
func read(t *testing.T, store *channel.Store, name string, read ports.ChannelRead) (texts []string) {
	t.Helper()
	messages, err := store.Read(t.Context(), name, read)
	require.NoError(t, err)
	for _, m := range messages {
		texts = append(texts, m.Text)
	}
	return texts
}

func TestSend_IsInOrderAndOnceForACall(t *testing.T) {
	t.Parallel()
	store := open(t)
	a, b := message("left", "a"), message("right", "b")
	for _, m := range []ports.ChannelMessage{a, b, a, b, message("left", "c")} {
		require.NoError(t, store.Send(t.Context(), work, m))
	}
	require.NoError(t, store.Send(t.Context(), "other.work", message("left", "of another tenant")))
	require.Equal(t, []string{"a", "b", "c"}, read(t, store, work, ports.ChannelRead{Limit: 10}))
	require.Equal(t, []string{"a", "b"}, read(t, store, work, ports.ChannelRead{Limit: 2}))
	require.Equal(t, []string{"b"}, read(t, store, work, ports.ChannelRead{Limit: 10, Reader: "left"}), "a reader's own are left out")
	first, err := store.Next(t.Context(), work, "", 0)
	require.NoError(t, err)
	require.Equal(t, []any{a.From, a.Call, "a"}, []any{first.From, first.Call, first.Text})
	require.WithinDuration(t, time.Now(), first.Time, time.Minute)
	require.Equal(t, []string{"b", "c"}, read(t, store, work, ports.ChannelRead{Limit: 10, After: first.Sequence}))
	require.Empty(t, read(t, store, "default.nothing", ports.ChannelRead{Limit: 10}))
}

func TestSend_AChannelHasItsLastMessages(t *testing.T) {
	t.Parallel()
	store := open(t)
	require.NoError(t, store.Send(t.Context(), "default.quiet", message("left", "stays")))
	for i := range channel.MaxMessages + 3 {
		require.NoError(t, store.Send(t.Context(), work, message("left", fmt.Sprint(i))))
	}
	texts := read(t, store, work, ports.ChannelRead{Limit: 2 * channel.MaxMessages})
	require.Len(t, texts, channel.MaxMessages)
	require.Equal(t, "3", texts[0])
	require.Equal(t, []string{"stays"}, read(t, store, "default.quiet", ports.ChannelRead{Limit: 1}))
}

// A channel belongs to who sent its first message, whatever becomes of that message; one of an
// earlier version has no owner.
func TestOwner_IsOfTheFirstSender(t *testing.T) {
	t.Parallel()
	store := open(t)
	as := func(name string) context.Context {
		return judge.With(t.Context(), judge.Principal{Known: judge.ByToken, Name: name, Tenant: "acme"})
	}
	owner := func(name string) judge.Owner {
		t.Helper()
		owner, err := store.Owner(t.Context(), name)
		require.NoError(t, err)
		return owner
	}
	require.NoError(t, store.Send(as("ann"), "acme.c", message("left", "token:eve")))
	for i := range channel.MaxMessages {
		require.NoError(t, store.Send(as("bob"), "acme.c", message("right", fmt.Sprint(i))))
	}
	require.Equal(t, judge.Owner{Tenant: "acme", By: "token:ann"}, owner("acme.c"), "its first message is gone")
	require.NoError(t, store.Send(t.Context(), "acme.old", message("left", "a"))) // without a header, as an earlier version
	require.NoError(t, store.Send(as("bob"), "acme.old", message("right", "b")))
	require.Equal(t, judge.Owner{Tenant: "acme"}, owner("acme.old"))
	require.Error(t, store.Send(as("ann"), work, message("left", "x")), "of another tenant")
}

// While no server answers, Send tries again, whichever of its requests that meets.
func TestSend_TriesAgainWhileNoServerAnswers(t *testing.T) {
	t.Parallel()
	nc, link := natsiotest.New(t, natsio.Topology{}).ConnectVia()
	js, err := jetstream.New(nc, jetstream.WithDefaultTimeout(time.Minute))
	require.NoError(t, err)
	store, err := channel.Open(t.Context(), js, protocol.DefaultFleet)
	require.NoError(t, err)
	seen := map[string]int{}
	link.OnWrite(func(subject string) natsiotest.Fate {
		if seen[subject]++; seen[subject] > 2 || strings.Contains(subject, ".PURGE.") {
			return natsiotest.Passes
		}
		return natsiotest.Refused
	})
	require.NoError(t, store.Send(t.Context(), work, message("left", "a")))
	link.OnWrite(nil)
	require.Equal(t, []string{"a"}, read(t, store, work, ports.ChannelRead{Reader: "right", Limit: 10}))
	require.GreaterOrEqual(t, len(seen), 2)
}

func TestRead_WaitsForAMessage(t *testing.T) {
	t.Parallel()
	store := open(t)
	got := make(chan []string)
	go func() {
		messages, err := store.Read(t.Context(), work, ports.ChannelRead{Reader: "right", Limit: 5, Wait: time.Minute})
		if err != nil || len(messages) == 0 {
			got <- nil
			return
		}
		got <- []string{messages[0].Text}
	}()
	require.NoError(t, store.Send(t.Context(), work, message("right", "own")))
	require.NoError(t, store.Send(t.Context(), work, message("left", "hello")))
	require.Equal(t, []string{"hello"}, <-got)
	require.Empty(t, read(t, store, "default.nothing", ports.ChannelRead{Limit: 1, Wait: time.Millisecond}))
	ctx, stop := context.WithCancel(t.Context())
	stop()
	_, err := store.Read(ctx, "default.nothing", ports.ChannelRead{Limit: 1, Wait: time.Minute})
	require.ErrorIs(t, err, context.Canceled)
}
