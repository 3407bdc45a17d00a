package calls_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
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
	"github.com/toolfleet/toolfleet/internal/telemetry/metrictest"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

const (
	pool     = "toolfleet.pool=default"
	publish  = "messaging.operation.name=publish,messaging.system=nats," + pool
	testTool = "gen_ai.tool.name=test," + pool
)

func TestMetrics_TellWhatCameOfCalls(t *testing.T) {
	t.Parallel()
	const room = 2
	r := newRig(t, natsio.Topology{MaxCalls: room})
	m := metrictest.New(t)
	r.dispatcher = r.newDispatcher(r.NC, calls.Options{Meter: m})
	calls := newCalls(3)
	rejected := make(chan struct{}, len(calls))
	done := make(chan error, 1)
	go func() {
		done <- r.dispatcher.Dispatch(t.Context(), calls, func(u loop.Update) {
			if u.Result != nil && u.Result.Status == protocol.StatusRejected {
				rejected <- struct{}{}
			}
		})
	}()
	<-rejected
	require.Equal(t, map[string]int64{pool: room}, m.Read(t, telemetry.MetricCallActive))
	var failed atomic.Bool // which calls were accepted is a matter of chance
	r.hold(func(_ context.Context, run *lane.Run) protocol.Result {
		if failed.CompareAndSwap(false, true) {
			return wire.NewResult(run.Call, protocol.StatusFailed, protocol.Errorf(protocol.CodeNotFound, "not there"))
		}
		return succeed(run)
	})
	require.NoError(t, <-done)
	require.Equal(t, map[string]int64{publish: 2, "error.type=fleet_full," + publish: 1},
		m.Read(t, telemetry.MetricSentMessages))
	require.Equal(t, map[string]int64{
		testTool + ",toolfleet.status=ok":                                  1,
		"error.type=not_found," + testTool + ",toolfleet.status=failed":    1,
		"error.type=fleet_full," + testTool + ",toolfleet.status=rejected": 1,
	}, m.Read(t, telemetry.MetricCallDuration))
	require.Equal(t, map[string]int64{pool: 0}, m.Read(t, telemetry.MetricCallActive))
}

// Metrics name a bounded number of tenants.
func TestMetrics_NameTheFirstTenants(t *testing.T) {
	t.Parallel()
	r := newRig(t, natsio.Topology{})
	m := metrictest.New(t)
	r.dispatcher = r.newDispatcher(r.NC, calls.Options{Meter: m})
	r.hold(func(_ context.Context, run *lane.Run) protocol.Result { return succeed(run) })
	calls := newCalls(25)
	for i := range calls {
		calls[i].Tenant = protocol.Tenant(fmt.Sprint("t", i))
	}
	r.mustDispatch(t.Context(), calls)
	sent := m.Read(t, telemetry.MetricSentMessages)
	require.Len(t, sent, 21)
	require.EqualValues(t, 5, sent[publish+",toolfleet.tenant=other"])
}

func TestMetrics_TellWhatWasLeft(t *testing.T) {
	t.Parallel()
	r := newRig(t, natsio.Topology{})
	m := metrictest.New(t)
	nc := r.Connect()
	r.dispatcher = r.newDispatcher(nc, calls.Options{Meter: m})
	ctx, leave := context.WithCancelCause(t.Context())
	queued := make(chan struct{}, 2)
	done := make(chan error, 1)
	go func() {
		done <- r.dispatcher.Dispatch(ctx, newCalls(2), func(loop.Update) { queued <- struct{}{} })
	}()
	<-queued
	<-queued
	leave(loop.ErrDetached)
	require.ErrorIs(t, <-done, loop.ErrDetached)
	nc.Close()
	_, err := r.dispatch(t.Context(), newCalls(3))
	require.Error(t, err)
	require.Equal(t, map[string]int64{pool: 0}, m.Read(t, telemetry.MetricCallActive))
	require.Empty(t, m.Read(t, telemetry.MetricCallDuration))
}

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
	r.mustDispatch(ctx, calls)
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
