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

	"github.com/toolfleet/toolfleet/internal/lane/limits"
	"github.com/toolfleet/toolfleet/internal/natsio/natsiotest"
	"github.com/toolfleet/toolfleet/internal/wire"
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
			client := mustConnect(t, fleet.Options{})
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
				mustStart(t, client, worker.Options{Driver: "none", Handlers: []worker.Handler{wait}})
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
			_, err := client.Call(t.Context(), call)
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
	client := mustConnect(t, fleet.Options{URL: server.ClientURL()})
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

// requireRefused checks the error of a call that met a bound, however it was sent.
func requireRefused(t *testing.T, err, kind error) {
	t.Helper()
	require.ErrorIs(t, err, kind)
	require.ErrorIs(t, err, fleet.ErrNotSent)
	require.NotErrorIs(t, err, fleet.ErrUnknownOutcome)
	bound, ok := errors.AsType[*protocol.Error](err)
	require.True(t, ok)
	require.Positive(t, bound.RetryAfter, "it says when it is worth trying again")
}

// Each way to send a call has the same errors for a quota and a bound.
func TestErrors_OfRefusedCallsSayWhenToTryAgain(t *testing.T) {
	t.Parallel()
	server := natsiotest.Serve(t, natsiotest.Alone(t, "", ""))
	client := mustConnect(t, fleet.Options{URL: server.ClientURL()})
	t.Cleanup(func() { require.NoError(t, client.Close()) })
	js := jetStream(t, server.ClientURL())
	rules, err := limits.Open(t.Context(), js, protocol.DefaultFleet)
	require.NoError(t, err)
	require.NoError(t, rules.Replace(t.Context(), []limits.Rule{
		{Tenant: "acme", Rate: "1/h", Burst: 1}, {Pool: "small", Waiting: 1},
	}))
	for kind, call := range map[error]fleet.Call{
		fleet.ErrQuota: {Payload: protocol.FilesExists{Path: "a"}, Tenant: "acme"},
		fleet.ErrBusy:  {Payload: protocol.FilesExists{Path: "a"}, Pool: "small", QueueTimeout: 100 * time.Millisecond}, // shorter than a wait
	} {
		require.Eventually(t, func() bool { // the rules are known within a second
			_, err = client.Submit(t.Context(), call)
			return err != nil
		}, time.Minute, 10*time.Millisecond)
		requireRefused(t, err, kind)
		result := mustCall(t, client, call)
		requireRefused(t, result.Err(), kind)
		result, err = client.Go(t.Context(), call).Wait(t.Context())
		require.NoError(t, err)
		requireRefused(t, result.Err(), kind)
		result, err = client.Stream("box", "a").Go(t.Context(), call).Wait(t.Context())
		require.NoError(t, err)
		requireRefused(t, result.Err(), kind)
	}
}

// What may have run says so, and nothing else does.
func TestErrors_SayWhetherACallMayRun(t *testing.T) {
	t.Parallel()
	client := mustConnect(t, fleet.Options{})
	defer func() { require.NoError(t, client.Close()) }()
	sent := shell("box", "true")
	sent.ID = "sent"
	result, err := client.Call(onceSent(t, client, protocol.CallRef{SessionID: "box", ID: sent.ID}), sent) // there is no worker
	require.NoError(t, err)
	require.ErrorIs(t, result.Err(), fleet.ErrUnknownOutcome)
	require.NotErrorIs(t, result.Err(), fleet.ErrNotSent)

	rules, err := policy.New(policy.Policy{Tools: policy.Names{Deny: []string{"bash"}}})
	require.NoError(t, err)
	result = mustCall(t, client, fleet.Call{Tool: "bash", Arguments: `{"command":"true"}`, Policy: rules})
	require.ErrorIs(t, result.Err(), fleet.ErrNotSent)
	require.ErrorIs(t, result.Err(), &protocol.Error{Code: protocol.CodePolicyDenied})

	result, err = client.Call(t.Context(), fleet.Call{})
	require.ErrorIs(t, err, protocol.ErrInvalidCall)
	require.NotErrorIs(t, err, fleet.ErrUnknownOutcome)
	require.ErrorIs(t, result.Err(), fleet.ErrNotSent)

	waits := client.Go(t.Context(), shell("box", "true"))
	require.Eventually(t, func() bool {
		_, err := client.Attach(t.Context(), waits.Ref())
		return err == nil
	}, time.Minute, 5*time.Millisecond)
	require.NoError(t, client.Close())
	result, err = waits.Wait(t.Context())
	require.ErrorIs(t, err, fleet.ErrClosed)
	require.ErrorIs(t, err, fleet.ErrUnknownOutcome)
	require.ErrorIs(t, result.Err(), fleet.ErrUnknownOutcome)
	require.NoError(t, fleet.Result{}.Err())
}

