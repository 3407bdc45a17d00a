package fleet_test

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/toolfleet/toolfleet/internal/natsio/embedded"
	"github.com/toolfleet/toolfleet/internal/natsio/natsiotest"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/worker"
)

// started is a client with an embedded server and a worker.
func started(t *testing.T) *fleet.Client {
	t.Helper()
	client := mustConnect(t, fleet.Options{})
	t.Cleanup(func() { require.NoError(t, client.Close()) })
	mustStart(t, client, worker.Options{Driver: "process"})
	return client
}

func TestCall_InvalidInputSendsNothingAndNamesEachField(t *testing.T) {
	t.Parallel()
	client := mustConnect(t, fleet.Options{})
	defer func() { require.NoError(t, client.Close()) }()
	now := time.Now()
	for _, test := range []struct {
		call fleet.Call
		says []string
	}{
		{fleet.Call{}, []string{"tool: missing"}},
		{fleet.Call{Tool: "bash", Payload: protocol.CommandRun{}}, []string{`tool "bash": must not be combined with a payload`}},
		{fleet.Call{Handler: "No", Args: 1}, []string{`handler: invalid payload kind "No"`}},
		{fleet.Call{Handler: "bash", Tool: "bash"}, []string{`handler "bash": must not be combined with a tool`}},
		{fleet.Call{Handler: "add", Args: func() {}}, []string{"handler: args of add: json: unsupported type"}},
		{fleet.Call{Tool: "bash", Args: 1}, []string{"args: need a handler"}},
		{fleet.Call{Payload: &protocol.CommandRun{}}, []string{"payload *protocol.CommandRun: must be a payload type"}},
		{fleet.Call{Payload: protocol.CommandRun{}, Arguments: "{}"}, []string{`arguments "{}": must not`}},
		{fleet.Call{Tool: "bash", Session: "a b", Sandbox: "a/b", ID: "a.b"}, []string{`session id "a b"`, `sandbox: invalid name`, `call id "a.b"`}},
		{fleet.Call{Tool: "bash", Pool: "Big", Tenant: "A", Priority: "high"}, []string{`pool "Big"`, `tenant "A"`}},
		{fleet.Call{Tool: "bash", Priority: "high", MinLevel: "most"}, []string{`priority "high": must be`, `min level "most": must be one of`}},
		{fleet.Call{Tool: "bash", Timeout: -1, QueueTimeout: -1}, []string{"timeout -1ns: must not be negative", "queue timeout -1ns: must not"}},
		{fleet.Call{Tool: "bash", Delivery: "twice"}, []string{`delivery "twice": must be "idempotent"`}},
		{fleet.Call{Tool: "bash", Delivery: protocol.Idempotent, Retry: &protocol.Retry{Attempts: 1}}, []string{"retry.attempts 1: must be 2 to"}},
		{fleet.Call{Tool: "bash", NotBefore: now.Add(time.Hour), Deadline: now.Add(time.Minute)}, []string{"must be before deadline"}},
		{fleet.Call{Tool: "bash", NotBefore: now.Add(367 * 24 * time.Hour)}, []string{"not_before", "at most"}},
		{fleet.Call{Tool: "bash", Resources: []protocol.Use{{Key: "a", Access: "all"}}}, []string{`resources[0]: invalid name: resource key "a"`}},
	} {
		result, err := client.Call(t.Context(), test.call)
		require.ErrorIs(t, err, protocol.ErrInvalidCall)
		for _, part := range test.says {
			require.ErrorContains(t, err, part)
		}
		require.Equal(t, protocol.StatusRejected, result.Status)
	}
}

