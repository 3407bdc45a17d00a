package natsio

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolfleet/toolfleet/internal/system/pause"
)

// Outcome is what the error of a write says of its message.
//
//	Unknown ── the next try ─┬─▶ Acknowledged  it is stored
//	   ▲                     ├─▶ NotStored     it was not sent, or the server refused it
//	   │                     ├─▶ Conflict      another message is there: perhaps from an earlier try
//	   └─────────────────────┘
//
// An unknown outcome is no failure: the server may have stored the message and the answer is lost,
// or the message is still on its way. [UntilKnown] tries again until the outcome is known.
type Outcome uint8

// Every outcome.
const (
	Unknown Outcome = iota
	Acknowledged
	NotStored
	Conflict
)

// ErrUnknown is wrapped by the error of a write that may be stored.
var ErrUnknown = errors.New("it is not known whether it is stored")

// OutcomeOf returns the outcome of one try of a write from its error.
func OutcomeOf(err error) Outcome {
	if err == nil {
		return Acknowledged
	}
	if errors.Is(err, ErrUnknown) {
		return Unknown
	}
	if _, before := errors.AsType[notSentError](err); before || Unsendable(err) {
		return NotStored
	}
	if api, answered := errors.AsType[*jetstream.APIError](err); answered {
		switch {
		case api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence, isSecondOfSubject(api):
			return Conflict
		case api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequenceConstant:
			return Unknown // in a cluster another message is under way, and may never be stored
		case api.Code == http.StatusServiceUnavailable && api.ErrorCode != CodeStoreFailed && !NoRoom(api):
			return Unknown
		}
		return NotStored
	}
	for _, before := range []error{
		nats.ErrNoResponders, jetstream.ErrNoStreamResponse, nats.ErrReconnectBufExceeded, nats.ErrDisconnected, nats.ErrConnectionDraining,
	} {
		if errors.Is(err, before) {
			return NotStored
		}
	}
	return Unknown
}

// Repeatable reports whether another try may end otherwise than with this error: no server
// answered, or the server cannot store at the moment.
func Repeatable(err error) bool {
	if api, answered := errors.AsType[*jetstream.APIError](err); answered {
		return api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequenceConstant ||
			api.Code == http.StatusServiceUnavailable && !NoRoom(api) && !isSecondOfSubject(api)
	}
	_, before := errors.AsType[notSentError](err)
	return err != nil && !before && !errors.Is(err, nats.ErrConnectionClosed) && !Unsendable(err)
}

// Unsendable reports whether the client refused to send a message, which it always will.
func Unsendable(err error) bool {
	return errors.Is(err, nats.ErrMaxPayload) || errors.Is(err, nats.ErrBadHeaderMsg) || errors.Is(err, nats.ErrBadSubject) || errors.Is(err, nats.ErrHeadersNotSupported)
}

// Overtaken reports whether another writer has changed, or is about to change, what a write expects
// to be there.
func Overtaken(err error) bool {
	api, answered := errors.AsType[*jetstream.APIError](err)
	return answered && (api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence || api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequenceConstant)
}

// NoRoom reports whether the server stored nothing because it has no room: the stream, the account
// or the server itself is at its limit.
func NoRoom(err error) bool {
	api, answered := errors.AsType[*jetstream.APIError](err)
	if !answered || errors.Is(err, ErrUnknown) {
		return false
	}
	switch api.ErrorCode {
	case codeAccountFull, codeServerFull, codeNoStorage:
		return true
	case CodeStoreFailed:
		return strings.Contains(api.Description, "maximum") && !isSecondOfSubject(api) || strings.Contains(api.Description, "no space left")
	default:
		return false
	}
}

// isSecondOfSubject reports whether a stream that keeps one message of each subject has that one.
func isSecondOfSubject(api *jetstream.APIError) bool {
	return api.ErrorCode == CodeStoreFailed && strings.Contains(api.Description, "per subject")
}

// notSentError is the error of a write that ended before its message was sent.
type notSentError struct{ error }

func (n notSentError) Unwrap() error { return n.error }

// NotSent returns the error of a write that ended before its message was sent, and that is not
// tried again.
func NotSent(err error) error {
	if err == nil {
		return nil
	}
	return notSentError{err}
}

// UntilKnown makes a write until its outcome is known, and returns nil when it is stored. A try has
// 5 s. The write must be repeatable: on a condition that the first message breaks,
// with an id for the server, or of a content that replaces itself.
//
// When a try is refused after one of unknown outcome, isThere finds out whether the earlier one was
// stored; with nil that stays unknown, and so it does if no server has answered the later one: the
// message may still be on its way. The error has the outcome: [ErrUnknown] if the context ended
// first, or the connection was closed.
func UntilKnown(ctx context.Context, write func(context.Context) error, isThere func(context.Context) (bool, error)) error {
	for mayBeThere := false; ; {
		err := tryOnce(ctx, write)
		outcome := OutcomeOf(err)
		final := !Repeatable(err)
		switch {
		case outcome == Acknowledged:
			return nil
		case outcome == Unknown:
			mayBeThere = true
		case mayBeThere && isThere != nil:
			var there bool
			lookErr := tryOnce(context.WithoutCancel(ctx), func(ctx context.Context) (err error) {
				there, err = isThere(ctx)
				return err
			})
			if there && lookErr == nil {
				return nil
			}
			_, answered := errors.AsType[*jetstream.APIError](err)
			if mayBeThere = lookErr != nil || !answered; lookErr != nil {
				err, final = errors.Join(err, lookErr), !Repeatable(lookErr)
			}
		}
		switch {
		case !final && pause.For(ctx, pause.Retry):
		case mayBeThere:
			return fmt.Errorf("%w: %w", ErrUnknown, err)
		default:
			return err
		}
	}
}

// tryOnce makes one try.
func tryOnce(ctx context.Context, try func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, openTry)
	defer cancel()
	return try(ctx)
}
