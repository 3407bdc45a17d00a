package lane

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/natsio/natsiotest"
)

func TestReadConsumer(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)
	for name, test := range map[string]struct {
		answer string
		want   consumerState
	}{
		"a consumer": {
			`{"created":"2026-01-02T03:04:05.000000006Z","ts":"2026-01-02T03:04:05.000000006Z","config":{"ack_wait":7}}`,
			consumerState{made: "2026-01-02 03:04:05.000000006 +0000 UTC", lease: 7, at: at},
		},
		"none":               {`{"error":{"code":404,"err_code":10014}}`, consumerState{made: gone}},
		"nor a stream":       {`{"error":{"code":404,"err_code":10059}}`, consumerState{made: gone}},
		"another fault":      {`{"error":{"code":503,"err_code":10008}}`, consumerState{}},
		"no time":            {`{"created":"0001-01-01T00:00:00Z","ts":"2026-01-02T03:04:05Z","config":{"ack_wait":7}}`, consumerState{}},
		"no lease":           {`{"created":"2026-01-02T03:04:05Z","ts":"2026-01-02T03:04:05Z"}`, consumerState{}},
		"nothing of a kind":  {``, consumerState{}},
		"nobody, as nothing": {`{}`, consumerState{}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, test.want, readConsumer([]byte(test.answer)))
		})
	}
}

func TestPace_OnlyWhatIsCertainIsALeap(t *testing.T) {
	t.Parallel()
	var p pace
	start := time.Now()
	server := start.Add(time.Hour).Round(0) // another machine
	tell := func(asked, answered, ahead time.Duration) time.Duration {
		return p.leap(server.Add(ahead), start.Add(asked), start.Add(answered))
	}
	const s = time.Second
	require.Zero(t, tell(0, s, s/2), "the first answer")
	require.LessOrEqual(t, tell(2*s, 3*s, 5*s/2), time.Duration(0))
	require.LessOrEqual(t, tell(4*s, 9*s, 4*s), time.Duration(0), "an answer that took long")
	require.LessOrEqual(t, tell(10*s, 15*s, 15*s), time.Duration(0), "a question that did")
	require.Equal(t, time.Minute-5*s, tell(16*s, 16*s, 16*s+time.Minute), "as it may have been ahead by five seconds already")
	require.LessOrEqual(t, tell(17*s, 17*s, 17*s+time.Minute), time.Duration(0), "once")
	require.LessOrEqual(t, tell(18*s, 18*s, 18*s-time.Hour), time.Duration(0), "put back")
}

// Leases end by the server's clock. When that is put forward, lanes are handed out again that are held.
func TestMeetConsumer_AClockThatIsPutForwardEndsLeases(t *testing.T) {
	t.Parallel()
	f := natsiotest.New(t, natsio.Topology{})
	h, err := NewHolder(t.Context(), f.NC, nil, Options{})
	require.NoError(t, err)
	l := &held{holder: h, hash: "a"}
	l.ctx, l.cancel = context.WithCancelCause(t.Context())
	h.held["a"] = l
	ask := func(ahead time.Duration) {
		asked := time.Now()
		msg, err := f.NC.Request("$JS.API.CONSUMER.INFO.TF_CALLS.ready_default", nil, nats.DefaultTimeout)
		require.NoError(t, err)
		var info map[string]any
		require.NoError(t, json.Unmarshal(msg.Data, &info))
		at, err := time.Parse(time.RFC3339Nano, info["ts"].(string)) //nolint:errcheck,forcetypeassert // a time
		require.NoError(t, err)
		info["ts"] = at.Add(ahead)
		body, err := json.Marshal(info)
		require.NoError(t, err)
		h.meetConsumer(body, asked, time.Now())
	}
	ask(0)
	ask(0)
	ask(-time.Hour)
	require.NoError(t, l.ctx.Err())
	ask(h.Lease())
	require.ErrorIs(t, context.Cause(l.ctx), ErrLost)
}