// A payload runs without a tool, in the sandbox that the call names; what a call names replaces
// what its tool defines.
func TestCall_RunsAPayload(t *testing.T) {
	t.Parallel()
	client := started(t)
	result := mustCall(t, client, fleet.Call{Sandbox: "box", Payload: protocol.CommandRun{Command: "echo here > a"}})
	require.Equal(t, protocol.StatusOK, result.Status, result.Text)
	require.IsType(t, protocol.CommandRunResult{}, result.Value)
	require.Equal(t, protocol.SessionID("box"), result.SessionID)
	result = mustCall(t, client, fleet.Call{Session: "s", Sandbox: "box", Tool: "read", Arguments: `{"path":"a"}`})
	require.Contains(t, result.Text, "here")
	require.Equal(t, protocol.SessionID("s"), result.SessionID)
	result = mustCall(t, client, fleet.Call{Sandbox: "box", Tool: "bash", Arguments: `{"command":"sleep 60"}`, Timeout: time.Second})
	require.Equal(t, protocol.StatusTimeout, result.Status)
	result = mustCall(t, client, fleet.Call{Tool: "bash", Arguments: `{"command":"ls -A"}`})
	require.NotContains(t, result.Text, "here", "a call that names neither session nor sandbox has those of the client")
}

func TestConnect_UsesWhatItIsGiven(t *testing.T) {
	t.Parallel()
	server := natsiotest.Serve(t, natsiotest.Alone(t, "", ""))
	nc, err := nats.Connect(server.ClientURL())
	require.NoError(t, err)
	defer nc.Close()
	_, err = fleet.Connect(t.Context(), fleet.Options{Conn: nc, URL: server.ClientURL()})
	require.ErrorContains(t, err, "conn: must not be combined with a URL")
	spans, reader := tracetest.NewSpanRecorder(), sdkmetric.NewManualReader()
	client, err := fleet.Connect(t.Context(), fleet.Options{
		Conn: nc, TracerProvider: sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans)),
		MeterProvider: sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)),
	})
	require.NoError(t, err)
	mustStart(t, client, worker.Options{Driver: "process"})
	result := mustCall(t, client, fleet.Call{Tool: "bash", Arguments: `{"command":"echo hello"}`})
	require.Equal(t, protocol.StatusOK, result.Status, result.Text)
	require.NotEmpty(t, spans.Ended())
	var metrics metricdata.ResourceMetrics
	require.NoError(t, reader.Collect(t.Context(), &metrics))
	require.NotEmpty(t, metrics.ScopeMetrics)
	require.NoError(t, client.Close())
	require.True(t, nc.IsConnected(), "it is the program's")
	require.NoError(t, nc.Flush())
}

// ValueOf returns only what a call has returned.
func TestValueOf_OfWhatIsNone(t *testing.T) {
	t.Parallel()
	client := started(t)
	echo := fleet.Call{Payload: protocol.CommandRun{Command: "echo here"}}
	ran, err := fleet.ValueOf[protocol.CommandRunResult](client.Call(t.Context(), echo))
	require.NoError(t, err)
	require.Equal(t, "here\n", string(ran.Stdout))
	_, err = fleet.ValueOf[int](client.Call(t.Context(), echo))
	require.ErrorContains(t, err, "the value is a protocol.CommandRunResult, and no int")
	_, err = fleet.ValueOf[int](client.Call(t.Context(), fleet.Call{}))
	require.ErrorIs(t, err, protocol.ErrInvalidCall)
}

