package worker_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/toolfleet/toolfleet/internal/calls"
	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/internal/telemetry"
	"github.com/toolfleet/toolfleet/internal/telemetry/genaiconv"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/worker/kinds"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// heard collects the frames of a session.
type heard struct {
	mu     sync.Mutex
	frames []wire.Frame
}

func (r *rig) listen(t *testing.T, session protocol.SessionID) *heard {
	t.Helper()
	h := &heard{}
	watch, err := calls.NewResults(r.NC, r.Name, func(err error) { t.Error(err) }).Watch(t.Context(), session,
		func(*protocol.Result) {}, func(f *wire.Frame) {
			h.mu.Lock()
			defer h.mu.Unlock()
			h.frames = append(h.frames, *f)
		})
	require.NoError(t, err)
	t.Cleanup(watch.Stop)
	return h
}

// until waits for the frame that ends what was said on a stream.
func (h *heard) until(t *testing.T, kind wire.FrameKind, said string) []wire.Frame {
	t.Helper()
	var frames []wire.Frame
	require.Eventually(t, func() bool {
		h.mu.Lock()
		defer h.mu.Unlock()
		frames = append([]wire.Frame(nil), h.frames...)
		return strings.HasSuffix(together(frames, kind), said)
	}, patience, time.Millisecond)
	return frames
}

// together is everything that was said on a stream.
func together(frames []wire.Frame, kind wire.FrameKind) string {
	var all strings.Builder
	for _, f := range frames {
		if f.Kind == kind {
			all.Write(f.Data)
		}
	}
	return all.String()
}

func TestFrames_TellWhatHappensInOrder(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	w, _ := r.work(r.options())
	session := protocol.NewSessionID()
	live := r.listen(t, session)
	call := newCall(session, protocol.CommandRun{Command: `
		i=0; while [ $i -lt 2000 ]; do i=$((i+1)); echo "line $i of the output, which takes more than one frame"; done
		echo oops >&2; printf 'the end'`})
	got := r.dispatch(t.Context(), call)
	requireOK(t, got)
	v := value[protocol.CommandRunResult](t, got)
	frames := live.until(t, wire.FrameStdout, "the end")
	require.Equal(t, wire.FrameStarted, frames[0].Kind)
	for i, f := range frames {
		require.Equal(t, uint64(i+1), f.Seq)
		require.Equal(t, call.ID, f.CallID)
		require.Equal(t, w.ID(), f.WorkerID)
		require.Equal(t, 1, f.Attempt)
		require.LessOrEqual(t, len(f.Data), 32<<10)
	}
	require.False(t, v.Truncated)
	require.Equal(t, string(v.Stdout), together(frames, wire.FrameStdout))
	require.Equal(t, "oops\n", together(frames, wire.FrameStderr))
	require.Greater(t, len(frames), 4)
}

// faulty is a driver whose sandboxes panic or cannot be opened.
type faulty struct {
	isolation.Driver

	openFails bool
}

func (f *faulty) Open(ctx context.Context, spec isolation.Spec) (sandbox.Sandbox, error) {
	if f.openFails {
		return nil, errors.New("no room")
	}
	s, err := f.Driver.Open(ctx, spec)
	return faultySandbox{s}, err
}

type faultySandbox struct{ sandbox.Sandbox }

func (s faultySandbox) Exec(ctx context.Context, cmd sandbox.Cmd) (sandbox.Result, error) {
	if cmd.Argv[0] == "panic" {
		panic("out of order")
	}
	return s.Sandbox.Exec(ctx, cmd)
}

func TestDriver_PanicIsAResult(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	o := r.options()
	o.Driver = &faulty{Driver: o.Driver}
	r.work(o)
	session := protocol.NewSessionID()
	got := r.do(session, protocol.CommandRun{Argv: []string{"panic"}})
	requireFault(t, got, protocol.StatusFailed, protocol.CodePanic)
	require.Contains(t, got.Error.Message, "out of order")
	requireOK(t, r.do(session, protocol.CommandRun{Argv: []string{"true"}}))
}

func TestDriver_SandboxThatCannotBeOpened(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	o := r.options()
	driver := &faulty{Driver: o.Driver, openFails: true}
	o.Driver = driver
	r.work(o)
	got := r.do(protocol.NewSessionID(), protocol.CommandRun{Command: "true"})
	requireFault(t, got, protocol.StatusFailed, protocol.CodeSandboxUnavailable)
	require.Contains(t, got.Error.Message, "no room")
}

// recordSpans returns a provider of tracers, and what records their spans.
func recordSpans(t *testing.T) (*tracetest.SpanRecorder, *sdktrace.TracerProvider) {
	t.Helper()
	recorder := tracetest.NewSpanRecorder()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder))
	t.Cleanup(func() { require.NoError(t, provider.Shutdown(context.Background())) })
	return recorder, provider
}

// A command that fails is a result, and the span says how it ended, also if the worker looks at the
// shell afterwards.
func TestSpans_SayHowCommandsEnd(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	recorder, provider := recordSpans(t)
	o := r.options()
	o.Tracer = provider.Tracer("worker")
	_, stop := r.work(o)
	requireOK(t, r.do(protocol.NewSessionID(), protocol.CommandRun{Command: "exit 3"}))
	requireOK(t, r.do(protocol.NewSessionID(), protocol.CommandRun{Command: "exit 3", KeepShell: true}))
	stop()
	commands := 0
	for _, span := range recorder.Ended() {
		if span.Name() == telemetry.SpanSandboxExec {
			require.Equal(t, codes.Unset, span.Status().Code)
			require.Contains(t, span.Attributes(), telemetry.KeyExitCode.Int(3))
			require.Contains(t, span.Attributes(), telemetry.KeyReason.String("exited"))
			commands++
		}
	}
	require.Equal(t, 2, commands)
}

