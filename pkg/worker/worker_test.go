package worker_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/toolfleet/toolfleet/internal/natsio/natsiotest"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
	"github.com/toolfleet/toolfleet/pkg/worker"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type greeting struct {
	Name string `json:"name"`
}

// seen is what a handler learned about its call.
type seen struct {
	Tool      string   `json:"tool"`
	Session   string   `json:"session"`
	Attempt   int      `json:"attempt"`
	Resources []string `json:"resources"`
	Greeting  string   `json:"greeting"`
	Held      bool     `json:"held"` // it has a fence, and time left
}

func greet(_ context.Context, call *worker.Call, args greeting) (seen, error) {
	call.Output([]byte("greeting " + args.Name))
	s := seen{Tool: call.Tool(), Session: string(call.Session()), Attempt: call.Attempt(), Greeting: "hello " + args.Name}
	s.Held = call.Fence() > 0 && call.LeaseEnd().After(time.Now())
	for _, use := range call.Resources() {
		s.Resources = append(s.Resources, string(use.Access)+" "+string(use.Key))
	}
	return s, nil
}

func TestHandle_GetsItsArgumentsAndItsCall(t *testing.T) {
	t.Parallel()
	f, err := fleet.Connect(t.Context(), fleet.Options{})
	require.NoError(t, err)
	defer func() { require.NoError(t, f.Close()) }()
	_, err = f.StartWorker(t.Context(), worker.Options{
		Driver: "process", Handlers: []worker.Handler{worker.Handle("greet", greet)},
	})
	require.NoError(t, err)
	shared := tools.Remote{Kind: "greet", Resources: []tools.Resource{{Key: "person/{name}", Access: protocol.Shared}}}
	older := tools.NewRemote[struct {
		First string `json:"first"`
	}]("greet_first", "Greet.", tools.Remote{Kind: "greet"})
	table, err := tools.NewTable(tools.NewRemote[greeting]("greet", "Greet.", shared), older)
	require.NoError(t, err)

	outcome, err := f.Call(t.Context(), fleet.Call{Table: table, Session: "s", Tool: "greet", Arguments: `{"name":"Ada"}`})
	require.NoError(t, err)
	require.Nil(t, outcome.Error)
	require.JSONEq(t, `{"tool":"greet","session":"s","attempt":1,"resources":["shared person/Ada"],"greeting":"hello Ada","held":true}`, outcome.Text)

	outcome, err = f.Call(t.Context(), fleet.Call{Table: table, Session: "s", Tool: "greet_first", Arguments: `{"first":"Ada"}`})
	require.NoError(t, err)
	require.Equal(t, codes.InvalidPayload, outcome.Error.Code)
	require.Contains(t, outcome.Error.Message, "another version")
}

func TestHandle_Errors(t *testing.T) {
	t.Parallel()
	f, err := fleet.Connect(t.Context(), fleet.Options{})
	require.NoError(t, err)
	defer func() { require.NoError(t, f.Close()) }()
	fail := func(_ context.Context, _ *worker.Call, args greeting) (string, error) {
		switch args.Name {
		case "nil":
			var none *protocol.Error
			return "said", none
		case "no code":
			return "", &protocol.Error{Message: "it went wrong"}
		case "at length":
			return "", errors.New(strings.Repeat("no\xff", 4<<20)) // no message of NATS has room for it
		default:
			return "", protocol.Errorf(protocol.CodeNotFound, "there is no %s", args.Name)
		}
	}
	_, err = f.StartWorker(t.Context(), worker.Options{
		Driver: "process", Handlers: []worker.Handler{worker.Handle("fail", fail)},
	})
	require.NoError(t, err)
	table, err := tools.NewTable(tools.NewRemote[greeting]("fail", "Fail.", tools.Remote{Kind: "fail", Resources: []tools.Resource{}}))
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // for a result that never comes
	defer cancel()
	for name, want := range map[string]string{
		"at length": `path="result:`,
		"nil":       "said", "no code": "[failed: tool_failed]\nit went wrong", "Ada": "[failed: not_found]\nthere is no Ada",
	} {
		outcome, err := f.Call(ctx, fleet.Call{Table: table, Session: "s", Tool: "fail", Arguments: `{"name":"` + name + `"}`})
		require.NoError(t, err)
		require.Contains(t, outcome.Text, want)
	}
}

