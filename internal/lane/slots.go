package lane

import (
	"container/list"
	"context"
	"sync"
)

// slots bounds how many calls of a holder run at once. Waiters are served in
// the order of their arrival. It is safe for concurrent use.
type slots struct {
	mu      sync.Mutex
	free    int
	waiting list.List // of chan struct{}
	// changed is called, without the lock, when a slot became free for nobody in particular.
	changed func()
}

func newSlots(n int, changed func()) *slots { return &slots{free: n, changed: changed} }

// tryAcquire takes a slot when one is free and nobody waits for it.
func (s *slots) tryAcquire() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.free == 0 || s.waiting.Len() > 0 {
		return false
	}
	s.free--
	return true
}

// acquire waits for a slot; the error is the context's cause.
func (s *slots) acquire(ctx context.Context) error {
	if s.tryAcquire() {
		return nil
	}
	s.mu.Lock()
	if s.free > 0 && s.waiting.Len() == 0 {
		s.free--
		s.mu.Unlock()
		return nil
	}
	granted := make(chan struct{})
	place := s.waiting.PushBack(granted)
	s.mu.Unlock()
	select {
	case <-granted:
		return nil
	case <-ctx.Done():
	}
	s.mu.Lock()
	select {
	case <-granted: // both at once: give it back
		s.mu.Unlock()
		s.release()
	default:
		s.waiting.Remove(place)
		s.mu.Unlock()
	}
	return context.Cause(ctx)
}

func (s *slots) release() {
	s.mu.Lock()
	if first := s.waiting.Front(); first != nil {
		s.waiting.Remove(first)
		close(first.Value.(chan struct{})) //nolint:errcheck,forcetypeassert // nothing else is put in
		s.mu.Unlock()
		return
	}
	s.free++
	s.mu.Unlock()
	s.changed()
}

func (s *slots) inLine() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.waiting.Len()
}

// available is how many slots nobody uses or waits for.
func (s *slots) available() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.free
}