// An id names one call: sent again it is that call, while it runs and after it. Another tool or
// other arguments are refused, and the first one's result is not theirs.
func TestCall_AnIDIsOfOneCall(t *testing.T) {
	t.Parallel()
	client := started(t)
	first := fleet.Call{Tool: "bash", Arguments: `{"command":"echo one >> log; cat log; sleep 0.3"}`, Session: "s", ID: "k1"}
	running := client.Go(t.Context(), first)
	require.Eventually(t, func() bool { // it is sent in the background
		_, err := client.Attach(t.Context(), running.Ref())
		return err == nil
	}, time.Minute, 5*time.Millisecond)
	others := map[string]fleet.Call{
		"of bash; this one, of bash with other arguments, was": {Tool: "bash", Arguments: `{"command":"echo two >> log; cat log"}`},
		"of bash; this one, of read, was":                      {Tool: "read", Arguments: `{"path":"log"}`},
		"of bash; this one, of a payload, was":                 {Payload: protocol.CommandRun{Command: "rm log"}},
		"of bash; this one, of add, was":                       {Handler: "add", Args: 1},
	}
	refused := func() {
		t.Helper()
		for says, other := range others {
			other.Session, other.ID = "s", "k1"
			for range 2 {
				r := mustCall(t, client, other)
				require.Equal(t, protocol.StatusRejected, r.Status)
				require.Equal(t, codes.IDReused, r.Error.Code)
				require.Contains(t, r.Error.Message, says)
				require.Nil(t, r.Value)
			}
		}
	}
	refused()
	result := mustWait(t, running)
	require.Contains(t, result.Text, "one")
	refused()
	again := mustCall(t, client, first)
	require.Equal(t, result.FinishedAt, again.FinishedAt)
	elsewhere := first
	elsewhere.Session, elsewhere.Arguments = "other", `{"command":"echo two"}`
	r := mustCall(t, client, elsewhere)
	require.Equal(t, protocol.StatusOK, r.Status, "another session's ids are others")
}

// TestCall_OfAPoolThatNobodyServes: in an embedded fleet it would wait for ever, so the error says
// which pools there are.
func TestCall_OfAPoolThatNobodyServes(t *testing.T) {
	t.Parallel()
	client := mustConnect(t, fleet.Options{})
	t.Cleanup(func() { require.NoError(t, client.Close()) })
	hello := worker.Handle("hello", func(context.Context, *worker.Call, struct{}) (string, error) { return "hello", nil })
	mustStart(t, client, worker.Options{Pool: "build", Driver: "none", Handlers: []worker.Handler{hello}})
	_, err := client.Call(t.Context(), fleet.Call{Handler: "hello"})
	require.ErrorIs(t, err, protocol.ErrInvalidCall)
	require.ErrorContains(t, err, "pool default: no worker serves it")
	require.ErrorContains(t, err, "the workers of this process serve build")
	greeting, err := fleet.ValueOf[string](client.Call(t.Context(), fleet.Call{Handler: "hello", Pool: "build", Resources: []protocol.Use{{Key: "greeting/one"}}}))
	require.NoError(t, err, "access is exclusive where none is named")
	require.Equal(t, "hello", greeting)
}

// callUntil makes one call and requires that it returns because its context ends. That it does not
// wait for the outcome of the cancel then is a test of package calls.
func callUntil(ctx context.Context, t *testing.T, f *fleet.Client, id protocol.CallID, command string) (fleet.Result, error) {
	t.Helper()
	outcome, err := f.Call(ctx, fleet.Call{ID: id, Table: table(t), Session: "s", Tool: "bash", Arguments: `{"command":"` + command + `"}`})
	require.Error(t, ctx.Err(), "it has to wait for the context: %+v, %v", outcome, err)
	return outcome, err
}

// onceSent returns a context that ends when the fleet has the call.
func onceSent(t *testing.T, f *fleet.Client, call protocol.CallRef) context.Context {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			if _, err := f.Attach(ctx, call); err == nil {
				cancel()
			}
			time.Sleep(5 * time.Millisecond)
		}
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return ctx
}

func TestCall_AContextThatHasEndedSendsNothing(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	f := mustConnect(t, fleet.Options{Data: data})
	defer func() { require.NoError(t, f.Close()) }()
	cause := errors.New("the user left")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	outcome, err := callUntil(ctx, t, f, "", "touch ran")
	require.ErrorIs(t, err, fleet.ErrNotSent)
	require.ErrorIs(t, err, cause)
	require.NotErrorIs(t, err, fleet.ErrUnreachable)
	require.Equal(t, protocol.StatusRejected, outcome.Status)
	require.NotNil(t, outcome.Error)

	mustStart(t, f, worker.Options{Driver: "process"})
	outcome = mustCall(t, f, fleet.Call{Table: table(t), Session: "s", Tool: "bash", Arguments: `{"command":"ls -A"}`})
	require.NotContains(t, outcome.Text, "ran")
}

