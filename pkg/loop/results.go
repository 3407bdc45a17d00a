package loop

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/toolfleet/toolfleet/internal/calls/ports"
	"github.com/toolfleet/toolfleet/internal/model/media"
	"github.com/toolfleet/toolfleet/internal/modeltext/plain"
	"github.com/toolfleet/toolfleet/internal/modeltext/prose"
	"github.com/toolfleet/toolfleet/internal/modeltext/render"
	"github.com/toolfleet/toolfleet/internal/telemetry/genaiconv"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
)

// pendingCall is a tool call on its way to a result.
type pendingCall struct {
	place   tools.Place
	event   Event       // the fields that all its events share
	tool    *tools.Tool // nil, or without a name, when that is unknown
	plan    tools.Plan  // zero when it cannot be run
	note    string      // of the person who approved it
	derived bool        // see [planned]
	roots   []protocol.Roots
	call    *protocol.Call // as it is sent; nil when it runs in place, or is refused
	lane    string         // where it goes; "" when it runs in place, or is refused
	done    bool           // its result came, or it is a job now
	sent    Handle         // nil until it is sent
	input   string         // the arguments, as the model wrote them, or hooks changed them
	// denied is why a sub-agent that has not begun does not begin; nil of others.
	denied  *protocol.Error
	counted protocol.Spending // of a sub-agent that failed, in the budgets above it
	fork    *fork             // of the workspace, for a sub-agent; nil without
	questions
}

// questions are what a call asked a person.
type questions struct {
	asked  map[string]*protocol.Question // in the journal, and not answered
	logged int                           // all that are in the journal
}

// agent is the request for a sub-agent; the zero value for other calls.
func (p *pendingCall) agent() wire.AgentRequest {
	request, _ := p.plan.Session.(wire.AgentRequest)
	return request
}

// pending returns the tool call at index of the turn's last step.
func (t *turnRun) pending(turn *turn, index int) *pendingCall {
	call, at := turn.last().calls[index], t.session.place(t.id, turn.number, len(turn.steps), index)
	asked := map[string]*protocol.Question{}
	for _, e := range t.session.state.Questions {
		if e.CallID == at.ID {
			asked[e.Question.ID] = e.Question
		}
	}
	return &pendingCall{place: at, event: Event{
		Turn: at.Turn, Step: at.Step, CallFields: CallFields{Index: at.Index, CallID: at.ID, ToolCallID: call.ID, Name: call.Name},
	}, questions: questions{asked: asked, logged: len(asked)}, input: call.input()}
}

// as returns an event of the call.
func (p *pendingCall) as(kind EventType) Event {
	event := p.event
	event.Type = kind
	return event
}

// running is the event of a worker that has started the call, or is lost.
func (p *pendingCall) running(u Update) Event {
	event := p.as(EventToolRunning)
	if u.Lost != "" {
		event.Type, event.Text = EventWorkerLost, u.Lost
	}
	event.WorkerID, event.Attempt = u.WorkerID, u.Attempt
	return event
}

// result is the event of a result that came from a worker.
func (p *pendingCall) result(r *protocol.Result) Event {
	event := p.as(EventToolResult)
	event.Status, event.ResultFields = string(r.Status), resultFields(r, p.tool.WithNote(p.tool.Text(r), p.note))
	event.Checkpoint = r.Checkpoint
	if mediaType, data, ok := render.Image(r); ok {
		event.Image = &Image{MediaType: mediaType, Data: data}
	}
	event.describeDialog(r)
	return event
}

// decodeImage decodes the image of a result before a model gets it. One that is none is left out,
// and a document that the model does not take is followed by its text; the content says so.
func (b *batch) decodeImage(ctx context.Context, p *pendingCall, event *Event) {
	switch {
	case event.Image == nil:
	case event.Image.MediaType != render.MediaPDF:
		mediaType, err := media.Picture(event.Image.Data)
		if err != nil {
			event.Image, event.Content = nil, event.Content+fmt.Sprintf("\n[It is not shown: it is no picture that can be decoded: %v]", err)
			return
		}
		event.Image.MediaType = mediaType
	case !views(b.model, render.MediaPDF):
		text, err := media.PDFText(ctx, event.Image.Data, maxAttachedText)
		if err != nil {
			event.Content += fmt.Sprintf("\n[It is not shown: you take no PDF documents, and its text cannot be read: %v]", err)
			return
		}
		text = event.Content + "\n\n" + text
		var kept *protocol.Kept
		if !render.Fits(text) {
			kept = b.fullOutputOf(p).storeText(ctx, event.CallID, text)
		}
		event.Content = render.Shown(text, event.CallID, kept)
	}
}

