package store

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// StoreResult stores a result unless there is one already.
func (s *Store) StoreResult(ctx context.Context, r *protocol.Result) error {
	body, err := s.Blobs.EncodeResult(ctx, r)
	if err != nil {
		return err
	}
	msg := &nats.Msg{
		Subject: s.Fleet.ResultSubject(r.SessionID, r.CallID), Data: body,
		Header: nats.Header{jetstream.ExpectedLastSubjSeqHeader: []string{"0"}},
	}
	_, answer, err := s.PublishOnce(ctx, s.Fleet.ResultsStream(), msg)
	if err = answer.full(err); err != nil {
		return fmt.Errorf("store result of call %s: %w", r.CallID, err)
	}
	return nil
}

// Result returns the stored result of a call; nil when there is none. A result beside an error has
// a value that cannot be had.
func (s *Store) Result(ctx context.Context, session protocol.SessionID, call protocol.CallID) (*protocol.Result, error) {
	ctx, cancel := context.WithTimeout(ctx, OpTimeout)
	defer cancel()
	msg, err := s.readLeader(ctx, s.Fleet.ResultsStream(), s.Fleet.ResultSubject(session, call), 0)
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
	if r.SessionID != session || r.CallID != call {
		return nil, fmt.Errorf("%w: what is stored for call %s is of call %s", protocol.ErrInvalidResult, call, r.CallID)
	}
	return r, s.Blobs.Value(ctx, r)
}

// LookUpResults asks whether calls have results.
func (s *Store) LookUpResults(calls ...*protocol.Call) *Lookup {
	filters := make([]string, len(calls))
	for i, call := range calls {
		filters[i] = s.Fleet.ResultSubject(call.SessionID, call.ID)
	}
	return s.results.lookup(filters...)
}

// HasResult reports whether a call has a result, also one whose value cannot be had or read. asked
// is a lookup that has asked for it; nil asks now.
func (s *Store) HasResult(ctx context.Context, call *protocol.Call, asked *Lookup) (bool, error) {
	if asked == nil {
		asked = s.LookUpResults(call)
	}
	subject := s.Fleet.ResultSubject(call.SessionID, call.ID)
	found, err := asked.Wait(ctx)
	if errors.Is(err, ErrNotAtOnce) {
		var msg *jetstream.RawStreamMsg
		if msg, err = s.results.next(ctx, subject, 0); msg != nil {
			found = []*jetstream.RawStreamMsg{msg}
		}
	}
	if err != nil {
		return false, fmt.Errorf("look for the result of call %s: %w", call.ID, err)
	}
	return slices.ContainsFunc(found, func(msg *jetstream.RawStreamMsg) bool { return msg.Subject == subject }), nil
}
