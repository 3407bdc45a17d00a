package lane

import (
	"context"
	"sync"

	"github.com/toolfleet/toolfleet/internal/lane/store"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Anybody may send a call again that has its result: a publisher that forgot, another program, an operator. It must not run
// again, so its result is looked for before a call starts. All calls that a lane has in hand are looked for together, when
// the first of them starts: whatever else of their ids ran in this lane had its result before they were read, or is in hand.
// One question is under way at a time; what other lanes want to know meanwhile is asked with the next.
//
// A call that must not start twice is looked for by itself, once its start mark is stored ([held.countStart]): a worker
// that does not know that it lost the lane is refused the mark, or finds the result of whoever had it.

// lookups are the questions of a holder. It is safe for concurrent use.
type lookups struct {
	store *store.Store

	mu     sync.Mutex
	asking bool
	next   *lookup // what is asked next; nil when nothing is
}

// lookup is one question: which of some calls have results.
type lookup struct {
	subjects []string
	answered chan struct{}
	found    map[string]bool
	err      error
}

// maxLookup is how many calls one question is about, short of those of its last lane.
const maxLookup = 256

// want has results looked for.
func (u *lookups) want(subjects []string) *lookup {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.next == nil {
		u.next = &lookup{answered: make(chan struct{})}
	}
	this := u.next
	if this.subjects = append(this.subjects, subjects...); !u.asking {
		u.asking = true
		go u.ask()
	} else if len(this.subjects) >= maxLookup { // it does not wait for the one that is under way
		u.next = nil
		go this.ask(u.store)
	}
	return this
}

// ask asks until nobody wants to know anything.
func (u *lookups) ask() {
	for {
		u.mu.Lock()
		this := u.next
		u.next = nil
		u.asking = this != nil
		u.mu.Unlock()
		if this == nil {
			return
		}
		this.ask(u.store)
	}
}

func (u *lookup) ask(s *store.Store) {
	u.found, u.err = s.HasResults(context.Background(), u.subjects...) //nolint:forbidigo // it is for many lanes
	close(u.answered)
}

// lookUp has the results of all calls in hand looked for that were not yet.
func (l *held) lookUp() {
	var subjects []string
	var entries []*entry
	for _, e := range l.schedule.entries {
		if e.lookup == nil && !e.running && e.call.Delivery != protocol.AtMostOnce {
			entries = append(entries, e)
			subjects = append(subjects, l.resultSubject(e))
		}
	}
	all := l.holder.lookups.want(subjects)
	for _, e := range entries {
		e.lookup = all
	}
}

func (l *held) resultSubject(e *entry) string {
	return l.holder.options.Fleet.ResultSubject(e.call.SessionID, e.call.ID)
}

// hasResult looks for the result of a call that is about to start for the first time.
func (l *held) hasResult(e *entry) (known bool, err error) {
	select {
	case <-e.lookup.answered:
	case <-l.ctx.Done():
		return false, context.Cause(l.ctx)
	}
	if e.lookup.err != nil {
		return l.holder.store.HasResult(l.ctx, e.call.SessionID, e.call.ID)
	}
	return e.lookup.found[l.resultSubject(e)], nil
}
