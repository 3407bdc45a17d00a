package store

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"

	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// StoreResult stores a result unless there is one already.
func (s *Store) StoreResult(ctx context.Context, r *protocol.Result) error {
	body, err := s.fit(ctx, r)
	if err != nil {
		return err
	}
	msg := &nats.Msg{
		Subject: s.Fleet.ResultSubject(r.SessionID, r.CallID), Data: body,
		Header: nats.Header{jetstream.ExpectedLastSubjSeqHeader: []string{"0"}},
	}
	_, answer, err := s.PublishOnce(ctx, s.Fleet.ResultsStream(), msg)
	if err != nil {
		return fmt.Errorf("store result of call %s: %w", r.CallID, err)
	}
	if answer == Full {
		return fmt.Errorf("store result of call %s: %w", r.CallID, ErrFull)
	}
	return nil
}

// messageOverhead is room for the subject and the headers of a message.
const messageOverhead = 16 << 10

// maxMessage is how many bytes of the message of an error a result has that no message of NATS
// could carry; escaped as JSON they are at most six times as many.
const maxMessage = 64 << 10

// carried is an error with a message that is not too large, head and tail of what there was.
func carried(fault *protocol.Error) *protocol.Error {
	if fault == nil || len(fault.Message) <= maxMessage {
		return fault
	}
	head, tail := fault.Message[:maxMessage/2], fault.Message[len(fault.Message)-maxMessage/2:]
	message := fmt.Sprintf("%s\n[... %d bytes left out ...]\n%s", head, len(fault.Message)-maxMessage, tail)
	return &protocol.Error{Code: fault.Code, Message: strings.ToValidUTF8(message, "\uFFFD")}
}

// fit encodes a result. Of the error of one that no message can carry the middle is left out,
// and its value is stored apart. A result must always arrive: where that is not possible, one without the value says so.
func (s *Store) fit(ctx context.Context, r *protocol.Result) ([]byte, error) {
	body, err := protocol.EncodeResult(r)
	small := *r
	switch {
	case err != nil:
		small.Value, small.Status = nil, protocol.StatusFailed
		small.Error = protocol.Errorf(protocol.CodeInternal, "the call ran, but its result cannot be encoded: %v", err)
	case !s.TooLarge(body):
		return body, nil
	default:
		small.Error = carried(r.Error)
		if body, err = protocol.EncodeResult(&small); err != nil || !s.TooLarge(body) {
			return body, err
		}
		raw, err := protocol.EncodeValue(r.Value)
		if err != nil {
			return nil, err
		}
		stored, err := s.Blobs.Put(ctx, "result/"+string(r.SessionID), raw)
		switch {
		case err == nil:
			small.Value = stored
		case errors.Is(err, ErrTooLarge):
			small.Value, small.Status = nil, protocol.StatusFailed
			small.Error = protocol.Errorf(protocol.CodePayloadTooLarge, "the call ran, but its result is too large: %v; ask for less at once", err)
		case errors.Is(err, ErrFull):
			small.Value, small.Status = nil, protocol.StatusFailed
			small.Error = protocol.Errorf(protocol.CodePayloadTooLarge, "the call ran, but there is no room for a result as large as its: %v", err)
		default:
			return nil, err
		}
	}
	return protocol.EncodeResult(&small)
}

// TooLarge reports whether a body does not fit into a message.
func (s *Store) TooLarge(body []byte) bool {
	return int64(len(body)) > s.NC.MaxPayload()-messageOverhead
}

// Result returns the stored result of a call; nil when there is none. A result beside an error has a value that cannot be had.
func (s *Store) Result(ctx context.Context, session protocol.SessionID, call protocol.CallID) (*protocol.Result, error) {
	ctx, cancel := context.WithTimeout(ctx, OpTimeout)
	defer cancel()
	msg, err := s.read(ctx, s.Fleet.ResultsStream(), s.Fleet.ResultSubject(session, call), 0)
	if err != nil {
		return nil, fmt.Errorf("look for the result of call %s: %w", call, err)
	}
	if msg == nil {
		return nil, nil //nolint:nilnil // nothing there is an answer
	}
	r, err := protocol.DecodeResult(msg.Data)
	if err != nil {
		return nil, err
	}
	return r, s.Blobs.Value(ctx, r)
}

