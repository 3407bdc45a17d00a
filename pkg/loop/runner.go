package loop

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/toolfleet/toolfleet/internal/calls/ports"
	"github.com/toolfleet/toolfleet/internal/judge"
	"github.com/toolfleet/toolfleet/internal/modeltext/prose"
	"github.com/toolfleet/toolfleet/internal/modeltext/render"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
)

// ErrNoInput says that there is nothing to do: no input, and no open turn to resume.
var ErrNoInput = errors.New("no input, and no open turn to resume")

// Runner runs turns. It keeps nothing between them, and is safe for concurrent
// use; two runs of one session at a time end with [ErrJournalConflict] for one of them.
type Runner struct {
	model      Model
	dispatcher Dispatcher
	fleet      ports.Fleet // the dispatcher; nil if it is not a fleet's
	journal    Journal
	table      *tools.Table
	opts       Options
	lineage    lineage // of a sub-agent
}

// New returns a Runner. It fails when one of the first four is nil, and on options out of
// their bounds, all errors joined. The Runner ends nothing of what it is given.
func New(model Model, dispatcher Dispatcher, journal Journal, table *tools.Table, opts *Options) (*Runner, error) {
	filled := opts.withDefaults()
	errs := []error{filled.validate()}
	for _, port := range []struct {
		name    string
		missing bool
	}{{"model", model == nil}, {"dispatcher", dispatcher == nil}, {"journal", journal == nil}, {"table", table == nil}} {
		if port.missing {
			errs = append(errs, fmt.Errorf("%s: missing", port.name))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	fleet, _ := dispatcher.(ports.Fleet)
	r := &Runner{fleet: fleet, model: model, dispatcher: dispatcher, journal: journal, table: table, opts: filled}
	if err := r.validatePrices(); err != nil {
		return nil, err
	}
	return r, nil
}

// With returns this Runner with other tools; nil means none. Turns that run keep theirs.
func (r *Runner) With(table *tools.Table) *Runner {
	other := *r
	other.table = cmp.Or(table, &tools.Table{})
	return &other
}

// Input starts a turn.
type Input struct {
	// Text is what the user says.
	Text string
	// ID, if set, makes the input safe to repeat: the session answers an id once.
	// It is the id of the call that asked for the turn.
	ID protocol.CallID
	// Attachments are files that belong to the text; see [Input.Check].
	Attachments []Attachment
	// AnswerSchema, if set, is the JSON Schema of the answer, which then is one JSON value. The
	// model is asked again, with what is wrong, up to two times; then the turn ends as failed with
	// [protocol.CodeAnswerInvalid]. References lead nowhere but into the schema itself.
	AnswerSchema json.RawMessage
	// Again says that an earlier try of this process found turns in the session. If it has none
	// now, it was removed meanwhile: the input begins no turn, and the error wraps [ErrRemoved].
	Again bool
	// MadeAfter and MadeAt say when the input was made, as [Removal.Outlived] reads them: if the
	// session was removed since, the input begins no turn, and the error wraps [ErrRemoved].
	MadeAfter uint64
	MadeAt    time.Time
}

// isZero reports whether the input only resumes.
func (in *Input) isZero() bool { return in.Text == "" && in.ID == "" && len(in.Attachments) == 0 }

// Same reports whether the input is the one that started a turn. Without an id the text decides,
// and the attachments if it has some; the zero Input stands for whatever is open.
func (in Input) Same(started Input) bool {
	switch {
	case in.isZero():
		return true
	case in.ID != "" || started.ID != "":
		return in.ID == started.ID
	}
	return prose.Valid(in.Text) == started.Text && // as it was journaled
		(len(in.Attachments) == 0 || slices.EqualFunc(in.Attachments, started.Attachments, sameAttachment))
}

// sameAttachment compares a file with one of the journal, whose contents may be gone.
func sameAttachment(a, journaled Attachment) bool {
	asText := journaled.MediaType == mediaText && typeOf(a.Data) == render.MediaPDF // see pagesAsText
	return a.Name == journaled.Name && (len(journaled.Data) == 0 || asText || bytes.Equal(a.Data, journaled.Data))
}

// TurnResult is how a turn ended.
type TurnResult struct {
	Turn    int // from 1
	Outcome Outcome
	// Text is the last that the model said in the turn: the answer, if Outcome is answered.
	Text string
	// Answer is the Text as JSON, if the input has an AnswerSchema and Outcome is answered.
	Answer json.RawMessage
	Steps  int
	Usage  protocol.Usage
	// CostUSD is what the turn cost by [Options].Price; nil when the price of a reply is unknown.
	CostUSD *float64
	// Error says why the outcome is not answered.
	Error *protocol.Error
	// TraceID is that of [Event].
	TraceID string
}

// Run runs one turn of a session to its end, and makes the session if there is none.
//
// A turn that was begun and has not ended comes first. If this input started it, it is resumed and
// is the turn that Run runs. Otherwise it is brought to its end, and the input gets the turn after
// it, unless ctx ended meanwhile. A turn that was given up, because its submitted call has a
// result, is only ended. Either way the turn keeps the [Terms] that it was begun with, with those
// of this Runner. An input whose ID has had its turn returns how that ended, and runs nothing. The
// zero Input only resumes; without an open turn it is refused with [ErrNoInput].
//
// When ctx ends, the turn ends as interrupted. With the cause [ErrDetached] it stays open, and its
// calls continue.
//
// The error says that the fleet or the journal failed and the turn is still open, as it is with
// [ErrDetached] and [ErrJournalConflict]; the result then is how far it came. Everything else is an
// outcome.
func (r *Runner) Run(ctx context.Context, session protocol.SessionID, input Input) (TurnResult, error) {
	if err := validIDs(session, input); err != nil {
		return unfinished(ctx, TurnResult{}, err), err
	}
	rec, err := r.settled(ctx, session)
	if err != nil {
		return unfinished(ctx, TurnResult{}, err), err
	}
	return r.runLoaded(ctx, rec, input)
}

// settled loads a session, in which no change of a person is left to be completed.
func (r *Runner) settled(ctx context.Context, session protocol.SessionID) (*recorder, error) {
	rec, err := r.newRecorder(ctx, session)
	if err != nil || len(rec.session.state.Changes) == 0 {
		return rec, err
	}
	following, leave := context.WithCancelCause(context.WithoutCancel(ctx)) // the end of a turn ends no change
	defer context.AfterFunc(ctx, func() { leave(ErrDetached) })()
	_, err = CompleteChanges(following, r.journal, r.dispatcher, session)
	leave(nil)
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		return nil, err
	}
	return r.newRecorder(ctx, session)
}

// runLoaded is [Runner.Run] for a session that has been loaded.
func (r *Runner) runLoaded(ctx context.Context, rec *recorder, input Input) (TurnResult, error) {
	ctx, err := rec.owned(ctx)
	if err != nil {
		return unfinished(ctx, TurnResult{}, err), err
	}
	if result := rec.session.ended(input.ID); result != nil {
		return *result, nil
	}
	if open := rec.session.open(); open != nil && !input.Same(open.input) {
		result, err := r.runOther(ctx, rec)
		if err != nil || ctx.Err() != nil && result.Outcome == OutcomeInterrupted {
			return result, err
		}
	}
	if rec.session.open() != nil {
		return r.runTurn(ctx, rec)
	}
	switch cause := context.Cause(ctx); {
	case input.isZero():
		return unfinished(ctx, TurnResult{}, ErrNoInput), ErrNoInput
	case input.Again && len(rec.session.turns) == 0, rec.removed.Outlived(input.MadeAfter, input.MadeAt):
		return unfinished(ctx, TurnResult{}, ErrRemoved), ErrRemoved
	case errors.Is(cause, ErrDetached): // another process has the session, or nothing has it any more
		return unfinished(ctx, TurnResult{}, cause), cause
	}
	if failure, err := r.postponed(ctx, rec, input); err != nil || failure != nil {
		return TurnResult{Outcome: OutcomeLimitReached, Error: failure}, err
	}
	ctx, span := r.startTurn(ctx, rec, len(rec.session.turns)+1, trace.SpanContext{})
	defer span.End()
	if err := r.begin(ctx, rec, input); err != nil {
		failSpan(span, err)
		return unfinished(ctx, TurnResult{}, err), err
	}
	return r.runIn(ctx, span, rec)
}

// owned returns the context in which the session's turns run: what they make belongs to the owner
// of the session. The error is a [judge.RefusalError] if the principal of ctx may add no turn.
func (r *recorder) owned(ctx context.Context) (context.Context, error) {
	if r.fresh {
		return ctx, nil
	}
	if err := judge.Judge(ctx, judge.Use, judge.Object{Kind: judge.Session, ID: string(r.id), Owner: r.owner}); err != nil {
		return ctx, err
	}
	return wire.WithOwner(ctx, r.owner), nil
}

// EndGivenUp ends the turn that the input with the given id started, if the turn is open and its
// submitted call has a result already: as interrupted, its calls cancelled. The model is not asked.
// Without EndGivenUp the session's next run ends the turn. An error means that it is still open.
func (r *Runner) EndGivenUp(ctx context.Context, session protocol.SessionID, id protocol.CallID) error {
	if gone, err := r.givenUp(ctx, session, id); err != nil || !gone {
		return err
	}
	rec, err := r.newRecorder(ctx, session)
	if err != nil {
		return err
	}
	if open := rec.session.open(); open == nil || open.input.ID != id {
		return nil
	}
	_, err = r.endGivenUp(ctx, rec)
	return err
}

// runOther brings the open turn of another input to its end.
func (r *Runner) runOther(ctx context.Context, rec *recorder) (TurnResult, error) {
	open := rec.session.open()
	gone, err := r.givenUp(ctx, rec.id, open.input.ID)
	switch {
	case err != nil:
		return unfinished(ctx, open.resultSoFar("", nil), err), err
	case gone:
		return r.endGivenUp(ctx, rec)
	default:
		return r.runTurn(ctx, rec)
	}
}

// givenUp asks the dispatcher, which knows of inputs with an id only.
func (r *Runner) givenUp(ctx context.Context, session protocol.SessionID, id protocol.CallID) (bool, error) {
	if r.fleet == nil || id == "" {
		return false, nil
	}
	return r.fleet.GivenUp(ctx, session, id)
}

// errGivenUp is the cause with which the context of a turn ends that is given up.
var errGivenUp = errors.New("the call that asked for it is over")

// endGivenUp ends the open turn.
func (r *Runner) endGivenUp(ctx context.Context, rec *recorder) (TurnResult, error) {
	ctx, stop := context.WithCancelCause(ctx)
	stop(errGivenUp)
	return r.runTurn(ctx, rec)
}

// validIDs checks the names that a caller chose; the error wraps [protocol.ErrInvalidName].
func validIDs(session protocol.SessionID, input Input) error {
	_, err := protocol.ParseSessionID(string(session))
	if err == nil && input.ID != "" {
		_, err = protocol.ParseCallID(string(input.ID))
	}
	return err
}

// begin opens a turn, and the session if it is new.
func (r *Runner) begin(ctx context.Context, rec *recorder, input Input) error {
	attachments, err := attached(r.model, len(rec.session.turns)+1, input.Attachments)
	if err == nil {
		err = checkSchema(input.AnswerSchema)
	}
	if err == nil {
		err = pagesAsText(ctx, r.model, attachments)
	}
	if err != nil {
		return err
	}
	read, err := r.deliver(ctx, rec, &input)
	if err != nil {
		return err
	}
	var events []Event
	if rec.fresh {
		events = append(events, Event{
			Type: EventSessionStarted, StartFields: StartFields{
				Model: r.opts.ModelName, Tools: r.table.Names(), Workspace: r.opts.Workspace, Instructions: namesOf(r.opts.Project), Parent: r.lineage.parent,
				Tenant: wire.TenantOf(ctx),
			},
			NoteFields: NoteFields{By: judge.Of(ctx).By()},
		})
	}
	started := Event{
		Type: EventTurnStarted, Turn: len(rec.session.turns) + 1,
		StartFields: StartFields{Input: prose.Valid(input.Text), Attachments: attachments, AnswerSchema: input.AnswerSchema, Terms: r.terms(rec.session)},
		CallFields:  CallFields{CallID: input.ID},
		NoteFields:  NoteFields{By: prose.Valid(r.opts.Author.Name)},
	}
	if u := ports.UnattendedOf(ctx); u != nil && u.Firing != nil {
		started.Trigger, started.Read = u.Firing.Name, read
	}
	if rec.session.seed == "" {
		started.Seed = wire.NewSeed()
	}
	if span := trace.SpanContextFromContext(ctx); span.IsValid() && span.IsSampled() {
		started.TraceID, started.SpanID = span.TraceID().String(), span.SpanID().String()
	}
	events = append(events, started)
	return rec.record(ctx, events...)
}

// scope is where the tools of a session run.
func (r *Runner) scope(session protocol.SessionID) tools.Scope {
	sandbox := r.opts.Sandbox
	if sandbox == "" {
		sandbox = string(session)
	}
	return tools.Scope{Session: session, Sandbox: sandbox, Guard: r.opts.Guard}
}

// unfinished is the result of a turn that err left open.
func unfinished(ctx context.Context, result TurnResult, err error) TurnResult {
	result.Outcome = OutcomeFailed
	if ctx.Err() != nil {
		result.Outcome = OutcomeInterrupted
		if isTimeLimit(context.Cause(ctx)) {
			result.Outcome = OutcomeLimitReached
		}
	}
	code := protocol.CodeFleetUnavailable
	failure, typed := errors.AsType[*protocol.Error](err)
	switch {
	case errors.Is(err, ErrDetached):
		code = protocol.CodeCancelled
	case errors.Is(err, ErrEventTooLarge):
		code = codes.PayloadTooLarge
	case errors.Is(err, ErrRemoved), errors.Is(err, ErrUncompleted):
		code = protocol.CodeNotFound
	case typed && failure.Code == protocol.CodeFleetFull: // of a journal without room
		code = protocol.CodeFleetFull
	case typed && failure.Code == protocol.CodeInvalidArguments: // of attachments
		result.Error = failure
		return result
	case errors.Is(err, ErrJournalConflict), errors.Is(err, ErrJournalInvalid),
		errors.Is(err, ErrNoInput), errors.Is(err, protocol.ErrInvalidName):
		code = protocol.CodeInternal
	}
	result.Error = &protocol.Error{Code: code, Message: err.Error()}
	return result
}

func isTimeLimit(cause error) bool {
	failure, is := errors.AsType[*protocol.Error](cause)
	return is && failure.Code == protocol.CodeLimitReached
}

// limitReached is the error of a turn that came to one of its limits.
func limitReached(format string, args ...any) *protocol.Error {
	return codes.TurnLimit(fmt.Sprintf(format, args...))
}
