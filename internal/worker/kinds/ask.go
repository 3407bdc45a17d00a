package kinds

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// errNobody is why a question is declined that nobody takes on.
var errNobody = errors.New("nobody who follows the call can be asked")

// askPart is the part of a call's remaining time that a question may take. The rest is for what
// becomes of the answer.
const askPart = 2

// tellTimeout bounds how long a call waits until the end of its question is told.
const tellTimeout = time.Second

// ask puts a question of a running call to whoever follows it, and waits for an answer that fits.
// One that does not is refused with that error, and the question stays. The error says why there is
// none.
func (h *Host) ask(ctx context.Context, call *protocol.Call, q protocol.Question, fits func(*protocol.Answer) error) (protocol.Answer, error) {
	body, err := wire.EncodeQuestion(q)
	if err != nil {
		return protocol.Answer{}, err
	}
	if len(body) > wire.MaxQuestion {
		return protocol.Answer{}, fmt.Errorf("the question has %d bytes, at most %d are put to a person", len(body), wire.MaxQuestion)
	}
	if deadline, bounded := ctx.Deadline(); bounded {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Until(deadline)/askPart)
		defer cancel()
	}
	answers := make(chan *nats.Msg, 8)
	subscription, err := h.NC.ChanSubscribe(wire.AnswerSubject(h.Fleet, call.Pool, call.SessionID, call.ID), answers)
	if err != nil {
		return protocol.Answer{}, err
	}
	defer func() { _ = subscription.Unsubscribe() }() // the connection may be gone
	if err := h.NC.Publish(wire.QuestionSubject(h.Fleet, call.Pool, call.SessionID, call.ID), body); err != nil {
		return protocol.Answer{}, err
	}
	answered := protocol.Answer{Question: q.ID, Action: protocol.ActionCancel}
	defer func() { h.tellAnswered(call, answered) }()
	unheard := time.NewTimer(wire.AskWait)
	defer unheard.Stop()
	for {
		select {
		case message := <-answers:
			answer, err := wire.DecodeAnswer(message.Data)
			if err == nil { // else somebody only looks whether the question is put
				unheard.Stop()
			}
			switch {
			case err == nil && answer.Question != "" && answer.Question != q.ID:
				err = errors.New("it is about another question, which is not put any more")
			case err == nil && answer.Action == protocol.ActionAccept:
				err = fits(&answer)
			}
			if err != nil {
				_ = message.Respond([]byte(err.Error())) // whoever answered wrongly has gone or reads it
				continue
			}
			_ = message.Respond([]byte(wire.AnswerTaken)) // the answer counts in any case
			if answer.Action != wire.ActionWait {
				answered.Action, answered.By = answer.Action, answer.By
				return answer, nil
			}
		case <-unheard.C:
			return protocol.Answer{}, errNobody
		case <-ctx.Done():
			return protocol.Answer{}, errors.New("nobody answered in time")
		}
	}
}

// tellAnswered tells whoever follows a call what came of its question, without the content of the
// answer, which may be a secret.
func (h *Host) tellAnswered(call *protocol.Call, answered protocol.Answer) {
	body, err := wire.EncodeAnswer(answered)
	if err == nil {
		err = h.NC.Publish(wire.QuestionSubject(h.Fleet, call.Pool, call.SessionID, call.ID), body)
	}
	if err == nil { // so that it comes before the call's result, which ends the question anyway
		_ = h.NC.FlushTimeout(tellTimeout)
	}
}