func TestCall_ReturnsWhenItsContextEnds(t *testing.T) {
	t.Parallel()
	f := mustConnect(t, fleet.Options{})
	defer func() { require.NoError(t, f.Close()) }()
	outcome, err := callUntil(onceSent(t, f, protocol.CallRef{SessionID: "s", ID: "ends"}), t, f, "ends", "true")
	require.NoError(t, err)
	require.Equal(t, protocol.StatusOutcomeUnknown, outcome.Status)
	require.Contains(t, []protocol.Code{protocol.CodeNoWorker, protocol.CodeOutcomeUnknown}, outcome.Error.Code,
		"it was sent, and no worker is there; a busy server does not say so in time")
}

func TestCall_ReturnsWhenItsContextEndsWhileItRuns(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	f := mustConnect(t, fleet.Options{})
	defer func() { require.NoError(t, f.Close()) }()
	_, err := f.StartWorker(t.Context(), worker.Options{
		Driver: "process", Workspace: func(string) (string, bool) { return dir, true },
	})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		defer cancel()
		for ctx.Err() == nil {
			if _, err := os.Stat(filepath.Join(dir, "runs")); err == nil {
				return
			}
			time.Sleep(5 * time.Millisecond)
		}
	}()
	outcome, err := callUntil(ctx, t, f, "", "trap : TERM; touch runs; while :; do sleep 1; done")
	require.NoError(t, err)
	require.Contains(t, []protocol.Status{protocol.StatusCancelled, protocol.StatusOutcomeUnknown}, outcome.Status)
}

func TestCall_SaysThatTheServerIsAway(t *testing.T) {
	t.Parallel()
	server, err := embedded.Start(t.Context(), embedded.Options{Data: t.TempDir(), Listen: "127.0.0.1:0"})
	require.NoError(t, err)
	defer server.Close()
	lost := lossLogger{make(chan struct{})}
	f, err := fleet.Connect(t.Context(), fleet.Options{
		URL: server.URL(), Creds: server.CredentialFile(), Data: t.TempDir(), Logger: slog.New(lost),
	})
	require.NoError(t, err)
	defer func() { require.NoError(t, f.Close()) }()
	mustStart(t, f, worker.Options{Driver: "process"})
	outcome := mustCall(t, f, fleet.Call{Table: table(t), Session: "s", Tool: "bash", Arguments: `{"command":"true"}`})
	require.Equal(t, protocol.StatusOK, outcome.Status)
	server.Close()
	<-lost.told
	for range 60 { // a busy machine may try nothing in time, or not find out that nothing was sent
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		outcome, err = callUntil(ctx, t, f, "", "true")
		cancel()
		require.ErrorIs(t, err, context.DeadlineExceeded)
		if errors.Is(err, fleet.ErrNotSent) && errors.Is(err, fleet.ErrUnreachable) {
			break
		}
	}
	require.ErrorIs(t, err, fleet.ErrNotSent)
	require.ErrorIs(t, err, fleet.ErrUnreachable)
	require.Equal(t, protocol.StatusRejected, outcome.Status)
	require.Equal(t, protocol.CodeFleetUnavailable, outcome.Error.Code)
}

// lossLogger tells once that the connection is lost.
type lossLogger struct{ told chan struct{} }

func (lossLogger) Enabled(context.Context, slog.Level) bool { return true }
func (l lossLogger) WithAttrs([]slog.Attr) slog.Handler     { return l }
func (l lossLogger) WithGroup(string) slog.Handler          { return l }

func (l lossLogger) Handle(_ context.Context, r slog.Record) error {
	if r.Message == "nats connection lost" {
		close(l.told) // nothing comes back
	}
	return nil
}
