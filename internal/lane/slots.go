package lane

import (
	"context"
	"sync/atomic"

	"golang.org/x/sync/semaphore"
)

// slots bounds how many calls of a holder run at once. Waiters are served in
// the order of their arrival. It is safe for concurrent use.
type slots struct {
	semaphore *semaphore.Weighted
	size      int
	used      atomic.Int64
	waiting   atomic.Int64
	// wake says that a slot may be free for nobody in particular.
	wake chan struct{}
}

func newSlots(n int) *slots {
	return &slots{semaphore: semaphore.NewWeighted(int64(n)), size: n, wake: make(chan struct{}, 1)}
}

func (s *slots) nudge() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// tryAcquire takes a slot when one is free and nobody waits for it.
func (s *slots) tryAcquire() bool {
	if !s.semaphore.TryAcquire(1) {
		return false
	}
	s.used.Add(1)
	return true
}

// acquire waits for a slot until the context ends.
func (s *slots) acquire(ctx context.Context) error {
	s.waiting.Add(1)
	err := s.semaphore.Acquire(ctx, 1)
	if err == nil {
		s.used.Add(1)
	}
	s.waiting.Add(-1)
	if s.available() > 0 { // it seemed to be for those who wait
		s.nudge()
	}
	return err
}

func (s *slots) release() {
	s.used.Add(-1)
	s.semaphore.Release(1)
	if s.inLine() == 0 {
		s.nudge()
	}
}

func (s *slots) inLine() int { return int(s.waiting.Load()) }

// available is how many slots nobody uses or waits for, give or take those that are just granted.
func (s *slots) available() int {
	if s.inLine() > 0 {
		return 0
	}
	return max(s.size-int(s.used.Load()), 0)
}
