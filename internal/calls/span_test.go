package calls_test

import (
	"context"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/toolfleet/toolfleet/internal/calls"
	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/telemetry"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

func TestDispatch_Spans(t *testing.T) {
	t.Parallel()
	r := newRig(t, natsio.Topology{})
	recorder := tracetest.NewSpanRecorder()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder))
	t.Cleanup(func() { require.NoError(t, provider.Shutdown(context.Background())) })
	r.dispatcher = r.newDispatcher(r.NC, calls.Options{Tracer: provider.Tracer("test")})
	calls := newCalls(3)
	var mu sync.Mutex
	parents := map[protocol.CallID]trace.SpanID{} // as a worker sees them
	r.hold(func(_ context.Context, run *lane.Run) protocol.Result {
		mu.Lock()
		parents[run.Call.ID] = trace.SpanContextFromContext(telemetry.Extract(context.Background(), run.Header)).SpanID()
		mu.Unlock()
		if run.Call.ID == calls[1].ID {
			return wire.NewResult(run.Call, protocol.StatusFailed, protocol.Errorf(protocol.CodeNotFound, "not there"))
		}
		return succeed(run)
	})
	calls[2].Payload = tooLarge()
	ctx, turn := provider.Tracer("test").Start(t.Context(), "turn")
	_, err := r.dispatch(ctx, calls)
	require.NoError(t, err)
	turn.End()

	dispatches := map[string]sdktrace.ReadOnlySpan{} // by call
	publishes := map[trace.SpanID]sdktrace.ReadOnlySpan{}
	for _, span := range recorder.Ended() {
		require.Equal(t, turn.SpanContext().TraceID(), span.SpanContext().TraceID())
		switch span.Name() {
		case telemetry.SpanDispatch(calls[0].Tool):
			require.Equal(t, trace.SpanKindInternal, span.SpanKind())
			require.Equal(t, turn.SpanContext().SpanID(), span.Parent().SpanID())
			for _, a := range span.Attributes() {
				if a.Key == telemetry.KeyCallID {
					dispatches[a.Value.AsString()] = span
				}
			}
		case telemetry.SpanPublish:
			require.Equal(t, trace.SpanKindProducer, span.SpanKind())
			require.Subset(t, span.Attributes(), telemetry.Published(wire.CallsStream(r.Name)))
			publishes[span.Parent().SpanID()] = span
		}
	}
	require.Len(t, dispatches, 3)
	for i, want := range []struct{ status, fault string }{{"ok", ""}, {"failed", "not_found"}, {"rejected", "payload_too_large"}} {
		span := dispatches[string(calls[i].ID)]
		require.Contains(t, span.Attributes(), telemetry.KeyStatus.String(want.status))
		publish := publishes[span.SpanContext().SpanID()]
		require.NotNil(t, publish)
		for _, a := range span.Attributes() {
			require.NotEmpty(t, a.Value.String(), a.Key)
		}
		if i < 2 {
			require.Equal(t, publish.SpanContext().SpanID(), parents[calls[i].ID], "the worker's parent is the publish span")
		} else {
			require.Equal(t, codes.Error, publish.Status().Code)
		}
		if want.fault == "" {
			require.Equal(t, codes.Unset, span.Status().Code)
			continue
		}
		require.Equal(t, codes.Error, span.Status().Code)
		require.Contains(t, span.Attributes(), telemetry.KeyErrorType.String(want.fault))
		require.Equal(t, want.fault, span.Status().Description, "not a message, which may quote arguments")
	}
}
