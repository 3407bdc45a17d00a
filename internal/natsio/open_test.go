package natsio_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/natsio/natsiotest"
	"github.com/toolfleet/toolfleet/internal/wire"
)

// silent answers nothing until some time has passed.
func silent(until time.Time, err error) func(context.Context, string) (string, error) {
	return func(ctx context.Context, name string) (string, error) {
		if time.Now().Before(until) {
			<-ctx.Done()
			return "", ctx.Err()
		}
		return name, err
	}
}

func TestOpen_AsksAgainWhileNobodyAnswers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		got, err := natsio.Open(t.Context(), silent(time.Now().Add(12*time.Second), nil), "it")
		require.NoError(t, err)
		require.Equal(t, "it", got)
	})
}

func TestOpen_EndsWithItsContextWithPatienceOrWithAnAnswer(t *testing.T) {
	t.Parallel()
	refused := errors.New("refused")
	for name, c := range map[string]struct {
		silence, limit, took time.Duration
		answer, want         error
	}{
		"context":  {silence: time.Hour, limit: 7 * time.Second, took: 7 * time.Second, want: context.DeadlineExceeded},
		"patience": {silence: time.Hour, limit: time.Hour, took: 30 * time.Second, want: context.DeadlineExceeded},
		"answer":   {limit: time.Hour, answer: refused, want: refused},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				ctx, cancel := context.WithTimeout(t.Context(), c.limit)
				defer cancel()
				_, err := natsio.Open(ctx, silent(began.Add(c.silence), c.answer), "it")
				require.ErrorIs(t, err, c.want)
				require.Equal(t, c.took, time.Since(began))
			})
		})
	}
}

// A list waits while a cluster has no leader.
func TestEachLast_WaitsForALeader(t *testing.T) {
	t.Parallel()
	f := natsiotest.New(t, natsio.Topology{})
	require.NoError(t, f.NC.Publish(wire.EventSubject(f.Name, "s"), []byte("[]")))
	nc, link := f.ConnectVia()
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	stream, err := js.Stream(t.Context(), wire.SessionsStream(f.Name))
	require.NoError(t, err)
	refused := 0
	link.OnWrite(func(subject string) natsiotest.Fate {
		if !strings.HasPrefix(subject, "$JS.API.CONSUMER.CREATE.") || strings.Contains(subject, "rights") || refused == 2 {
			return natsiotest.Passes
		}
		refused++
		return natsiotest.Refused
	})
	told := 0
	require.NoError(t, natsio.EachLast(t.Context(), js, stream, wire.SessionsSubjects(f.Name), true, func(jetstream.Msg) error {
		told++
		return nil
	}))
	require.Equal(t, []int{2, 1}, []int{refused, told})
}
