package fleet_test

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/natsio/embedded"
	"github.com/toolfleet/toolfleet/internal/natsio/natsiotest"
	"github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools/mcp"
	"github.com/toolfleet/toolfleet/pkg/worker"
)

type method = func(context.Context) error

// methods calls each method that takes a context with valid input. sends are those that send calls.
func methods(t *testing.T, c *fleet.Client) (all, sends map[string]method) {
	t.Helper()
	call, turn, dir := shell("a", "true"), fleet.Turn{Prompt: "hello"}, t.TempDir()
	lanes, limits, schedules, sessions, templates := c.Lanes(""), c.Limits(), c.Schedules(), c.Sessions(""), c.Templates()
	stream, future := c.Stream("a", "b"), c.Go(t.Context(), call) // there is no worker
	require.Eventually(t, func() bool { return second(c.Attach(t.Context(), future.Ref())) == nil }, time.Minute, 5*time.Millisecond)
	wait := func(f *fleet.Future) error { return second(f.Wait(context.WithoutCancel(t.Context()))) }
	third := func(_, _ any, err error) error { return err }
	sends = map[string]method{
		"Client.Call":     func(ctx context.Context) error { return second(c.Call(ctx, call)) },
		"Client.Go":       func(ctx context.Context) error { return wait(c.Go(ctx, call)) },
		"Client.Submit":   func(ctx context.Context) error { return second(c.Submit(ctx, call)) },
		"Stream.Go":       func(ctx context.Context) error { return wait(stream.Go(ctx, fleet.Call{Payload: call.Payload})) },
		"Stream.Submit":   func(ctx context.Context) error { return second(stream.Submit(ctx, fleet.Call{Payload: call.Payload})) },
		"Sessions.Run":    func(ctx context.Context) error { return second(sessions.Run(ctx, turn, nil)) },
		"Sessions.Submit": func(ctx context.Context) error { return second(sessions.Submit(ctx, turn)) },
	}
	all = map[string]method{
		"Client.Attach": func(ctx context.Context) error { return second(c.Attach(ctx, future.Ref())) },
		"Client.AwaitApproval": func(ctx context.Context) error {
			return second(c.AwaitApproval(ctx, loop.ApprovalRequest{SessionID: "s", CallID: "c"}))
		},
		"Client.ServerTools": func(ctx context.Context) error {
			server := mcp.Server{MCPServer: protocol.MCPServer{Name: "one", Command: "one"}}
			return third(c.ServerTools(ctx, "s", []mcp.Server{server}, nil))
		},
		"Client.StartWorker": func(ctx context.Context) error {
			handler := worker.Handle("h", func(context.Context, *worker.Call, struct{}) (int, error) { return 0, nil })
			return second(c.StartWorker(ctx, worker.Options{Driver: "none", Handlers: []worker.Handler{handler}}))
		},
		"Client.Pools":   func(ctx context.Context) error { return second(c.Pools(ctx)) },
		"Client.Workers": func(ctx context.Context) error { return second(c.Workers(ctx, "", time.Second)) },

		"Future.Cancel": future.Cancel,
		"Future.Wait":   func(ctx context.Context) error { return second(future.Wait(ctx)) },

		"Lanes.Cancel":        func(ctx context.Context) error { return lanes.Cancel(ctx, "a/b", "c") },
		"Lanes.CancelRunning": func(ctx context.Context) error { return second(lanes.CancelRunning(ctx, "a/b")) },
		"Lanes.List":          func(ctx context.Context) error { return second(lanes.List(ctx, 0)) },
		"Lanes.Pause":         func(ctx context.Context) error { return second(lanes.Pause(ctx, "a/b")) },
		"Lanes.Resume":        func(ctx context.Context) error { return second(lanes.Resume(ctx, "a/b")) },
		"Lanes.Show":          func(ctx context.Context) error { return second(lanes.Show(ctx, "a/b", 0)) },
		"Lanes.Unmet":         func(ctx context.Context) error { return second(lanes.Unmet(ctx)) },
		"Lanes.Wake":          func(ctx context.Context) error { return second(lanes.Wake(ctx, "a/b")) },

		"Limits.List":   func(ctx context.Context) error { return second(limits.List(ctx)) },
		"Limits.Remove": func(ctx context.Context) error { return limits.Remove(ctx, fleet.Limit{Lane: "a/*"}) },
		"Limits.Set":    func(ctx context.Context) error { return limits.Set(ctx, fleet.Limit{Lane: "a/*", Concurrent: 1}) },

		"Schedules.Add": func(ctx context.Context) error {
			return second(schedules.Add(ctx, fleet.Schedule{Name: "a", Cron: "@daily"}, turn))
		},
		"Schedules.AddCall": func(ctx context.Context) error {
			return second(schedules.AddCall(ctx, fleet.Schedule{Name: "a", Cron: "@daily"}, call))
		},
		"Schedules.Ref": func(ctx context.Context) error { return second(schedules.Ref(ctx, "a", time.Time{})) },
		"Schedules.Page": func(ctx context.Context) error {
			_, _, err := schedules.Page(ctx, "", 1)
			return err
		},
		"Schedules.List":   func(ctx context.Context) error { return second(schedules.List(ctx)) },
		"Schedules.Pause":  func(ctx context.Context) error { return second(schedules.Pause(ctx, "a")) },
		"Schedules.Remove": func(ctx context.Context) error { return schedules.Remove(ctx, "a") },
		"Schedules.Resume": func(ctx context.Context) error { return second(schedules.Resume(ctx, "a")) },

		"Sessions.Answer": func(ctx context.Context) error {
			return sessions.Answer(ctx, "s", "c", protocol.Answer{Action: protocol.ActionDecline})
		},
		"Sessions.Approvals": func(ctx context.Context) error { return second(sessions.Approvals(ctx)) },
		"Sessions.Approve": func(ctx context.Context) error {
			return sessions.Approve(ctx, "s", "c", protocol.Approval{Granted: true})
		},
		"Sessions.Cancel":       func(ctx context.Context) error { return second(sessions.Cancel(ctx, "s")) },
		"Sessions.ChangedFiles": func(ctx context.Context) error { return second(sessions.ChangedFiles(ctx, "s")) },
		"Sessions.Changes":      func(ctx context.Context) error { return second(sessions.Changes(ctx, "s")) },
		"Sessions.CheckModel":   func(ctx context.Context) error { return sessions.CheckModel(ctx, "model") },
		"Sessions.Compact":      func(ctx context.Context) error { return second(sessions.Compact(ctx, "s", "")) },
		"Sessions.Compare":      func(ctx context.Context) error { return second(sessions.Compare(ctx, "s", "other")) },
		"Sessions.Diff":         func(ctx context.Context) error { return second(sessions.Diff(ctx, "s", "c")) },
		"Sessions.Effects":      func(ctx context.Context) error { return second(sessions.Effects(ctx, "s", fleet.At{})) },
		"Sessions.Files":        func(ctx context.Context) error { return second(sessions.Files(ctx, "s", "")) },
		"Sessions.Follow":       func(ctx context.Context) error { return second(sessions.Follow(ctx, "s", func(loop.Event) {}, nil)) },
		"Sessions.Fork":         func(ctx context.Context) error { return second(sessions.Fork(ctx, "s", fleet.At{}, "other")) },
		"Sessions.IDs":          func(ctx context.Context) error { return second(sessions.IDs(ctx)) },
		"Sessions.Import":       func(ctx context.Context) error { return second(sessions.Import(ctx, nil, "s")) },
		"Sessions.List":         func(ctx context.Context) error { return third(sessions.List(ctx, 0)) },
		"Sessions.Log":          func(ctx context.Context) error { return second(sessions.Log(ctx, "s")) },
		"Sessions.Merge":        func(ctx context.Context) error { return second(sessions.Merge(ctx, "s", "other")) },
		"Sessions.Pull":         func(ctx context.Context) error { return second(sessions.Pull(ctx, "s", dir, fleet.Copy{})) },
		"Sessions.Push":         func(ctx context.Context) error { return sessions.Push(ctx, "s", dir, fleet.Copy{}) },
		"Sessions.ReadFile":     func(ctx context.Context) error { return second(sessions.ReadFile(ctx, "s", "a", "")) },
		"Sessions.Remove":       func(ctx context.Context) error { return second(sessions.Remove(ctx, "s", true)) },
		"Sessions.Resolve":      func(ctx context.Context) error { return sessions.Resolve(ctx, "s", "c", true, "me") },
		"Sessions.Restore":      func(ctx context.Context) error { return third(sessions.Restore(ctx, "s", "c")) },
		"Sessions.Revert":       func(ctx context.Context) error { return second(sessions.Revert(ctx, "s", fleet.At{})) },
		"Sessions.Show":         func(ctx context.Context) error { return second(sessions.Show(ctx, "s")) },
		"Sessions.Unfinished":   func(ctx context.Context) error { return second(sessions.Unfinished(ctx, "s")) },

		"Templates.Create":            func(ctx context.Context) error { return templates.Create(ctx, "a", dir, fleet.Copy{}) },
		"Templates.CreateFromSession": func(ctx context.Context) error { return templates.CreateFromSession(ctx, "a", "s") },
		"Templates.List":              func(ctx context.Context) error { return second(templates.List(ctx)) },
		"Templates.Remove":            func(ctx context.Context) error { return templates.Remove(ctx, "a") },
	}
	maps.Copy(all, sends)
	var exported []string
	for _, of := range []any{c, lanes, limits, schedules, sessions, templates, stream, future} {
		kind := reflect.TypeOf(of)
		for method := range kind.Methods() {
			takes := method.Type.NumIn() > 1 && method.Type.In(1) == reflect.TypeFor[context.Context]()
			if name := reflect.Indirect(reflect.ValueOf(of)).Type().Name() + "." + method.Name; takes && name != "Future.Output" { // it returns no error
				exported = append(exported, name)
			}
		}
	}
	slices.Sort(exported)
	require.Equal(t, exported, slices.Sorted(maps.Keys(all)))
	return all, sends
}

