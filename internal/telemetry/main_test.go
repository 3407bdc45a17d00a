package telemetry_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/goleak"

	"github.com/toolfleet/toolfleet/internal/telemetry"
	"github.com/toolfleet/toolfleet/internal/telemetry/genaiconv"
)

// childMode makes this test binary a process of its own with one job: telemetry
// is global to a process, and what it writes to stdout is seen only from outside.
const childMode = "TOOLFLEET_TELEMETRY_CHILD"

// traceFile is the variable with the file of spans of a child.
const traceFile = "TOOLFLEET_TELEMETRY_CHILD_FILE"

// logQueue is how many records wait for an exporter at most, by default.
const logQueue = 2048

func TestMain(m *testing.M) {
	if mode := os.Getenv(childMode); mode != "" {
		if err := child(context.Background(), mode); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(2)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// child does the job and writes the headers that it would send to stdout.
func child(ctx context.Context, mode string) (err error) {
	logger := slog.New(telemetry.NewLogHandler(slog.NewTextHandler(os.Stderr, nil), func(text string) string {
		return strings.ReplaceAll(text, "hunter2", "xxxxx")
	}))
	shutdown, err := telemetry.Setup(ctx, "child-"+mode, "1.2.3", &telemetry.Options{
		Instance: "instance-1", Serves: mode == "scrape", Logger: logger, TraceFile: os.Getenv(traceFile),
	})
	if err != nil {
		return err
	}
	sent := nats.Header{}
	switch mode {
	case "publish":
		ctx, dispatch := telemetry.Tracer().Start(ctx, telemetry.SpanDispatch("read"))
		publish(ctx, sent)
		dispatch.End()
	case "relay":
		ctx, err := received(ctx)
		if err != nil {
			return err
		}
		publish(ctx, sent)
	case "process":
		ctx, err := received(ctx)
		if err != nil {
			return err
		}
		process(ctx)
	case "killed":
		process(ctx)
		time.Sleep(killedAfter) // for what leaves by itself
		self, err := os.FindProcess(os.Getpid())
		if err != nil {
			return err
		}
		return self.Kill()
	case "measure":
		measure(ctx)
	case "scrape":
		measure(ctx)
		if err := scrape(ctx); err != nil {
			return err
		}
	case "keep_failing":
		keepFailing(ctx)
	case "log":
		record(ctx, logger)
	case "log_much":
		begun := time.Now()
		for range 10 * logQueue {
			logger.WarnContext(ctx, "again")
		}
		sent.Set("Took", time.Since(begun).String())
	}
	ended := time.Now()
	defer func() { err = errors.Join(err, inTime(time.Since(ended))) }()
	if err := json.NewEncoder(os.Stdout).Encode(sent); err != nil {
		return err
	}
	_ = shutdown(ctx) // its errors are the error handler's too
	return nil
}

// inTime returns an error when the end of a process has taken longer than its exporters may.
func inTime(took time.Duration) error {
	if most := 2 * telemetry.ShutdownTimeout; took > most {
		return fmt.Errorf("the end has taken %s: more than %s", took, most)
	}
	return nil
}

// record writes records to the log, inside of a span and outside.
func record(ctx context.Context, logger *slog.Logger) {
	logger.WarnContext(ctx, "outside")
	ctx, span := telemetry.Tracer().Start(ctx, telemetry.SpanProcess)
	defer span.End()
	logger = logger.With(slog.String("server", "nats://user:hunter2@host"))
	logger.ErrorContext(ctx, "the password is hunter2", slog.Any("error", errors.New("dial user:hunter2@host")),
		slog.Group("of", slog.Any("list", []string{"hunter2"})), slog.Int("tries", 3))
	logger.DebugContext(ctx, "not enabled")
}

// killedAfter is less than OpenTelemetry's own delay, of 5 s.
const killedAfter = 3 * time.Second

func received(ctx context.Context) (context.Context, error) {
	body, err := io.ReadAll(os.Stdin)
	if err != nil {
		return ctx, err
	}
	var header nats.Header
	if err := json.Unmarshal(body, &header); err != nil {
		return ctx, err
	}
	return telemetry.Extract(ctx, header), nil
}

func publish(ctx context.Context, header nats.Header) {
	ctx, span := telemetry.Tracer().Start(ctx, telemetry.SpanPublish, trace.WithSpanKind(trace.SpanKindProducer))
	defer span.End()
	span.SetAttributes(
		telemetry.KeyMessagingSystem.String(telemetry.MessagingNATS),
		telemetry.KeyMessagingDestination.String("tf.call.default"),
	)
	telemetry.Inject(ctx, header)
}

func process(ctx context.Context) {
	ctx, span := telemetry.Tracer().Start(ctx, telemetry.SpanProcess, trace.WithSpanKind(trace.SpanKindConsumer))
	defer span.End()
	span.SetAttributes(telemetry.KeyAttempt.Int(2), telemetry.KeyQueueMS.Float64(1.5), telemetry.KeyLane.String("sandbox/s1"))
	_, tool := telemetry.Tracer().Start(ctx, telemetry.SpanExecuteTool("read"))
	telemetry.Fail(tool, errors.New("disk on fire"))
	tool.End()
}

// measure does what a worker does in a short life.
func measure(ctx context.Context) {
	w := telemetry.NewWorkerMetrics(telemetry.Meter(), "default", "ns", "full")
	w.Observe(ctx, func() (lanes, used, slots int) { return 3, 2, 4 })
	w.Opened(ctx, 20*time.Millisecond, nil)
	w.Started(ctx, "bash", 2, 2*time.Second, time.Second)
	w.CommandEnded(ctx, "oom")
	w.Executed(ctx, "bash", "out_of_memory", 90*time.Second)
	w.Ended(ctx, "bash", "failed", "out_of_memory")
	w.Ended(ctx, "bash", "ok", "")
	w.Opened(ctx, time.Second, errors.New("no room"))
	w.Lost(ctx)
	w.LostWorker(ctx)
	w.Waited(ctx, "acme", map[string]float64{"limit": 2500})
	ctx, call := telemetry.StartCallTool(ctx, trace.SpanKindClient, "echo")
	call.End(ctx, nil, true)
	telemetry.StartMCPSession(ctx, trace.SpanKindClient, "2025-11-25", genaiconv.TransportPipe)(nil)
}

// scrape writes what a scraper gets from this process to stderr.
func scrape(ctx context.Context) error {
	url := "http://localhost:" + os.Getenv("OTEL_EXPORTER_PROMETHEUS_PORT") + "/metrics"
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	_, err = io.Copy(os.Stderr, response.Body)
	return errors.Join(err, response.Body.Close())
}

// keepFailing ends five spans, each of which is an export of its own when the
// batch size is one, and waits until all were tried.
func keepFailing(ctx context.Context) {
	for range 5 {
		_, span := telemetry.Tracer().Start(ctx, "lost")
		span.End()
	}
	if provider, ok := otel.GetTracerProvider().(*sdktrace.TracerProvider); ok {
		ctx, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		_ = provider.ForceFlush(ctx)
	}
}

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