// resultFields are a worker's result, of which the model sees content.
func resultFields(r *protocol.Result, content string) ResultFields {
	return ResultFields{
		Content: content, Error: boundedError(r.Error), Exit: exitOf(r), WorkerID: r.WorkerID, Attempt: r.Attempt,
		Tries: boundedTries(r.Tries), QueueMS: &r.QueueMS, RunMS: &r.RunMS, Diff: render.Diff(r),
		SandboxMS: r.SandboxMS, StoreMS: r.StoreMS, Waits: r.Waits, Level: r.Level,
	}
}

// exitOf is [render.Exit], as far as an event has it.
func exitOf(r *protocol.Result) string {
	if r.Status != protocol.StatusOK {
		return ""
	}
	return prose.Cut(prose.Valid(render.Exit(r)), maxExit)
}

// maxExit bounds what a worker says of the end of a command, in bytes.
const maxExit = 100

// boundedTries are attempts as an event has them, see [boundedError].
func boundedTries(tries []protocol.Try) []protocol.Try {
	tries = slices.Clone(tries)
	for i := range tries {
		tries[i].Error = boundedError(tries[i].Error)
	}
	return tries
}

// boundedError is an error as an event has it: with no more of its message than a model is shown,
// because an event that no journal can take would keep its session from going on for ever.
func boundedError(callErr *protocol.Error) *protocol.Error {
	if callErr == nil {
		return nil
	}
	return &protocol.Error{Code: callErr.Code, Message: render.Shown(prose.Valid(callErr.Message), "", nil)}
}

// localResult is the event of a result that was made in this process.
func (p *pendingCall) localResult(status protocol.Status, text string, callErr *protocol.Error, ran time.Duration) Event {
	event := p.as(EventToolResult)
	event.Status, event.Error, event.Content = string(status), boundedError(callErr), text
	if callErr != nil {
		event.Content = p.tool.Failure(&protocol.Result{Status: status, Error: callErr})
	}
	event.Content = p.tool.WithNote(event.Content, p.note)
	queued, running := 0.0, float64(ran)/float64(time.Millisecond)
	event.QueueMS, event.RunMS = &queued, &running
	return event
}

// startTool starts the span of a tool call that no worker runs.
func (t *turnRun) startTool(ctx context.Context, p *pendingCall) (context.Context, trace.Span) {
	name, attributes := genaiconv.OperationTool, []attribute.KeyValue{
		genaiconv.Operation.String(genaiconv.OperationTool), genaiconv.ToolType.String(genaiconv.ToolFunction),
		genaiconv.ToolCallID.String(p.event.ToolCallID),
		keyCallID.String(string(p.event.CallID)),
		keyTurn.Int(p.event.Turn), keyStep.Int(p.event.Step),
	}
	if p.tool != nil && p.tool.Name != "" { // a name that a model made up stays out of it
		name = spanName(genaiconv.OperationTool, p.tool.Name)
		attributes = append(attributes, genaiconv.ToolName.String(p.tool.Name), genaiconv.ToolDescription.String(p.tool.Description))
	}
	if genaiconv.Captures() {
		attributes = append(attributes, genaiconv.Captured(genaiconv.ToolCallArguments, p.input))
	}
	return t.opts.Tracer.Start(ctx, name, trace.WithAttributes(attributes...)) //nolint:spancheck // the caller ends it
}

// storeTimeout bounds the storing of one text.
const storeTimeout = 15 * time.Second

// fullOutput stores the whole output of inline tools that is cut for the model. Without a fleet the
// texts do not say that it is stored.
type fullOutput struct {
	tool    *tools.Tool
	fleet   ports.Fleet // may be nil
	logger  *slog.Logger
	session protocol.SessionID
}

// textFor is what a model is shown of a text.
func (k fullOutput) textFor(ctx context.Context, call protocol.CallID, text string) string {
	var kept *protocol.Kept
	if !render.Fits(text) {
		kept = k.storeText(ctx, call, text)
	}
	return k.tool.Returned(text, call, kept)
}

// failed is what a model is shown of a failure.
func (k fullOutput) failed(ctx context.Context, call protocol.CallID, status protocol.Status, callErr *protocol.Error) string {
	result := &protocol.Result{CallID: call, Status: status, Error: callErr}
	if len(callErr.Message) > plain.MaxError {
		result.Kept = k.storeText(ctx, call, callErr.Message)
	}
	return k.tool.Failure(result)
}

// storeText returns nil when the text is not stored.
func (k fullOutput) storeText(ctx context.Context, call protocol.CallID, text string) *protocol.Kept {
	if k.fleet == nil {
		return nil
	}
	return k.store(ctx, call, func(ctx context.Context) error { return k.fleet.StoreText(ctx, k.session, call, text) })
}

func (k fullOutput) store(ctx context.Context, call protocol.CallID, store func(context.Context) error) *protocol.Kept {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), storeTimeout)
	defer cancel()
	if err := store(ctx); err != nil {
		k.logger.WarnContext(ctx, "result cannot be kept whole", slog.String("call_id", string(call)), slog.Any("error", err))
		return nil
	}
	return &protocol.Kept{}
}
