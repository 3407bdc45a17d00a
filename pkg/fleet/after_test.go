package fleet_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/lane/limits"
	"github.com/toolfleet/toolfleet/internal/natsio/natsiotest"
	"github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools/policy"
	"github.com/toolfleet/toolfleet/pkg/worker"
)

// bounded is a client of a fleet without workers, whose tenant acme and pool small are full. rules
// replaces the bounds.
func bounded(t *testing.T) (client *fleet.Client, rules *limits.Store) {
	t.Helper()
	server := natsiotest.Serve(t, natsiotest.Alone(t, "", ""))
	client = mustConnect(t, fleet.Options{URL: server.ClientURL()})
	t.Cleanup(func() { require.NoError(t, client.Close()) })
	rules, err := limits.Open(t.Context(), jetStream(t, server.ClientURL()), protocol.DefaultFleet)
	require.NoError(t, err)
	require.NoError(t, rules.Replace(t.Context(), []limits.Rule{
		{Tenant: "acme", Rate: limits.Rate{N: 1, Per: time.Hour}, Burst: 1}, {Pool: "small", Waiting: 1},
	}))
	for _, call := range []fleet.Call{ofAcme(), ofSmall(time.Millisecond)} {
		require.Eventually(t, func() bool { // the rules are known within a second
			_, err := client.Submit(t.Context(), call)
			return err != nil
		}, time.Minute, 10*time.Millisecond)
	}
	return client, rules
}

func ofAcme() fleet.Call {
	return fleet.Call{Payload: protocol.FilesExists{Path: "a"}, Tenant: "acme"}
}

func ofSmall(queue time.Duration) fleet.Call {
	return fleet.Call{Payload: protocol.FilesExists{Path: "a"}, Pool: "small", QueueTimeout: queue, MinLevel: "none"}
}

// requireUnmet checks the error of a call that waits for one that was not sent.
func requireUnmet(t *testing.T, err error) {
	t.Helper()
	require.ErrorIs(t, err, fleet.ErrNotSent)
	require.ErrorIs(t, err, &protocol.Error{Code: protocol.CodeAfterUnmet})
	require.NotErrorIs(t, err, fleet.ErrUnknownOutcome)
}

// What waits for a call that was refused or never sent is rejected at once, not when its time is
// over, however both are sent.
func TestAfter_ACallThatWasNotSentRejectsThoseThatWaitForIt(t *testing.T) {
	t.Parallel()
	client, _ := bounded(t)
	ended, end := context.WithCancel(t.Context())
	end()
	denies, err := policy.New(policy.Policy{Tools: policy.Names{Deny: []string{"bash"}}})
	require.NoError(t, err)
	var ids atomic.Int64
	ref := func(f *fleet.Future) protocol.CallRef {
		<-f.Done()
		return f.Ref()
	}
	for name, first := range map[string]func() protocol.CallRef{
		"a quota":          func() protocol.CallRef { return ref(client.Go(t.Context(), ofAcme())) },
		"a full pool":      func() protocol.CallRef { return ref(client.Go(t.Context(), ofSmall(100*time.Millisecond))) },
		"an ended context": func() protocol.CallRef { return ref(client.Go(ended, shell("a", "true"))) },
		"invalid":          func() protocol.CallRef { return ref(client.Go(t.Context(), fleet.Call{})) },
		"an invalid stream": func() protocol.CallRef {
			return ref(client.Stream("a", "no stream").Go(t.Context(), shell("a", "true")))
		},
		"a policy denies it": func() protocol.CallRef {
			return ref(client.Go(t.Context(), fleet.Call{Tool: "bash", Arguments: `{"command":"true"}`, Policy: denies}))
		},
		"cancelled before": func() protocol.CallRef {
			f := client.Go(t.Context(), ofSmall(0))
			require.NoError(t, f.Cancel(t.Context()))
			return ref(f)
		},
		"Submit, refused": func() protocol.CallRef {
			ref, err := client.Submit(t.Context(), ofAcme())
			require.ErrorIs(t, err, fleet.ErrQuota)
			return ref
		},
		"Submit, ended context": func() protocol.CallRef {
			ref, err := client.Submit(ended, shell("a", "true"))
			require.ErrorIs(t, err, fleet.ErrNotSent)
			return ref
		},
		"Submit of a stream, refused": func() protocol.CallRef {
			ref, err := client.Stream("a", "b").Submit(t.Context(), ofAcme())
			require.ErrorIs(t, err, fleet.ErrQuota)
			return ref
		},
		"Call, ended context": func() protocol.CallRef {
			call := shell("a", "true")
			call.Session, call.ID = "own", protocol.CallID(fmt.Sprint("call-", ids.Add(1)))
			_, err := client.Call(ended, call)
			require.ErrorIs(t, err, fleet.ErrNotSent)
			return protocol.CallRef{SessionID: call.Session, ID: call.ID}
		},
		"one that waits itself": func() protocol.CallRef {
			call := shell("a", "true")
			call.After = []protocol.CallRef{ref(client.Go(t.Context(), ofAcme()))}
			return ref(client.Go(t.Context(), call))
		},
	} {
		for how, second := range map[string]func(fleet.Call) error{
			"Go": func(c fleet.Call) error {
				result, err := client.Go(t.Context(), c).Wait(t.Context())
				return errors.Join(err, result.Err())
			},
			"Call": func(c fleet.Call) error {
				result, err := client.Call(t.Context(), c)
				return errors.Join(err, result.Err())
			},
			"Submit": func(c fleet.Call) error { return second(client.Submit(t.Context(), c)) },
			"a stream": func(c fleet.Call) error {
				stream := client.Stream("a", "c")
				stream.Wait(c.After[0])
				c.After = nil
				result, err := stream.Go(t.Context(), c).Wait(t.Context())
				return errors.Join(err, result.Err())
			},
		} {
			t.Run(name+", "+how, func(t *testing.T) {
				t.Parallel()
				call := shell("a", "true")
				call.After = []protocol.CallRef{first()}
				requireUnmet(t, second(call))
			})
		}
	}
}

