package worker_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/toolfleet/toolfleet/internal/wire"
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
	require.NoError(t, f.StartWorker(t.Context(), &fleet.WorkerOptions{
		Sandbox: "process", Handlers: []worker.Handler{worker.Handle("greet", greet)},
	}))
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
	require.Equal(t, protocol.CodeInvalidPayload, outcome.Error.Code)
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
	require.NoError(t, f.StartWorker(t.Context(), &fleet.WorkerOptions{
		Sandbox: "process", Handlers: []worker.Handler{worker.Handle("fail", fail)},
	}))
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

func TestByKind_RefusesTwoOfAKind(t *testing.T) {
	t.Parallel()
	_, err := worker.ByKind(worker.Handle("greet", greet), worker.Handle("greet", greet))
	require.ErrorContains(t, err, "there are two")
	_, err = worker.ByKind(worker.Handle("command_run", greet))
	require.ErrorIs(t, err, wire.ErrInvalidKind)
	_, err = worker.ByKind(worker.Handle[greeting, seen]("greet", nil))
	require.ErrorContains(t, err, "handler of greet: function: missing")
	require.Equal(t, protocol.Kind("greet"), worker.Handle("greet", greet).Kind())
}
