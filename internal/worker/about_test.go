package worker_test

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/worker/kinds"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

func TestWorker_SaysWhatItCanDo(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	o := r.options()
	caps, err := o.Driver.Probe(t.Context())
	require.NoError(t, err)
	o.Caps = caps
	o.Build, o.Slots, o.Limits = "v1.2.3", 3, sandbox.Limits{Memory: 1 << 30, Wall: time.Minute}
	o.Handlers.Calls = map[protocol.Kind]kinds.Handler{
		"acme_refund": func(context.Context, *kinds.Attempt, json.RawMessage) (json.RawMessage, error) { return nil, nil },
	}
	w, stop := r.work(o)
	var info *wire.WorkerInfo
	require.Eventually(t, func() bool { // from when it runs
		answer, err := r.NC.RequestWithContext(t.Context(), wire.WhoSubject(r.Name, protocol.DefaultPool), nil)
		if err != nil {
			require.ErrorIs(t, err, nats.ErrNoResponders)
			return false
		}
		info, err = wire.DecodeWorkerInfo(answer.Data)
		require.NoError(t, err)
		return true
	}, patience, time.Millisecond)
	require.Equal(t, wire.WorkerInfo{
		WorkerID: w.ID(), Pool: protocol.DefaultPool, Build: "v1.2.3", Slots: 3, Driver: "process", Level: "none", Network: "all",
		LimitKinds: info.LimitKinds, Limits: protocol.Limits{Memory: 1 << 30, Wall: 60_000}, Languages: w.Languages(), Kinds: []protocol.Kind{"acme_refund"},
	}, *info)
	require.Contains(t, info.LimitKinds, "memory")
	require.Contains(t, info.Languages, "sh")
	stop()
	_, err = r.NC.RequestWithContext(t.Context(), wire.WhoSubject(r.Name, protocol.DefaultPool), nil)
	require.ErrorIs(t, err, nats.ErrNoResponders)
}