func TestSpans_AreChildrenOfThePublishersContext(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	recorder, provider := recordSpans(t)
	o := r.options()
	o.Tracer = provider.Tracer("worker")
	_, stop := r.work(o)
	var err error
	r.dispatcher, err = calls.New(t.Context(), r.NC, r.Name, &calls.Options{Tracer: provider.Tracer("dispatch")})
	require.NoError(t, err)

	ctx, turn := provider.Tracer("test").Start(t.Context(), "turn")
	call := newCall(protocol.NewSessionID(), protocol.FilesRead{Path: "missing"})
	call.Tool, call.ToolCallID = "read", "c1"
	requireFault(t, r.dispatch(ctx, call), protocol.StatusFailed, protocol.CodeNotFound)
	turn.End()
	stop()

	byName := map[string]sdktrace.ReadOnlySpan{}
	for _, span := range recorder.Ended() {
		require.NotContains(t, byName, span.Name())
		byName[span.Name()] = span
	}
	chain := []string{
		"turn", telemetry.SpanDispatch("read"), telemetry.SpanPublish, telemetry.SpanProcess,
		telemetry.SpanExecuteTool("read"), telemetry.SpanSandboxExec,
	}
	require.Len(t, byName, len(chain))
	for i, name := range chain[1:] {
		require.Contains(t, byName, name)
		require.Equal(t, byName[chain[i]].SpanContext().SpanID(), byName[name].Parent().SpanID(), "%s is a child of %s", name, chain[i])
		require.Equal(t, turn.SpanContext().TraceID(), byName[name].SpanContext().TraceID())
	}
	process := byName[telemetry.SpanProcess]
	require.Equal(t, trace.SpanKindConsumer, process.SpanKind())
	require.Contains(t, process.Attributes(), telemetry.KeyCallID.String(string(call.ID)))
	require.Contains(t, process.Attributes(), telemetry.KeyAttempt.Int(1))
	tool := byName[telemetry.SpanExecuteTool("read")]
	require.Contains(t, tool.Attributes(), genaiconv.ToolCallID.String("c1"))
	require.Contains(t, tool.Attributes(), genaiconv.Operation.String("execute_tool"))
	require.Subset(t, process.Attributes(), telemetry.Processed(wire.CallsStream(r.Name)))
	exec := byName[telemetry.SpanSandboxExec]
	require.Contains(t, exec.Attributes(), telemetry.KeySandboxDriver.String(o.Driver.Name()))
	for _, name := range []string{telemetry.SpanDispatch("read"), telemetry.SpanProcess, telemetry.SpanExecuteTool("read"), telemetry.SpanSandboxExec} {
		require.Equal(t, codes.Error, byName[name].Status().Code, name)
		require.Contains(t, byName[name].Attributes(), telemetry.KeyErrorType.String("not_found"), name)
		require.Equal(t, "not_found", byName[name].Status().Description, "%s: the message names the path", name)
	}
}

func TestWorker_SaysWhatItCanDo(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	o := r.options()
	caps, err := o.Driver.Probe(t.Context())
	require.NoError(t, err)
	o.Caps = caps
	o.Build, o.Slots, o.Limits = "v1.2.3", 3, sandbox.Limits{Memory: 1 << 30, Wall: time.Minute}
	o.Handlers.Calls = map[protocol.Kind]kinds.Handler{
		"acme_refund": func(context.Context, *kinds.Attempt, json.RawMessage) (json.RawMessage, error) { return nil, nil },
	}
	w, stop := r.work(o)
	var info *wire.WorkerInfo
	require.Eventually(t, func() bool { // from when it runs
		answer, err := r.NC.RequestWithContext(t.Context(), wire.WhoSubject(r.Name, protocol.DefaultPool), nil)
		if err != nil {
			require.ErrorIs(t, err, nats.ErrNoResponders)
			return false
		}
		info, err = wire.Decode[wire.WorkerInfo](answer.Data)
		require.NoError(t, err)
		return true
	}, patience, time.Millisecond)
	require.Equal(t, wire.WorkerInfo{
		WorkerID: w.ID(), Pool: protocol.DefaultPool, Build: "v1.2.3", Slots: 3, StartedAt: info.StartedAt, Driver: "process", Level: "none", Network: "all",
		LimitKinds: info.LimitKinds, Limits: protocol.Limits{Memory: 1 << 30, Wall: 60_000}, Languages: w.Languages(), Kinds: []protocol.Kind{"acme_refund"},
	}, *info)
	require.WithinRange(t, info.StartedAt, time.Now().Add(-patience), time.Now())
	require.Contains(t, info.LimitKinds, "memory")
	require.Contains(t, info.Languages, "sh")
	stop()
	_, err = r.NC.RequestWithContext(t.Context(), wire.WhoSubject(r.Name, protocol.DefaultPool), nil)
	require.ErrorIs(t, err, nats.ErrNoResponders)
}
