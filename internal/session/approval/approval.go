// Package approval carries the question whether a tool call may be made to a person
// elsewhere, and the answer back; and answers to what calls ask while they run.
//
//	coordinator of the turn                         whoever watches (submit, approve, an API)
//	  event approval_asked, live ───────────────────► shows it
//	  waits on tf.approval.<session>.<call> ◄─request── answers
//	  confirms ──────────────────────────────reply───► knows that it was taken
//
//	worker of the call ── tf.question.<pool>.<session>.<call> ──► coordinator ── event question_asked ──► shows it
//	  waits on tf.answer.<pool>.<session>.<call> ◄─"wait"────────────────────────────────────────────── asks a person
//	  confirms                                   ◄─request───────────────────────────────────────────── answers
//
// The answer is not stored on the way: a question lives as long as its coordinator, or its call,
// waits. The coordinator journals questions and who answered them, and asks again after a crash.
package approval

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolfleet/toolfleet/internal/judge"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/internal/wire/signing"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// ErrNotAsked means that no process waits for an answer about that call.
var ErrNotAsked = codes.As(codes.ErrNotFound,
	errors.New("no process waits for an answer to this call: it was answered, its time is over, or the ids are wrong (coordinator approve ls lists the calls that wait)"))

// ErrRefused is wrapped by errors about an answer that makes no sense where it is waited for, or
// does not fit what is asked: the question stays.
var ErrRefused = codes.As(codes.ErrInvalid, errors.New("the answer does not count"))

const (
	// patience is how long an answer tries to reach a question that may just be put.
	patience = 2 * time.Second
	// takenWait is how long whoever waits for an answer may need to confirm it: a busy machine may
	// have much to do before.
	takenWait = 30 * time.Second
)

// Waiter returns what waits for answers that come over NATS: the Approve function of a session. It
// is safe for concurrent use. With keys, who has signed an answer is known, and must be one that
// may approve calls of the session's owner, which the context has; nil accepts every answer.
func Waiter(nc *nats.Conn, fleet protocol.Fleet, keys *signing.Keys) func(context.Context, loop.ApprovalRequest) (protocol.Approval, error) {
	return func(ctx context.Context, request loop.ApprovalRequest) (protocol.Approval, error) {
		messages := make(chan *nats.Msg, 8)
		subscription, err := nc.ChanSubscribe(wire.ApprovalSubject(fleet, request.SessionID, request.CallID), messages)
		if err != nil {
			return protocol.Approval{}, fmt.Errorf("wait for approval: %w", err)
		}
		defer func() { _ = subscription.Unsubscribe() }() // the connection may be gone
		for {
			select {
			case message := <-messages:
				if !natsio.IsRequest(message) {
					continue
				}
				answer, err := wire.Decode[protocol.Approval](message.Data)
				if err != nil {
					_ = message.Respond([]byte(err.Error())) // whoever asked wrongly has gone or reads it
					continue
				}
				by, err := keys.Giver(ctx, fleet, message.Subject, message.Header.Get(wire.HeaderSigned), message.Data, judge.Approve, request.SessionID)
				if err != nil {
					_ = message.Respond([]byte(err.Error())) // as above
					continue
				}
				_ = message.Respond(taken()) // the answer counts in any case
				answer.By, answer.Via = nameOf(answer.By, by), "fleet"
				return *answer, nil
			case <-ctx.Done():
				return protocol.Approval{}, context.Cause(ctx)
			}
		}
	}
}

// nameOf is the name under which an answer that came over NATS is recorded: a message does not name
// its publisher, so the name is what the answer says, with the key that has signed it.
func nameOf(said, by string) string {
	if by == "" && said != "" {
		by = "claimed"
	}
	if by == "" {
		return ""
	}
	return strings.TrimSpace(said + " (" + by + ")")
}

func taken() []byte { return []byte(wire.AnswerTaken) }

// Waits reports whether a coordinator waits for an answer about a call. One that does not say so in
// time may wait.
func Waits(ctx context.Context, nc *nats.Conn, fleet protocol.Fleet, session protocol.SessionID, call protocol.CallID) bool {
	return waited(ctx, nc, wire.ApprovalSubject(fleet, session, call))
}

// waited reports whether a process waits for an answer on a subject.
func waited(ctx context.Context, nc *nats.Conn, subject wire.Subject) bool {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	_, err := nc.RequestWithContext(ctx, subject, nil) // no answer: it is refused, and the question stays
	return !errors.Is(err, nats.ErrNoResponders)
}

// reply is an answer, and where it is waited for.
type reply struct {
	nc      *nats.Conn
	fleet   protocol.Fleet
	subject wire.Subject
	body    []byte
	signer  *signing.Signer // nil leaves it unsigned
	// answer has the body, unless that is an approval. One that is signed names its question.
	answer *protocol.Answer
}

// deliver has one of some answers taken: whichever is waited for.
func deliver(ctx context.Context, replies ...reply) error {
	putBy := time.NewTimer(patience)
	defer putBy.Stop()
	retry := time.NewTicker(patience / 20)
	defer retry.Stop()
	for {
		for _, r := range replies {
			confirmed, err := r.request(ctx)
			switch {
			case err == nil && string(confirmed.Data) == string(taken()):
				return nil
			case err == nil:
				return fmt.Errorf("%w: %s", ErrRefused, confirmed.Data)
			case ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded):
				return ErrNotAsked // another answer was taken before
			case !errors.Is(err, nats.ErrNoResponders):
				return fmt.Errorf("answer: %w", err)
			}
		}
		select {
		case <-retry.C:
		case <-putBy.C:
			return ErrNotAsked
		case <-ctx.Done():
			return fmt.Errorf("answer: %w", context.Cause(ctx))
		}
	}
}

func (r reply) request(ctx context.Context) (*nats.Msg, error) {
	ctx, cancel := context.WithTimeout(ctx, takenWait)
	defer cancel()
	value, err := r.signer.SignAnswer(r.fleet, r.subject, r.body)
	if err != nil {
		return nil, err
	}
	reply, err := r.nc.RequestMsgWithContext(ctx, &nats.Msg{Subject: r.subject, Data: r.body, Header: nats.Header{wire.HeaderSigned: {value}}})
	if err != nil || r.signer == nil || r.answer == nil || r.answer.Question != "" || reply.Header.Get(wire.HeaderQuestion) == "" {
		return reply, err
	}
	named := *r.answer
	named.Question = reply.Header.Get(wire.HeaderQuestion)
	r.answer = &named
	if r.body, err = wire.Encode(&named); err != nil {
		return nil, err
	}
	return r.request(ctx)
}
