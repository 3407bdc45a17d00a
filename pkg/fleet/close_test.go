package fleet_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/natsio/natsiotest"
	"github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools/policy"
	"github.com/toolfleet/toolfleet/pkg/worker"
)

// closes closes a client and requires that Close returns within its bound, on a busy machine.
func closes(t *testing.T, client *fleet.Client) {
	t.Helper()
	closed := make(chan error, 1)
	go func() { closed <- client.Close() }()
	select {
	case err := <-closed:
		require.NoError(t, err)
	case <-time.After(time.Minute):
		require.Fail(t, "Close does not return")
	}
}

// Close returns whatever the calls in flight do, and so do they.
func TestClose_WithACallInFlight(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		handled bool // a handler runs it
		ignores bool // that does not look at its context
		approve bool // a person is asked before
	}{
		"no worker takes it":         {},
		"a handler runs it":          {handled: true},
		"a handler ignores its end":  {handled: true, ignores: true},
		"a person is asked about it": {approve: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			began, release, over := make(chan struct{}, 1), make(chan struct{}), make(chan struct{})
			client, err := fleet.Connect(t.Context(), fleet.Options{})
			require.NoError(t, err)
			if test.handled {
				wait := worker.Handle("wait", func(ctx context.Context, _ *worker.Call, _ struct{}) (string, error) {
					defer close(over)
					began <- struct{}{}
					if test.ignores {
						<-release
						return "", nil
					}
					<-ctx.Done()
					return "", context.Cause(ctx)
				})
				_, err = client.StartWorker(t.Context(), worker.Options{Driver: "none", Handlers: []worker.Handler{wait}})
				require.NoError(t, err)
			}
			call := fleet.Call{Handler: "wait"}
			if test.approve {
				call = fleet.Call{Tool: "bash", Arguments: `{"command": "true"}`, Policy: asking{}, Approve: func(ctx context.Context, _ loop.ApprovalRequest) (protocol.Approval, error) {
					began <- struct{}{}
					<-ctx.Done()
					return protocol.Approval{}, context.Cause(ctx)
				}}
			}
			ended := make(chan fleet.Result, 1)
			go func() {
				result, _ := client.Call(t.Context(), call)
				ended <- result
			}()
			if test.handled || test.approve {
				<-began
			}
			closes(t, client)
			require.NotEqual(t, protocol.StatusOK, (<-ended).Status)
			close(release)
			if test.handled {
				<-over
			}
			_, err = client.Call(t.Context(), call)
			require.ErrorIs(t, err, fleet.ErrClosed)
			require.ErrorIs(t, err, fleet.ErrNotSent)
			_, err = client.Workers(t.Context(), "", time.Second)
			require.ErrorIs(t, err, fleet.ErrClosed)
			_, err = client.Lanes("").List(t.Context(), 1)
			require.ErrorIs(t, err, fleet.ErrClosed)
			_, err = client.StartWorker(t.Context(), worker.Options{Driver: "none"})
			require.ErrorIs(t, err, fleet.ErrClosed)
		})
	}
}

// asking is a policy that has a person asked about every call.
type asking struct{}

func (asking) Judge(policy.Call) policy.Verdict {
	return policy.Verdict{Decision: policy.Ask, Timeout: time.Hour}
}

// Calls that begin while the client closes end, too.
func TestClose_WhileCallsBegin(t *testing.T) {
	t.Parallel()
	server := natsiotest.Serve(t, natsiotest.Alone(t, "", ""))
	client, err := fleet.Connect(t.Context(), fleet.Options{URL: server.ClientURL()})
	require.NoError(t, err)
	var calls sync.WaitGroup
	for range 8 {
		calls.Go(func() {
			for {
				_, err := client.Call(t.Context(), fleet.Call{Handler: "nothing", QueueTimeout: time.Millisecond})
				if errors.Is(err, fleet.ErrClosed) {
					return
				}
			}
		})
	}
	closes(t, client)
	calls.Wait()
}

func TestConnect_ChangesNothingOfAFleetOfAnotherVersion(t *testing.T) {
	t.Parallel()
	server := natsiotest.Serve(t, natsiotest.Alone(t, "", ""))
	nc, err := nats.Connect(server.ClientURL())
	require.NoError(t, err)
	defer nc.Close()
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	_, err = js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "TF_CALLS", Subjects: []string{"tf.call.>"}})
	require.NoError(t, err)
	for _, existing := range []bool{false, true} {
		_, err = fleet.Connect(t.Context(), fleet.Options{Conn: nc, Existing: existing})
		require.ErrorIs(t, err, fleet.ErrVersion)
	}
	names := js.StreamNames(t.Context())
	var all []string
	for name := range names.Name() {
		all = append(all, name)
	}
	require.Equal(t, []string{"TF_CALLS"}, all)
}
