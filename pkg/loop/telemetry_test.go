package loop_test

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/loop/looptest"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// spanKeeper remembers the span in which Dispatch was called.
type spanKeeper struct {
	*fleet

	span trace.SpanContext
}

func (k *spanKeeper) Send(ctx context.Context, calls []protocol.Call, observe func(loop.Update), held ...loop.Handle) []loop.Handle {
	return dispatch(k.Dispatch).send(ctx, calls, observe, held, k.told)
}

func (k *spanKeeper) Dispatch(ctx context.Context, calls []protocol.Call, observe func(loop.Update)) error {
	k.span = trace.SpanContextFromContext(ctx)
	return k.fleet.Dispatch(ctx, calls, observe)
}

func attributes(span sdktrace.ReadOnlySpan) map[attribute.Key]string {
	all := make(map[attribute.Key]string)
	for _, kv := range span.Attributes() {
		all[kv.Key] = kv.Value.String()
	}
	return all
}

func TestRun_OneTraceATurn(t *testing.T) {
	t.Parallel()
	spans := tracetest.NewSpanRecorder()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans))
	first := asks("a", "work", "inline_fails", "secret-tool")
	first.Text, first.Model, first.ID, first.Finish = "secret-text", "m-2026", "resp-1", "tool_use"
	first.Usage.OutputTokens, first.Usage.CachedTokens, first.Usage.ReasoningTokens = 5, 4, 3
	first.ToolCalls[1].Arguments = `{"secret-argument":1}`
	r := newRig(first, asks("b", "inline_fails"))
	r.opts.Tracer, r.opts.ModelName = provider.Tracer("test"), "m"
	dispatcher := &spanKeeper{fleet: r.fleet}
	runner := mustNew(t, r.model, dispatcher, r.journal, table(t), &r.opts)
	result := mustRun(t.Context(), t, runner, r.session, loop.Input{Text: "secret-input"})
	require.Equal(t, loop.OutcomeFailed, result.Outcome, "the script ends")

	byName := make(map[string][]sdktrace.ReadOnlySpan)
	for _, span := range spans.Ended() {
		byName[span.Name()] = append(byName[span.Name()], span)
		for key, value := range attributes(span) {
			require.NotContains(t, value, "secret", "%s of %s", key, span.Name())
		}
		require.NotContains(t, span.Status().Description, "secret")
	}
	require.Len(t, byName["invoke_agent"], 1)
	require.Len(t, byName["chat m"], 3)
	require.Len(t, byName["execute_tool inline_fails"], 2)
	require.Len(t, byName["execute_tool"], 1, "a tool that there is not")

	turn := byName["invoke_agent"][0]
	got := attributes(turn)
	require.Equal(t, "invoke_agent", got["gen_ai.operation.name"])
	require.Equal(t, string(r.session), got["gen_ai.conversation.id"])
	require.Equal(t, "m", got["gen_ai.request.model"])
	require.Equal(t, "20", got["gen_ai.usage.input_tokens"])
	require.Equal(t, "failed", got["toolfleet.outcome"])
	require.Equal(t, "model_failed", got["error.type"])
	for _, span := range spans.Ended() {
		require.Equal(t, turn.SpanContext().TraceID(), span.SpanContext().TraceID())
		if span != turn {
			require.Equal(t, turn.SpanContext().SpanID(), span.Parent().SpanID(), span.Name())
		}
	}
	require.Equal(t, turn.SpanContext().SpanID(), dispatcher.span.SpanID())
	chat := attributes(byName["chat m"][0])
	require.Equal(t, "m-2026", chat["gen_ai.response.model"])
	require.Equal(t, "10", chat["gen_ai.usage.input_tokens"])
	require.Contains(t, chat["toolfleet.tool_names"], "work")
	require.Equal(t, "resp-1", chat["gen_ai.response.id"])
	require.Contains(t, chat["gen_ai.response.finish_reasons"], "tool_use")
	require.NotEmpty(t, chat["gen_ai.response.time_to_first_chunk"])
	require.Equal(t, "4", chat["gen_ai.usage.cache_read.input_tokens"])
	require.Equal(t, "3", chat["gen_ai.usage.reasoning.output_tokens"])
	inline := attributes(byName["execute_tool inline_fails"][0])
	require.Equal(t, "function", inline["gen_ai.tool.type"])
	require.NotEmpty(t, inline["gen_ai.tool.description"])
	require.Equal(t, "unknown_tool", attributes(byName["execute_tool"][0])["error.type"])
}

func TestRun_LogsOneRecordPerToolCall(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	first := asks("a", "work", "inline", "nosuch")
	first.ToolCalls[0].Arguments = `{"n":"an argument"}`
	r := newRig(first, says("done"))
	r.opts.Logger = slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug}))
	r.mustRun(t.Context(), t, "secret-input")
	require.Equal(t, 3, strings.Count(out.String(), `msg="tool call ended"`))
	require.Equal(t, 3, strings.Count(out.String(), "\n"))
	require.NotContains(t, out.String(), "an argument")
	require.NotContains(t, out.String(), "secret")
	require.Contains(t, out.String(), "status=rejected code=unknown_tool")
}