func TestRun_RefusesBadOptionsBeforeItConnects(t *testing.T) {
	t.Parallel()
	run := func(handlers ...worker.Handler) error {
		return worker.Run(t.Context(), worker.Options{Server: worker.Server{URL: "nats://127.0.0.1:1"}, Handlers: handlers})
	}
	require.ErrorContains(t, run(worker.Handle("greet", greet), worker.Handle("greet", greet)), "there are two")
	require.ErrorIs(t, run(worker.Handle("command_run", greet)), wire.ErrInvalidKind)
	require.ErrorContains(t, run(worker.Handle[greeting, seen]("greet", nil)), "handler of greet: function: missing")
	require.Equal(t, protocol.Kind("greet"), worker.Handle("greet", greet).Kind())

	require.ErrorContains(t, worker.Run(t.Context(), worker.Options{}), "server: URL: is missing")
	err := worker.Run(t.Context(), worker.Options{
		Slots: 5000, Pool: protocol.SessionPool, Name: "a b", Drain: -1,
		Server: worker.Server{URL: "http://x", Fleet: "No Fleet", CallKeys: "no/such/file"},
	})
	for _, part := range []string{"slots 5000: must be 1 to 4096", `pool "session"`, `name "a b"`, "drain -1ns", "nats://host:port", "No Fleet", "no/such/file"} {
		require.ErrorContains(t, err, part)
	}
}

// A worker that cannot take calls of a fleet says why, as a client does.
func TestRun_RefusesAFleetOfAnotherVersionAndAUserWithoutRights(t *testing.T) {
	t.Parallel()
	server := natsiotest.Serve(t, natsiotest.Alone(t, "", `accounts {
  A { jetstream: enabled, users: [{user: a, password: a}, {user: b, password: b, permissions: {publish: ["nothing"], subscribe: ["_INBOX.>"]}}] }
}`))
	at := func(user string) worker.Options {
		return worker.Options{
			Server: worker.Server{URL: "nats://" + user + ":" + user + "@" + server.Addr().String()}, Driver: "none", Data: t.TempDir(),
			Handlers: []worker.Handler{worker.Handle("greet", greet)},
		}
	}
	require.ErrorIs(t, worker.Run(t.Context(), at("b")), fleet.ErrRights)

	nc, err := nats.Connect(at("a").Server.URL)
	require.NoError(t, err)
	defer nc.Close()
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	_, err = js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "TF_CALLS", Subjects: []string{"tf.call.>"}})
	require.NoError(t, err)
	require.ErrorIs(t, worker.Run(t.Context(), at("a")), fleet.ErrVersion)
}

func TestRun_DrainsWhenItsContextEnds(t *testing.T) {
	t.Parallel()
	server := natsiotest.Serve(t, natsiotest.Alone(t, "", ""))
	began, release := make(chan struct{}, 1), make(chan struct{})
	wait := worker.Handle("wait", func(ctx context.Context, _ *worker.Call, _ struct{}) (string, error) {
		began <- struct{}{}
		select {
		case <-release:
			return "ended", nil
		case <-ctx.Done():
			return "", context.Cause(ctx)
		}
	})
	start := func(drain time.Duration) (stop context.CancelFunc, ended <-chan error) {
		ctx, stop := context.WithCancel(t.Context())
		result := make(chan error, 1)
		go func() {
			result <- worker.Run(ctx, worker.Options{
				Server: worker.Server{URL: server.ClientURL()}, Name: "runner", Data: t.TempDir(), Driver: "none", Drain: drain, Handlers: []worker.Handler{wait},
			})
		}()
		return stop, result
	}
	f, err := fleet.Connect(t.Context(), fleet.Options{URL: server.ClientURL()})
	require.NoError(t, err)
	defer func() { require.NoError(t, f.Close()) }()
	table, err := tools.NewTable(tools.NewRemote[struct{}]("wait", "Wait.", tools.Remote{Kind: "wait", Resources: []tools.Resource{}}))
	require.NoError(t, err)
	outcomes := make(chan fleet.Result, 1)
	call := func() {
		outcome, _ := f.Call(t.Context(), fleet.Call{Table: table, Tool: "wait"})
		outcomes <- outcome
	}

	stop, ended := start(time.Minute)
	go call()
	<-began
	stop()
	close(release)
	require.NoError(t, <-ended)
	outcome := <-outcomes
	require.Equal(t, "ended", outcome.Text)
	require.Contains(t, outcome.WorkerID, "runner-")

	release = make(chan struct{})
	stop, ended = start(time.Millisecond)
	go call()
	<-began
	stop()
	require.ErrorContains(t, <-ended, "time to drain is over")
	close(release)
	stop, ended = start(0)
	require.Contains(t, (<-outcomes).Text, "[attempt 2: ", "another worker has run it again")
	stop()
	require.NoError(t, <-ended)
}
