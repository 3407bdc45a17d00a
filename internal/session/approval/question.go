package approval

import (
	"context"
	"fmt"

	"github.com/nats-io/nats.go"

	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/wire/signing"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Asked is a call that asks a person while it runs.
type Asked struct {
	Pool    protocol.Pool
	Session protocol.SessionID
	Call    protocol.CallID
	// Signer signs the answer; nil leaves it unsigned.
	Signer *signing.Signer
}

func (a Asked) reply(nc *nats.Conn, fleet protocol.Fleet, answer protocol.Answer) (reply, error) {
	body, err := wire.Encode(&answer)
	if err != nil {
		return reply{}, fmt.Errorf("answer: %w", err)
	}
	return reply{nc, fleet, wire.AnswerSubject(fleet, a.Pool, a.Session, a.Call), body, a.Signer, &answer}, nil
}

// TakeOn notifies a call that a person is being asked, so that it waits for the answer. It is sent
// as a request, since a call ignores what is not ([natsio.IsRequest]); the reply is not awaited.
func TakeOn(nc *nats.Conn, fleet protocol.Fleet, a Asked, question string) error {
	r, err := a.reply(nc, fleet, protocol.Answer{Question: question, Action: protocol.ActionWait})
	if err != nil {
		return err
	}
	value, err := r.signer.SignAnswer(fleet, r.subject, r.body)
	if err == nil {
		err = r.nc.PublishMsg(&nats.Msg{Subject: r.subject, Reply: r.nc.NewInbox(), Data: r.body, Header: nats.Header{wire.HeaderSigned: {value}}})
	}
	if err != nil {
		return fmt.Errorf("take on a question: %w", err)
	}
	return nil
}

// Put waits for the answer to a question, which the caller puts when it is called back. It is
// what ports.Fleet says. With keys, who has signed the answer is known, as in [Waiter], and must be
// one that may use the session.
func Put(
	ctx context.Context, nc *nats.Conn, fleet protocol.Fleet, keys *signing.Keys, a Asked, question string, fits func(protocol.Answer) error, listening func() error,
) (protocol.Answer, error) {
	messages := make(chan *nats.Msg, 8)
	subscription, err := nc.ChanSubscribe(wire.AnswerSubject(fleet, a.Pool, a.Session, a.Call), messages)
	if err == nil {
		defer func() { _ = subscription.Unsubscribe() }() // the connection may be gone
		err = nc.FlushWithContext(ctx)
	}
	if err != nil {
		return protocol.Answer{}, fmt.Errorf("wait for an answer: %w", err)
	}
	if err := listening(); err != nil {
		return protocol.Answer{}, err
	}
	for {
		select {
		case message := <-messages:
			if !natsio.IsRequest(message) {
				continue
			}
			answer, by, err := keys.ReadAnswer(ctx, fleet, a.Session, message, question, fits)
			if err != nil {
				continue
			}
			if answer.Action != protocol.ActionWait {
				answer.By = nameOf(answer.By, by)
				return answer, nil
			}
		case <-ctx.Done():
			return protocol.Answer{}, context.Cause(ctx)
		}
	}
}

// replies are an answer to the session, if it asks itself, and to the call in its pool.
// Coordinators come first: a worker may listen to every call of its pool, and take what is not for
// it.
func (a Asked) replies(home, running *nats.Conn, fleet protocol.Fleet, answer protocol.Answer) ([]reply, error) {
	r, err := a.reply(running, fleet, answer)
	if err != nil || a.Pool == protocol.SessionPool {
		return []reply{r}, err
	}
	session := r
	session.nc, session.subject = home, wire.AnswerSubject(fleet, protocol.SessionPool, a.Session, a.Call)
	return []reply{session, r}, nil
}

// Reply answers what a call asks, or the session in its name, and returns when the answer was
// taken. home is the connection on which coordinators wait, running that of the call's worker; they
// may be the same. The error is [ErrNotAsked] when nothing is asked, and wraps [ErrRefused] when
// the answer does not fit.
func Reply(ctx context.Context, home, running *nats.Conn, fleet protocol.Fleet, a Asked, answer protocol.Answer) error {
	replies, err := a.replies(home, running, fleet, answer)
	if err != nil {
		return err
	}
	return deliver(ctx, replies...)
}

// Asks reports whether a running call waits for an answer. One that does not say so in time may
// wait.
func Asks(ctx context.Context, nc *nats.Conn, fleet protocol.Fleet, a Asked) bool {
	return waited(ctx, nc, wire.AnswerSubject(fleet, a.Pool, a.Session, a.Call))
}

// Say answers yes or no to a call's approval or to its question, with the connections of [Reply];
// yes to a question sends the default values of its fields. The error is [ErrNotAsked] if nothing
// waits for an answer, else that of [Reply].
func Say(ctx context.Context, home, running *nats.Conn, fleet protocol.Fleet, a Asked, said protocol.Approval) error {
	body, err := wire.Encode(&said)
	if err != nil {
		return fmt.Errorf("answer: %w", err)
	}
	answer := protocol.Answer{Action: protocol.ActionDecline, By: said.By}
	if said.Granted {
		answer.Action = protocol.ActionAccept
	}
	replies, err := a.replies(home, running, fleet, answer)
	if err != nil {
		return err
	}
	first := reply{home, fleet, wire.ApprovalSubject(fleet, a.Session, a.Call), body, a.Signer, nil}
	return deliver(ctx, append([]reply{first}, replies...)...)
}
