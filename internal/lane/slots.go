package lane

import (
	"context"
	"slices"
	"sync"

	"github.com/toolfleet/toolfleet/internal/lane/core"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// slots limits how many calls of a holder run concurrently. Each waiter waits for a tenant:
// tenants are served by fair queueing, and waiters of one tenant in order of arrival. It is safe
// for concurrent use.
type slots struct {
	size int
	// wake signals that a slot may be free for which no lane waits.
	wake chan struct{}

	mu      sync.Mutex
	used    int
	waiting []*slotWaiter // in order of arrival
	fair    core.Fair[protocol.Tenant]
}

// slotWaiter waits for a slot.
type slotWaiter struct {
	tenant  protocol.Tenant
	granted chan struct{}
}

func newSlots(n int, weight func(protocol.Tenant) float64) *slots {
	return &slots{size: n, wake: make(chan struct{}, 1), fair: core.Fair[protocol.Tenant]{Weight: weight}}
}

func (s *slots) nudge() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// tryAcquire takes a slot if one is free and no waiter is in line.
func (s *slots) tryAcquire() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.used >= s.size || len(s.waiting) > 0 {
		return false
	}
	s.used++
	return true
}

// acquire waits for a slot until the context ends.
func (s *slots) acquire(ctx context.Context, tenant protocol.Tenant) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	s.mu.Lock()
	if s.used < s.size && len(s.waiting) == 0 {
		s.used++
		s.fair.Grant(tenant)
		s.mu.Unlock()
		return nil
	}
	w := &slotWaiter{tenant: tenant, granted: make(chan struct{})}
	s.waiting = append(s.waiting, w)
	s.mu.Unlock()
	select {
	case <-w.granted:
		return nil
	case <-ctx.Done():
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := slices.Index(s.waiting, w); i >= 0 {
		s.waiting = slices.Delete(s.waiting, i, i+1)
	} else { // it was granted at this moment
		s.giveBack()
	}
	s.nudge() // it was counted as waited for
	return context.Cause(ctx)
}

func (s *slots) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.giveBack()
}

// giveBack gives a slot to the waiter whose turn it is.
func (s *slots) giveBack() {
	if len(s.waiting) == 0 {
		s.used--
		s.nudge()
		return
	}
	first := 0
	for i, w := range s.waiting {
		if s.fair.Before(w.tenant, s.waiting[first].tenant) {
			first = i
		}
	}
	w := s.waiting[first]
	s.waiting = slices.Delete(s.waiting, first, first+1)
	s.fair.Grant(w.tenant)
	close(w.granted)
}

// mayKeep reports whether a lane may start another call with a slot that it has, because no other
// tenant comes before its own. That counts as a grant.
func (s *slots) mayKeep(tenant protocol.Tenant) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	others := false
	for _, w := range s.waiting {
		if w.tenant != tenant {
			if others = true; s.fair.Before(w.tenant, tenant) {
				return false
			}
		}
	}
	if others {
		s.fair.Grant(tenant)
	}
	return true
}

// inLine is how many wait for a slot.
func (s *slots) inLine() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.waiting)
}

// available is how many slots are neither used nor waited for.
func (s *slots) available() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.waiting) > 0 {
		return 0
	}
	return max(s.size-s.used, 0)
}