// A turn that another process brings to its end stays in its trace, and says so there too.
func TestRun_ATurnKeepsItsTraceWhenItIsResumed(t *testing.T) {
	t.Parallel()
	spans := tracetest.NewSpanRecorder()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans))
	r := newRig(asks("a", "work"), says("done"), says("again"))
	r.opts.Tracer = provider.Tracer("test")
	crashing := &crashingJournal{Journal: looptest.Journal{}, untilCrash: 2}
	runner := mustNew(t, r.model, r.fleet, crashing, table(t), &r.opts)
	first, err := runner.Run(t.Context(), r.session, loop.Input{Text: "go"})
	require.ErrorIs(t, err, errCrash)

	ctx, command := provider.Tracer("test").Start(t.Context(), "run")
	second := mustRun(ctx, t, runner, r.session, loop.Input{Text: "go"})
	turns := spans.Ended()[:0:0]
	for _, span := range spans.Ended() {
		if span.Name() == "invoke_agent" {
			turns = append(turns, span)
		}
	}
	require.Len(t, turns, 2)
	begun := turns[0].SpanContext()
	require.Equal(t, begun.TraceID().String(), first.TraceID)
	require.Equal(t, first.TraceID, second.TraceID)
	require.Equal(t, begun.TraceID(), turns[1].SpanContext().TraceID())
	require.Equal(t, begun.SpanID(), turns[1].Parent().SpanID())
	require.Equal(t, command.SpanContext().TraceID(), turns[1].Links()[0].SpanContext.TraceID())
	history, err := crashing.Load(t.Context(), r.session)
	require.NoError(t, err)
	require.Equal(t, first.TraceID, history.Events[1].TraceID)
	require.Equal(t, first.TraceID, history.Events[len(history.Events)-1].TraceID)

	next := mustRun(ctx, t, runner, r.session, loop.Input{Text: "more"})
	require.Equal(t, command.SpanContext().TraceID().String(), next.TraceID, "another turn is another trace")
}

// Law: a session and its sub-agents are one trace, which has the names of the kinds of agents, and
// whether a summary stands for a part of the conversation.
func TestRun_OneTraceOfASessionTree(t *testing.T) {
	t.Parallel()
	spans := tracetest.NewSpanRecorder()
	f := newFamily(t, byPrompt{
		"go":   {replies: []loop.Reply{delegates("d", `{"prompt":"look","agent":"reviewer"}`, `{"prompt":"count","workspace":"empty"}`), says("done")}},
		"look": {replies: append(talkative(8), says("looked"))}, "count": {replies: []loop.Reply{asks("w", "inline"), says("two")}},
	})
	f.opts.Tracer = sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans)).Tracer("test")
	f.opts.Agents = []loop.Agent{{Name: "reviewer", Description: "Looks.", Model: f.models, ModelName: "m", Compaction: &loop.Compaction{Model: &summarizer{}, At: 600}}}
	result := f.mustRun(t.Context(), t)
	require.Equal(t, loop.OutcomeAnswered, result.Outcome)

	byID := map[trace.SpanID]sdktrace.ReadOnlySpan{}
	for _, span := range spans.Ended() {
		byID[span.SpanContext().SpanID()] = span
		require.Equal(t, result.TraceID, span.SpanContext().TraceID().String(), span.Name())
	}
	agents, compacted := map[string]int{}, 0
	for _, span := range spans.Ended() {
		got := attributes(span)
		if got["gen_ai.operation.name"] == "invoke_agent" && span.Parent().IsValid() {
			agents[span.Name()]++
			require.Equal(t, "execute_tool agent", byID[span.Parent().SpanID()].Name())
		}
		if got["gen_ai.conversation.compacted"] == "true" {
			compacted++
			require.Equal(t, "reviewer", got["gen_ai.agent.name"])
			require.Equal(t, "chat m", span.Name())
		}
	}
	require.Equal(t, map[string]int{"invoke_agent": 1, "invoke_agent reviewer": 1}, agents)
	require.Positive(t, compacted)
}

// Arguments and results are on spans only when the environment asks for them.
func TestRun_ContentIsCapturedWhenAsked(t *testing.T) { //nolint:paralleltest // it sets a variable
	for _, asked := range []string{"true", ""} {
		t.Setenv("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", asked)
		spans := tracetest.NewSpanRecorder()
		r := newRig(asks("a", "inline"), says("done"))
		r.opts.Tracer = sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans)).Tracer("test")
		r.mustRun(t.Context(), t, "go")
		for _, span := range spans.Ended() {
			if span.Name() == "execute_tool inline" {
				want := map[string]string{"true": `{"n":0}`}[asked]
				require.Equal(t, want, attributes(span)["gen_ai.tool.call.arguments"])
				require.Equal(t, want != "", attributes(span)["gen_ai.tool.call.result"] == "said")
			}
		}
	}
}