// requireNotSent checks the errors of methods that send calls.
func requireNotSent(t *testing.T, sends map[string]method, name string, err error) {
	t.Helper()
	if sends[name] != nil {
		require.ErrorIs(t, err, fleet.ErrNotSent, name)
		require.NotErrorIs(t, err, fleet.ErrUnknownOutcome, name)
	}
}

// Each method of a closed client, with an ended context, or without a server has one outcome.
func TestOutcomes_OfEachMethod(t *testing.T) {
	t.Parallel()
	connect := func(t *testing.T) *fleet.Client {
		t.Helper()
		client := mustConnect(t, fleet.Options{URL: natsiotest.Serve(t, natsiotest.Alone(t, "", "")).ClientURL()})
		t.Cleanup(func() { require.NoError(t, client.Close()) })
		return client
	}
	t.Run("closed", func(t *testing.T) {
		t.Parallel()
		client := connect(t)
		all, sends := methods(t, client)
		require.NoError(t, client.Close())
		for name, call := range all {
			err := call(t.Context())
			require.ErrorIs(t, err, fleet.ErrClosed, name)
			require.NotErrorIs(t, err, fleet.ErrUnreachable, name)
			require.NotErrorIs(t, err, fleet.ErrInvalid, name)
			requireNotSent(t, sends, name, err)
		}
		_, err := client.Sessions("").Output("s", func(protocol.CallID, fleet.Output) {})
		require.ErrorIs(t, err, fleet.ErrClosed)
	})
	t.Run("ended context", func(t *testing.T) {
		t.Parallel()
		client := connect(t)
		all, sends := methods(t, client)
		ctx, cancel := context.WithCancelCause(t.Context())
		cause := errors.New("the user left")
		cancel(cause)
		for name, call := range all {
			err := call(ctx)
			require.ErrorIs(t, err, cause, name)
			require.NotErrorIs(t, err, fleet.ErrUnreachable, name)
			require.NotErrorIs(t, err, fleet.ErrInvalid, name)
			requireNotSent(t, sends, name, err)
		}
		list, err := client.Lanes("").List(t.Context(), 0)
		require.NoError(t, err)
		require.Len(t, list.Lanes, 1, "only that of the future has something")
	})
	t.Run("lost server", func(t *testing.T) {
		t.Parallel()
		server, err := embedded.Start(t.Context(), embedded.Options{Data: t.TempDir(), Listen: "127.0.0.1:0"})
		require.NoError(t, err)
		defer server.Close()
		lost := lossLogger{make(chan struct{})}
		client := mustConnect(t, fleet.Options{URL: server.URL(), Creds: server.CredentialFile(), Logger: slog.New(lost)})
		defer func() { require.NoError(t, client.Close()) }()
		all, sends := methods(t, client)
		server.Close()
		<-lost.told
		for name, call := range all {
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			err, over := call(ctx), ctx.Err()
			cancel()
			if over != nil { // else what waits to be sent to the server is too much
				require.ErrorIs(t, err, over, name)
			}
			if name != "Future.Wait" { // which asks the server nothing
				require.ErrorIs(t, err, fleet.ErrUnreachable, name)
			}
			require.NotErrorIs(t, err, fleet.ErrClosed, name)
			requireNotSent(t, sends, name, err)
		}
		_, err = client.Lanes("").List(t.Context(), 0)
		require.ErrorIs(t, err, fleet.ErrUnreachable, "it does not wait for ever")
		_, err = fleet.Connect(t.Context(), fleet.Options{URL: server.URL()})
		require.ErrorIs(t, err, fleet.ErrUnreachable)
	})
}

// A method that waits ends when its client is closed.
func TestOutcomes_OfMethodsThatWait(t *testing.T) {
	t.Parallel()
	client := mustConnect(t, fleet.Options{})
	all, _ := methods(t, client)
	ended := make(chan error, 4)
	for _, name := range []string{"Client.AwaitApproval", "Future.Wait", "Sessions.Run", "Sessions.Compact"} {
		go func() { ended <- all[name](t.Context()) }()
	}
	sessions := client.Lanes(protocol.SessionPool)
	require.Eventually(t, func() bool {
		list, err := sessions.List(t.Context(), 0)
		return err == nil && len(list.Lanes) == 2 // the turn and the compaction are sent
	}, time.Minute, 5*time.Millisecond)
	require.NoError(t, client.Close())
	for range cap(ended) {
		require.ErrorIs(t, <-ended, fleet.ErrClosed)
	}
}