// A call is sent when those before it were. So what waits for one that is held back ends with it.
func TestAfter_ACallThatIsHeldBack(t *testing.T) {
	t.Parallel()
	client, rules := bounded(t)
	after := func(f *fleet.Future) fleet.Call {
		call := shell("a", "true")
		call.After, call.MinLevel = []protocol.CallRef{f.Ref()}, "none"
		return call
	}
	stops, stop := context.WithCancel(t.Context())
	defer stop()
	first := client.Go(stops, ofSmall(0))
	last := shell("a", "true")
	last.MinLevel = "none"
	waits, behind := client.Go(t.Context(), after(first)), client.Go(t.Context(), last)
	called, submitted := make(chan error, 1), make(chan error, 1)
	go func() {
		result, err := client.Call(t.Context(), after(first))
		called <- errors.Join(err, result.Err())
	}()
	go func() { submitted <- second(client.Submit(t.Context(), after(first))) }()
	cancelled, late := client.Go(t.Context(), after(first)), after(first)
	late.Sandbox, late.QueueTimeout = "late", 10*time.Millisecond
	result, err := client.Go(t.Context(), late).Wait(t.Context())
	require.NoError(t, err)
	requireUnmet(t, result.Err())
	ended, end := context.WithCancel(t.Context())
	end()
	require.ErrorIs(t, second(client.Go(ended, after(first)).Wait(t.Context())), fleet.ErrNotSent)
	other := client.Go(t.Context(), after(first))
	require.NoError(t, cancelled.Cancel(t.Context()))
	<-cancelled.Done()
	for _, f := range []*fleet.Future{first, waits, behind, other} {
		select {
		case <-f.Done():
			require.Fail(t, "it has ended")
		default:
		}
	}
	stop()
	for _, f := range []*fleet.Future{waits, other} {
		result = mustWait(t, f)
		requireUnmet(t, result.Err())
	}
	requireUnmet(t, <-called)
	requireUnmet(t, <-submitted)

	first = client.Go(t.Context(), ofSmall(0))
	waits = client.Go(t.Context(), after(first))
	require.NoError(t, rules.Replace(t.Context(), nil))
	for _, pool := range []protocol.Pool{"small", ""} {
		mustStart(t, client, worker.Options{Driver: "process", Pool: pool})
	}
	requireOK(t, first, waits, behind)
}

// A call that this process could not send again is in the fleet all the same.
func TestAfter_ACallThatWasSentBefore(t *testing.T) {
	t.Parallel()
	client := started(t)
	call := shell("a", "sleep 1")
	call.ID = "mine"
	ref, err := client.Submit(t.Context(), call)
	require.NoError(t, err)
	ended, end := context.WithCancel(t.Context())
	end()
	require.ErrorIs(t, second(client.Submit(ended, call)), fleet.ErrNotSent)
	waits := shell("b", "true")
	waits.After = []protocol.CallRef{ref}
	requireOK(t, client.Go(t.Context(), waits))
}
