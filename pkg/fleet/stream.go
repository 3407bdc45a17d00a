package fleet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Stream is a queue of calls that run first in, first out, one at a time. Streams run side by side,
// also on one sandbox; [Stream.Record] and [Stream.Wait] order calls of different streams. The
// queue is in the fleet: it survives this process and every worker, and streams of one sandbox and
// name are the same stream in every process. Get one from a [Client].
//
// A stream orders its calls by nothing but itself: two streams that change the same file of a
// sandbox need an event. Calls without a stream that use the sandbox wait for those of its streams,
// and the other way round, in the order in which they were sent.
type Stream struct {
	client        *Client
	sandbox, name string

	mu    sync.Mutex
	last  protocol.CallRef   // the last call that was sent
	waits []protocol.CallRef // what the next call waits for
}

// Stream returns the stream of a sandbox with a name, both of 1 to 64 letters, digits, '-' and '_'.
// A stream without a sandbox ("") is for payloads and tools of your own: their calls run on any
// worker. An invalid name is reported by the calls of the stream.
func (c *Client) Stream(sandbox, name string) *Stream {
	return &Stream{client: c, sandbox: sandbox, name: name}
}

// Go is [Client.Go] for the next call of the stream. The call uses the stream and nothing else: its
// Sandbox is that of the stream, and it must not name Resources.
func (s *Stream) Go(ctx context.Context, call Call) *Future {
	s.mu.Lock()
	defer s.mu.Unlock()
	call, err := s.next(call)
	if err != nil {
		f := &Future{ref: protocol.CallRef{SessionID: cmp.Or(call.Session, protocol.SessionID(s.sandbox), s.client.session), ID: call.ID}}
		s.client.notSent(&f.ref)
		return f.end(failed(call.Session, err))
	}
	f := s.client.Go(ctx, call)
	s.sent(f)
	return f
}

// Submit is [Client.Submit] for the next call of the stream, as [Stream.Go] makes it. If it was not
// sent, the stream is as before: [Stream.Record] is the call before it, and the next call waits for
// the events that this one was to wait for.
func (s *Stream) Submit(ctx context.Context, call Call) (protocol.CallRef, error) {
	s.mu.Lock()
	call, err := s.next(call)
	if err != nil {
		s.mu.Unlock()
		return protocol.CallRef{}, err
	}
	last, waits := s.last, s.waits
	ref, stored := s.client.submit(ctx, call)
	s.last, s.waits = ref, nil
	s.mu.Unlock()
	if err = stored(); errors.Is(err, ErrNotSent) || errors.Is(err, protocol.ErrInvalidCall) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.last == ref { // else a later call was sent, which has these events behind it or rejects them
			s.last = last
		}
		s.wait(waits...)
	}
	return ref, err
}

// Record returns the event of all calls that this value has sent so far, or may have sent: the last
// of them, for [Stream.Wait] of any stream, also in another process. It is the zero value if none
// was sent.
func (s *Stream) Record() protocol.CallRef {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last
}

// Wait has the next call of this value, and so all later ones, wait for events of any stream: calls
// that [Stream.Record] or [Future.Ref] returned, which must end with status ok. It returns at once.
// The next call is rejected with [protocol.CodeAfterUnmet] if one of them ends otherwise, was not
// sent, or has not ended in time, see [Call].After; later calls run. The zero value is ignored.
func (s *Stream) Wait(events ...protocol.CallRef) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wait(events...)
}

// wait adds events that the next call waits for; the lock is held.
func (s *Stream) wait(events ...protocol.CallRef) {
	for _, ref := range events {
		if ref != (protocol.CallRef{}) && !slices.Contains(s.waits, ref) {
			s.waits = append(s.waits, ref)
		}
	}
}

// next makes a call the next one of the stream; the lock is held.
func (s *Stream) next(call Call) (Call, error) {
	_, err := protocol.ParseSessionID(s.name)
	switch {
	case err != nil:
		return call, fmt.Errorf("%w: stream name: %w", protocol.ErrInvalidCall, err)
	case len(call.Resources) > 0:
		return call, fmt.Errorf("%w: resources: a call of a stream uses the stream only", protocol.ErrInvalidCall)
	case call.Sandbox != "" && call.Sandbox != s.sandbox:
		return call, fmt.Errorf("%w: sandbox %q: must be %q, that of the stream", protocol.ErrInvalidCall, call.Sandbox, s.sandbox)
	}
	call.Sandbox = s.sandbox
	call.After = append(slices.Clone(call.After), s.waits...)
	call.Resources = []protocol.Use{{Key: wire.StreamKey(s.sandbox, s.name), Access: protocol.Exclusive}}
	return call, nil
}

// sent notes a call that was sent, unless it was invalid; the lock is held.
func (s *Stream) sent(f *Future) {
	if f.follow != nil {
		s.last, s.waits = f.ref, nil
	}
}
