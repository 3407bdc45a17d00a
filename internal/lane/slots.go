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
	// wake says that a slot may be free for nobody in particular.
	wake chan struct{}
}

func newSlots(n int) *slots { return &slots{free: n, wake: make(chan struct{}, 1)} }

func (s *slots) nudge() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

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
	s.mu.Lock()
	if s.free > 0 && s.waiting.Len() == 0 {
		s.free--
		s.mu.Unlock()
		return nil
	}
	granted := make(chan struct{})
	inLine := s.waiting.PushBack(granted)
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
		s.waiting.Remove(inLine)
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
	s.nudge()
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
