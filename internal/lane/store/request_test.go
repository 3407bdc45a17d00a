package store

import (
	"context"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/natsio/natsiotest"
)

// The error of a request says whether anything was sent.
func TestRequest_WithoutAnAnswer(t *testing.T) {
	t.Parallel()
	f := natsiotest.New(t, natsio.Topology{})
	nc := f.Connect()
	s, err := Open(t.Context(), nc, f.Name)
	require.NoError(t, err)
	silent, err := f.NC.SubscribeSync("silent")
	require.NoError(t, err)
	require.NoError(t, f.NC.Flush())

	_, err = s.Request(t.Context(), time.Minute, nats.NewMsg("nobody"))
	require.ErrorIs(t, err, nats.ErrNoResponders)
	require.Equal(t, natsio.NotStored, natsio.OutcomeOf(err), "nobody took it")
	_, err = s.Request(t.Context(), time.Millisecond, nats.NewMsg("silent"))
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.Equal(t, natsio.Unknown, natsio.OutcomeOf(err))
	_, err = silent.NextMsg(time.Minute)
	require.NoError(t, err)

	ended, end := context.WithCancel(t.Context())
	end()
	_, err = s.Request(ended, time.Minute, nats.NewMsg("silent"))
	require.ErrorIs(t, err, context.Canceled)
	require.Equal(t, natsio.NotStored, natsio.OutcomeOf(err))

	waits := make(chan error, 1)
	go func() {
		_, err := s.Request(t.Context(), time.Hour, nats.NewMsg("silent"))
		waits <- err
	}()
	_, err = silent.NextMsg(time.Minute)
	require.NoError(t, err)
	nc.Close()
	err = <-waits
	require.ErrorIs(t, err, nats.ErrConnectionClosed)
	require.Equal(t, natsio.Unknown, natsio.OutcomeOf(err), "it was sent before")
	_, err = s.Request(t.Context(), time.Minute, nats.NewMsg("silent"))
	require.ErrorIs(t, err, nats.ErrConnectionClosed)
	require.Equal(t, natsio.NotStored, natsio.OutcomeOf(err))
}