// HasResult reports whether a call has a result, also one whose value cannot be had or read.
func (s *Store) HasResult(ctx context.Context, session protocol.SessionID, call protocol.CallID) (bool, error) {
	subject := s.Fleet.ResultSubject(session, call)
	found, err := s.HasResults(ctx, subject)
	return found[subject], err
}

// HasResults returns those of some result subjects that have a result. A server on its own is asked once for all of them.
func (s *Store) HasResults(ctx context.Context, subjects ...string) (map[string]bool, error) {
	if s.lone.Load() && !s.Clustered() {
		found, err := s.lookUp(ctx, subjects)
		if !errors.Is(err, ErrNotAtOnce) {
			return found, err
		}
	}
	stored := make([]bool, len(subjects))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(maxReads)
	for i, subject := range subjects {
		group.Go(func() error {
			msg, err := s.read(ctx, s.Fleet.ResultsStream(), subject, 0)
			stored[i] = msg != nil
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, fmt.Errorf("look for results: %w", err)
	}
	found := map[string]bool{}
	for i, subject := range subjects {
		found[subject] = stored[i]
	}
	return found, nil
}

// lookUp is HasResults by one direct get. The error wraps [ErrNotAtOnce] when results have to be read one by one.
func (s *Store) lookUp(ctx context.Context, subjects []string) (map[string]bool, error) {
	question := &nats.Msg{Subject: directGet + s.Fleet.ResultsStream()}
	var answers []*nats.Msg
	var err error
	if len(subjects) == 1 { // the usual one, and the cheapest
		question.Data = []byte(`{"last_by_subj":"` + subjects[0] + `"}`)
		var answer *nats.Msg
		answer, err = s.Replies.Request(ctx, ShortTimeout, question)
		answers = []*nats.Msg{answer}
	} else {
		question.Data = []byte(`{"multi_last":["` + strings.Join(subjects, `","`) + `"]}`)
		answers, err = s.Replies.Collect(ctx, ShortTimeout, question, len(subjects)+1, endsBatch)
	}
	switch {
	case errors.Is(err, nats.ErrNoResponders): // the stream allows it no more
		return nil, ErrNotAtOnce
	case err != nil:
		return nil, fmt.Errorf("look for results: %w", err)
	case s.foreign(answers[0], s.Fleet.ResultsStream(), &s.lone):
		return nil, ErrNotAtOnce
	}
	found := map[string]bool{}
	for _, answer := range answers {
		switch status := answer.Header.Get(headerStatus); status {
		case "":
			found[answer.Header.Get(jetstream.SubjectHeader)] = true
		case statusEnd, statusNotFound:
		default:
			return nil, fmt.Errorf("look for results: %w", refusal(answer))
		}
	}
	return found, nil
}

// SurelyNoResult makes sure, in a cluster, that a call of which no result was found has none. It fails when there is one
// all the same.
func (s *Store) SurelyNoResult(ctx context.Context, c *protocol.Call) error {
	if !s.Clustered() {
		return nil
	}
	_, answer, err := s.Publish(ctx, &nats.Msg{
		Subject: s.Fleet.NoResultSubject(c.SessionID, c.ID, Token()),
		Header: nats.Header{
			jetstream.ExpectedLastSubjSeqHeader:     []string{"0"},
			jetstream.ExpectedLastSubjSeqSubjHeader: []string{s.Fleet.ResultSubject(c.SessionID, c.ID)},
		},
	})
	switch {
	case err != nil:
		return fmt.Errorf("make sure that call %s has no result: %w", c.ID, err)
	case answer == Full:
		return fmt.Errorf("make sure that call %s has no result: %w", c.ID, ErrFull)
	case answer == Occupied:
		return fmt.Errorf("call %s has a result after all: %w", c.ID, ErrBehind)
	}
	return nil
}