// A fleet of another version is one error, and a result of one is an unknown outcome.
func TestErrors_OfAnotherVersion(t *testing.T) {
	t.Parallel()
	server := natsiotest.Serve(t, natsiotest.Alone(t, "", ""))
	client := mustConnect(t, fleet.Options{URL: server.ClientURL()})
	t.Cleanup(func() { require.NoError(t, client.Close()) })
	js := jetStream(t, server.ClientURL())
	ref := protocol.CallRef{SessionID: "s", ID: "newer"}
	_, err := js.Publish(t.Context(), wire.ResultSubject(protocol.DefaultFleet, ref.SessionID, ref.ID), []byte(`{"type":"result","version":99}`))
	require.NoError(t, err)
	f, err := client.Attach(t.Context(), ref)
	require.NoError(t, err)
	result := mustWait(t, f)
	require.ErrorIs(t, result.Err(), fleet.ErrUnknownOutcome)

	stream, err := js.Stream(t.Context(), wire.CallsStream(protocol.DefaultFleet))
	require.NoError(t, err)
	other := stream.CachedInfo().Config
	other.Discard = jetstream.DiscardOld
	other.DiscardNewPerSubject = false
	_, err = js.UpdateStream(t.Context(), other)
	require.NoError(t, err)
	for _, existing := range []bool{false, true} {
		_, err = fleet.Connect(t.Context(), fleet.Options{URL: server.ClientURL(), Existing: existing})
		require.ErrorIs(t, err, fleet.ErrVersion)
	}
}

func jetStream(t *testing.T, url string) jetstream.JetStream {
	t.Helper()
	nc, err := nats.Connect(url)
	require.NoError(t, err)
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	return js
}

// Each value that is not allowed is [fleet.ErrInvalid], malformed names are also
// [protocol.ErrInvalidName].
func TestErrors_OfValuesThatAreNotAllowed(t *testing.T) {
	t.Parallel()
	client := mustConnect(t, fleet.Options{})
	defer func() { require.NoError(t, client.Close()) }()
	ctx, lanes, sessions := t.Context(), client.Lanes(""), client.Sessions("")
	third := func(_, _ any, err error) error { return err }
	for what, err := range map[string]error{
		"fleet":      second(fleet.Connect(ctx, fleet.Options{Fleet: "No Fleet"})),
		"pool":       second(client.Workers(ctx, "No Pool", 0)),
		"lanes":      second(client.Lanes("No Pool").List(ctx, 0)),
		"key":        second(lanes.Show(ctx, "a", 0)),
		"call":       lanes.Cancel(ctx, "a/b", "a b"),
		"attached":   second(client.Attach(ctx, protocol.CallRef{})),
		"servers":    third(client.ServerTools(ctx, "a/b", nil, nil)),
		"session":    second(sessions.Show(ctx, "a/b")),
		"approved":   sessions.Approve(ctx, "a/b", "c", protocol.Approval{}),
		"answered":   sessions.Answer(ctx, "a", "b/c", protocol.Answer{}),
		"output":     second(sessions.Output(ctx, "a/b", nil)),
		"template":   client.Templates().CreateFromSession(ctx, "a", "a/b"),
		"worker":     second(client.StartWorker(ctx, worker.Options{Pool: "No Pool"})),
		"a schedule": second(client.Schedules().AddCall(ctx, fleet.Schedule{Name: "a", Cron: "@daily"}, fleet.Call{Tool: "read", Session: "a/b"})),
	} {
		require.ErrorIs(t, err, fleet.ErrInvalid, what)
		require.ErrorIs(t, err, protocol.ErrInvalidName, what)
	}
	for what, err := range map[string]error{
		"lane":    second(lanes.Show(ctx, "a/b/c", 0)),
		"wait":    second(client.Workers(ctx, "", -1)),
		"slots":   second(client.StartWorker(ctx, worker.Options{Slots: -1})),
		"storage": second(fleet.Connect(ctx, fleet.Options{Storage: fleet.Storage{Replicas: 2}})),
	} {
		require.ErrorIs(t, err, fleet.ErrInvalid, what)
	}
}
