package store

import (
	"context"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/natsio/natsiotest"
)

// waiting is how many questions have no answer yet. Answers that come late look there, too.
func (r *Replies) waiting() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.open)
}

func TestReplies_EachQuestionGetsItsOwnAnswer(t *testing.T) {
	t.Parallel()
	f := natsiotest.New(t, natsio.Topology{})
	other := f.Connect()
	echo, err := other.Subscribe("echo", func(msg *nats.Msg) { _ = msg.Respond(msg.Data) })
	require.NoError(t, err)
	require.NoError(t, echo.SetPendingLimits(-1, -1))
	require.NoError(t, other.Flush())
	r := newReplies(f.NC)
	t.Cleanup(r.Close)
	var group sync.WaitGroup
	for i := range 8 {
		group.Go(func() {
			for n := range 200 {
				word := strconv.Itoa(1000*i + n)
				answer, err := r.Request(t.Context(), 30*time.Second, &nats.Msg{Subject: "echo", Data: []byte(word)})
				if err != nil || string(answer.Data) != word {
					t.Errorf("asked %s: %v, %v", word, answer, err)
				}
			}
		})
	}
	group.Wait()
	require.Zero(t, r.waiting())
}

func TestReplies_QuestionsWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	f := natsiotest.New(t, natsio.Topology{})
	nc := f.Connect()
	silent, err := f.NC.SubscribeSync("silent")
	require.NoError(t, err)
	require.NoError(t, f.NC.Flush())
	r := newReplies(nc)
	silence := func() *nats.Msg { return nats.NewMsg("silent") }

	_, err = r.Request(t.Context(), time.Minute, nats.NewMsg("nobody"))
	require.ErrorIs(t, err, nats.ErrNoResponders)
	_, err = r.Request(t.Context(), time.Millisecond, silence())
	require.ErrorIs(t, err, context.DeadlineExceeded)
	late, err := silent.NextMsg(time.Minute)
	require.NoError(t, err)
	require.NoError(t, late.Respond(nil), "it is told to nobody")

	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(time.Millisecond, cancel)
	_, err = r.Request(ctx, time.Minute, silence())
	require.ErrorIs(t, err, context.Canceled)
	_, err = r.Request(ctx, time.Minute, silence())
	require.ErrorIs(t, err, context.Canceled)
	require.Zero(t, r.waiting(), "whoever waited has told that it waits no more")

	never := func(*nats.Msg) { t.Error("told") }
	_, err = r.ask(silence(), question{answered: never})
	require.NoError(t, err)
	r.mu.Lock()
	r.swept, r.open[r.next] = time.Time{}, question{answered: never, asked: time.Now().Add(-2 * unanswered)}
	r.mu.Unlock()
	_, err = r.ask(silence(), question{answered: never})
	require.NoError(t, err)
	require.Equal(t, 1, r.waiting(), "what was lost is forgotten")
	r.Close()
	require.Zero(t, r.waiting())

	nc.Close()
	_, err = r.Request(t.Context(), time.Minute, silence())
	require.ErrorIs(t, err, nats.ErrConnectionClosed)
	require.Zero(t, r.waiting())
}

func TestReplies_OnlyWhatIsAnsweredIsAskedAgainUnderTheSameName(t *testing.T) {
	t.Parallel()
	f := natsiotest.New(t, natsio.Topology{})
	names := make(chan string, 8)
	other := f.Connect()
	_, err := other.Subscribe("echo", func(msg *nats.Msg) {
		names <- msg.Reply
		_ = msg.Respond(nil)
	})
	require.NoError(t, err)
	silent, err := other.SubscribeSync("silent")
	require.NoError(t, err)
	require.NoError(t, other.Flush())
	r := newReplies(f.NC)
	t.Cleanup(r.Close)
	echo := func() string {
		_, err := r.Request(t.Context(), 30*time.Second, nats.NewMsg("echo"))
		require.NoError(t, err)
		return <-names
	}

	first := echo()
	require.Equal(t, first, echo(), "the server knows the way")
	_, err = r.Request(t.Context(), time.Millisecond, nats.NewMsg("silent"))
	require.ErrorIs(t, err, context.DeadlineExceeded)
	late, err := silent.NextMsg(time.Minute)
	require.NoError(t, err)
	require.Equal(t, first, late.Reply)
	second := echo()
	require.NotEqual(t, first, second, "its answer may still come")
	require.NoError(t, late.Respond(nil))
	require.Equal(t, second, echo())
	require.Equal(t, second, echo(), "an answer that came late frees nothing")
}

func TestReplies_AmongSeveralServersEachQuestionHasANameOfItsOwn(t *testing.T) {
	t.Parallel()
	one, err := server.NewServer(&server.Options{
		Host: "127.0.0.1", Port: server.RANDOM_PORT, NoSigs: true, NoLog: true,
		Cluster: server.ClusterOpts{Name: "several", Host: "127.0.0.1", Port: server.RANDOM_PORT},
	})
	require.NoError(t, err)
	one.Start()
	t.Cleanup(func() { one.Shutdown(); one.WaitForShutdown() })
	require.True(t, one.ReadyForConnections(30*time.Second))
	nc, err := nats.Connect(one.ClientURL(), nats.Timeout(time.Minute))
	require.NoError(t, err)
	t.Cleanup(nc.Close)
	asked := map[string]bool{}
	_, err = nc.Subscribe("echo", func(msg *nats.Msg) {
		asked[msg.Reply] = true
		_ = msg.Respond(nil)
	})
	require.NoError(t, err)
	r := newReplies(nc)
	t.Cleanup(r.Close)
	for range 3 {
		_, err = r.Request(t.Context(), 30*time.Second, nats.NewMsg("echo"))
		require.NoError(t, err)
	}
	require.Len(t, asked, 3)
}

// A callback of NATS may still ask when its holder is about to end: nothing is subscribed anew.
func TestReplies_AskNothingOnceClosed(t *testing.T) {
	t.Parallel()
	f := natsiotest.New(t, natsio.Topology{})
	nc := f.Connect()
	r := newReplies(nc)
	_, err := r.ask(nats.NewMsg("silent"), question{answered: func(*nats.Msg) {}})
	require.NoError(t, err)
	require.Equal(t, 1, nc.NumSubscriptions())
	r.Close()
	_, err = r.ask(nats.NewMsg("silent"), question{answered: func(*nats.Msg) {}})
	require.ErrorIs(t, err, nats.ErrConnectionClosed)
	_, err = r.Request(t.Context(), time.Second, nats.NewMsg("silent"))
	require.True(t, NotStored(err), "%v", err)
	require.Zero(t, nc.NumSubscriptions())
}

// Nobody waits for an answer on a connection that is closed.
func TestReplies_EndWithTheConnection(t *testing.T) {
	t.Parallel()
	f := natsiotest.New(t, natsio.Topology{})
	silent, err := f.NC.SubscribeSync("silent")
	require.NoError(t, err)
	require.NoError(t, f.NC.Flush())
	nc := f.Connect()
	r := newReplies(nc)
	ended := make(chan error, 1)
	go func() {
		_, err := r.Request(t.Context(), time.Hour, nats.NewMsg("silent"))
		ended <- err
	}()
	_, err = silent.NextMsg(time.Minute)
	require.NoError(t, err)
	nc.Close()
	select {
	case err := <-ended:
		require.ErrorIs(t, err, nats.ErrConnectionClosed)
	case <-time.After(time.Minute):
		require.Fail(t, "still waiting")
	}
}
