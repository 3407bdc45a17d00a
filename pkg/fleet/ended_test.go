package fleet_test

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/natsio/embedded"
	"github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/worker"
)

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
	f, err := fleet.Connect(t.Context(), fleet.Options{Data: data})
	require.NoError(t, err)
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

	_, err = f.StartWorker(t.Context(), worker.Options{Driver: "process"})
	require.NoError(t, err)
	outcome, err = f.Call(t.Context(), fleet.Call{Table: table(t), Session: "s", Tool: "bash", Arguments: `{"command":"ls -A"}`})
	require.NoError(t, err)
	require.NotContains(t, outcome.Text, "ran")
}

func TestCall_ReturnsWhenItsContextEnds(t *testing.T) {
	t.Parallel()
	f, err := fleet.Connect(t.Context(), fleet.Options{})
	require.NoError(t, err)
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
	f, err := fleet.Connect(t.Context(), fleet.Options{})
	require.NoError(t, err)
	defer func() { require.NoError(t, f.Close()) }()
	_, err = f.StartWorker(t.Context(), worker.Options{
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
	_, err = f.StartWorker(t.Context(), worker.Options{Driver: "process"})
	require.NoError(t, err)
	outcome, err := f.Call(t.Context(), fleet.Call{Table: table(t), Session: "s", Tool: "bash", Arguments: `{"command":"true"}`})
	require.NoError(t, err)
	require.Equal(t, protocol.StatusOK, outcome.Status)
	server.Close()
	<-lost.told
	for range 60 { // a busy machine may not find out in time that nothing was sent
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		outcome, err = callUntil(ctx, t, f, "", "true")
		cancel()
		require.ErrorIs(t, err, fleet.ErrUnreachable)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		if errors.Is(err, fleet.ErrNotSent) {
			break
		}
	}
	require.ErrorIs(t, err, fleet.ErrNotSent)
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
