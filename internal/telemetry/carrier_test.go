package telemetry_test

import (
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/trace"

	"github.com/toolfleet/toolfleet/internal/telemetry"
)

func sampleContext(t *testing.T) trace.SpanContext {
	t.Helper()
	state, err := trace.ParseTraceState("vendor=1,other=2")
	require.NoError(t, err)
	return trace.NewSpanContext(trace.SpanContextConfig{
		TraceID: trace.TraceID{1, 2}, SpanID: trace.SpanID{3}, TraceFlags: trace.FlagsSampled, TraceState: state, Remote: true,
	})
}

// TestCarrier_SurvivesNATS sends a context through a real server.
func TestCarrier_SurvivesNATS(t *testing.T) {
	t.Parallel()
	broker, err := server.NewServer(&server.Options{DontListen: true, NoSigs: true})
	require.NoError(t, err)
	broker.Start()
	t.Cleanup(func() { broker.Shutdown(); broker.WaitForShutdown() })
	require.True(t, broker.ReadyForConnections(time.Minute))
	conn, err := nats.Connect("", nats.InProcessServer(broker), nats.Timeout(time.Minute))
	require.NoError(t, err)
	t.Cleanup(conn.Close)
	inbox, err := conn.SubscribeSync("tf.test")
	require.NoError(t, err)

	want := sampleContext(t)
	message := nats.NewMsg("tf.test")
	telemetry.Inject(trace.ContextWithSpanContext(t.Context(), want), message.Header)
	require.NoError(t, conn.PublishMsg(message))
	got, err := inbox.NextMsg(time.Minute)
	require.NoError(t, err)
	require.Equal(t, want, trace.SpanContextFromContext(telemetry.Extract(t.Context(), got.Header)))
	require.NotEmpty(t, got.Header.Get("traceparent"), "lower case on the wire")
}

func TestExtract(t *testing.T) {
	t.Parallel()
	const parent = "00-01020000000000000000000000000000-0300000000000000-01"
	for name, c := range map[string]struct {
		header nats.Header
		found  bool
	}{
		"as it was written":            {nats.Header{"traceparent": {parent}}, true},
		"as HTTP libraries spell it":   {nats.Header{"Traceparent": {parent}}, true},
		"lower case wins":              {nats.Header{"Traceparent": {"x"}, "traceparent": {parent}}, true},
		"no header":                    {nil, false},
		"empty header":                 {nats.Header{"traceparent": {}}, false},
		"malformed":                    {nats.Header{"traceparent": {"00-1-2-3"}}, false},
		"all zeros is no span context": {nats.Header{"traceparent": {"00-00000000000000000000000000000000-0000000000000000-01"}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := trace.SpanContextFromContext(telemetry.Extract(t.Context(), c.header))
			require.Equal(t, c.found, got.IsValid())
			if c.found {
				require.Equal(t, sampleContext(t).TraceID(), got.TraceID())
				require.True(t, got.IsRemote())
			}
		})
	}
}

func TestInject_WritesNothingWithoutASpan(t *testing.T) {
	t.Parallel()
	header := nats.Header{}
	telemetry.Inject(t.Context(), header)
	require.Empty(t, header)
}

func TestCarrier_Keys(t *testing.T) {
	t.Parallel()
	carrier := telemetry.Carrier{"Tf-Lane": {"a"}, "tf-lane": {"b"}}
	carrier.Set("TraceParent", "x")
	require.Contains(t, carrier, "traceparent")
	require.Equal(t, []string{"tf-lane", "traceparent"}, carrier.Keys())
	require.Equal(t, "x", carrier.Get("Traceparent"))
	require.Equal(t, "b", carrier.Get("TF-LANE"))
}
