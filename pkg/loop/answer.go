package loop

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/toolfleet/toolfleet/internal/modeltext/argument"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Bounds of structured answers.
const (
	maxAnswerSchema = 64 << 10 // bytes
	// maxAnswers is how many answers of a turn are checked: each but the last is followed by a
	// request for a better one, which is a step like any other.
	maxAnswers = 3
)

// checkSchema returns an error unless the schema of an answer can be used.
func checkSchema(schema json.RawMessage) error {
	if len(schema) == 0 {
		return nil
	}
	if len(schema) > maxAnswerSchema {
		return invalid("answer schema: %d bytes: must be at most %d", len(schema), maxAnswerSchema)
	}
	if _, err := argument.CompileAnswer(schema); err != nil {
		return invalid("answer schema: %v", err)
	}
	return nil
}

// schemaNote is what a model reads of the schema of its answer.
func schemaNote(schema json.RawMessage) string {
	return "[Your answer must be one JSON value and nothing else, without a code block. It must be valid under this JSON Schema: " + string(argument.Compact(schema)) + "]"
}

// answer ends a turn with its answer, if that is valid under the schema of the turn. Otherwise it
// journals what is wrong with it, so that the model is asked once more, or fails the turn.
func (t *turnRun) answer(ctx context.Context) (*ending, error) {
	turn := t.session.open()
	if len(turn.input.AnswerSchema) == 0 {
		return t.stop(ctx)
	}
	schema, err := argument.CompileAnswer(turn.input.AnswerSchema)
	if err != nil { // of a version that compiles others
		return &ending{OutcomeFailed, boundedError(protocol.Errorf(protocol.CodeAnswerInvalid, "the schema of the answer cannot be used: %v", err))}, nil
	}
	problems := schema.Answer(turn.text())
	if len(problems) == 0 {
		return t.stop(ctx)
	}
	if turn.refused+1 >= maxAnswers {
		return &ending{OutcomeFailed, boundedError(protocol.Errorf(protocol.CodeAnswerInvalid,
			"the model's answer was not valid under the schema, %d times in a row:\n%s", maxAnswers, argument.List(problems)))}, nil
	}
	return nil, t.record(ctx, Event{
		Type: EventAnswerRefused, Turn: turn.number, Step: len(turn.steps),
		Text: fmt.Sprintf("[Your answer is not valid under the schema:\n%s\nAnswer again: one JSON value, and nothing else.]", argument.List(problems)),
	})
}

// stop ends a turn that is answered, unless a hook denies it.
func (t *turnRun) stop(ctx context.Context) (*ending, error) {
	switch turn := t.session.open(); {
	case len(t.hooks(HookStop)) == 0, turn.asked(HookStop):
		return &ending{outcome: OutcomeAnswered}, nil
	case ctx.Err() != nil:
		return t.stopped(ctx)
	default:
		return nil, t.hookTurn(ctx, HookStop)
	}
}

// refuseAnswer folds that the last step is no answer.
func (s *session) refuseAnswer(e *Event) error {
	t := s.open()
	if t == nil || e.Turn != t.number || e.Step != len(t.steps) || len(t.steps) == 0 || len(t.last().calls) > 0 {
		return fmt.Errorf("step %d is no answer", e.Step)
	}
	t.refused++
	t.last().continued = true
	t.addNote(e.Text)
	s.sinceReply += len(e.Text)
	return nil
}

// value is the answer as JSON; nil without a schema.
func (t *turn) value(outcome Outcome, text string) json.RawMessage {
	if outcome != OutcomeAnswered || len(t.input.AnswerSchema) == 0 {
		return nil
	}
	value := json.RawMessage(argument.JSONIn(text))
	if !json.Valid(value) { // of a journal that another program wrote
		return nil
	}
	return argument.Compact(value)
}
