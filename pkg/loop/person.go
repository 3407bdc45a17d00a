package loop

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/toolfleet/toolfleet/internal/modeltext/prose"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// askUser puts the question of a tool call to a person, and settles the call with the answer. The
// question is in the journal before it counts, so a resumed turn asks again. An error is one of
// the fleet or the journal: then the call has no result.
func (b *batch) askUser(ctx context.Context, p *pendingCall, request wire.PersonRequest) error {
	ctx, span := b.startTool(ctx, p)
	defer span.End()
	start := time.Now()
	answer, failure, err := b.answered(ctx, p, request)
	if err != nil {
		return err
	}
	if failure != nil {
		failSpan(span, failure)
		status := protocol.StatusFailed
		if failure.Code == protocol.CodeCancelled {
			status = protocol.StatusCancelled
		}
		b.settle(p.localResult(status, "", failure, time.Since(start)))
		return nil
	}
	event := p.localResult(protocol.StatusOK, textOf(answer), nil, time.Since(start))
	event.By = prose.Valid(answer.By)
	b.settle(event)
	return nil
}

// answered waits for the answer of a person. The failure says why there is none.
func (t *turnRun) answered(ctx context.Context, p *pendingCall, request wire.PersonRequest) (protocol.Answer, *protocol.Error, error) {
	if t.fleet == nil {
		return protocol.Answer{}, protocol.Errorf(protocol.CodeToolFailed, "There is nobody to ask. Go on without an answer."), nil
	}
	asked := p.as(EventQuestionAsked)
	asked.Question, asked.Lane = &request.Question, string(protocol.SessionPool)+"/session/"+string(t.id)
	listening := func() error {
		if p.asked[request.Question.ID] != nil { // by an earlier run
			t.notify(asked)
			return nil
		}
		return t.record(ctx, asked)
	}
	limited, cancel := context.WithTimeout(ctx, request.Timeout)
	defer cancel()
	answer, err := t.fleet.Ask(limited, t.id, p.event.CallID, request.Question, request.Fits, listening)
	switch {
	case detached(ctx):
		return answer, nil, context.Cause(ctx)
	case err != nil && ctx.Err() != nil:
		return answer, protocol.Errorf(protocol.CodeCancelled, "The turn was stopped before anybody answered."), nil
	case errors.Is(err, context.DeadlineExceeded):
		return answer, protocol.Errorf(protocol.CodeDeadline, "Nobody answered within %s. Go on without an answer, or end your turn and say what you need.", request.Timeout), nil
	case err != nil:
		return answer, nil, fmt.Errorf("ask a person: %w", err)
	case answer.Action != protocol.ActionAccept:
		return answer, protocol.Errorf(protocol.CodeToolFailed, askedDeclined), nil
	}
	return answer, nil, nil
}

// askedDeclined is what a model reads of a person who does not answer.
const askedDeclined = "The user was asked and declined to answer. Go on without an answer."

// textOf is the text of an answer that fits.
func textOf(answer protocol.Answer) string {
	var content struct {
		Answer string `json:"answer"`
	}
	_ = json.Unmarshal(answer.Content, &content) // it fits
	return prose.Valid(content.Answer)
}
