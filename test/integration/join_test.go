package integration

import (
	"context"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/calls"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/wire/signing"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// TestJoin_WithinASecond: a worker that is started with an account of its own and keys for calls
// runs its first call within a second, on a machine that has nothing else to do: what it waits for
// a processor, as a program just before did, is left out, and the fastest of some starts counts.
func TestJoin_WithinASecond(t *testing.T) {
	t.Parallel()
	const starts = 5
	a, keys := newApart(t), t.TempDir()
	signer, err := signing.Make(keys)
	require.NoError(t, err)
	js := a.pool(t)
	require.NoError(t, natsio.MakePool(t.Context(), js, protocol.DefaultFleet, protocol.DefaultPool))
	d, err := calls.New(t.Context(), js.Conn(), protocol.DefaultFleet, &calls.Options{Signer: signer})
	require.NoError(t, err)
	t.Cleanup(d.Close)

	var took []time.Duration
	var answered time.Duration
	for range starts {
		call := protocol.Call{
			ID: wire.RandomCallID(), SessionID: protocol.NewSessionID(), Pool: protocol.DefaultPool, Delivery: protocol.Idempotent,
			Resources: []protocol.Use{{Key: protocol.ResourceKey("sandbox/" + protocol.NewSessionID()), Access: protocol.Exclusive}},
			IssuedAt:  time.Now(), Payload: protocol.CommandRun{Argv: []string{"true"}},
		}
		slow := delayed(t)
		began := time.Now()
		p := start(t, worker, launch{args: []string{"--sandbox", "process", "--data", t.TempDir(), "--nats", a.url("worker"), "--call-keys", filepath.Join(keys, signing.PublicFile)}})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		require.NoError(t, d.Dispatch(ctx, []protocol.Call{call}, func(u loop.Update) {
			if u.State == loop.StateDone {
				answered = time.Since(began)
				require.Equal(t, protocol.StatusOK, u.Result.Status, u.Result)
			}
		}))
		cancel()
		p.stop(t)
		took = append(took, answered-time.Duration(float64(computed(p))*(slow-1)))
		t.Log(answered, slow, computed(p))
	}
	require.Less(t, slices.Min(took), time.Second)
}

// delayed is how many times longer a program takes than it computes.
func delayed(t *testing.T) float64 {
	t.Helper()
	began := time.Now()
	p := start(t, worker, launch{args: []string{"--version"}})
	require.Equal(t, 0, p.wait(t))
	return max(1, float64(time.Since(began))/float64(computed(p)))
}

// computed is how much of a processor's time an ended process has had.
func computed(p *process) time.Duration {
	return p.cmd.ProcessState.UserTime() + p.cmd.ProcessState.SystemTime()
}
