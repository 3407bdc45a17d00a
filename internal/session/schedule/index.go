package schedule

import (
	"context"
	"sync"
	"time"

	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// index is the triggers of sessions, kept by the [Runner] of the store, which reads each record
// once. It is safe for concurrent use.
type index struct {
	mu       sync.Mutex
	kept     bool          // a runner keeps it
	seen     uint64        // the sequence up to which it is complete
	changed  chan struct{} // closed when seen changes; nil without a waiter
	sessions map[protocol.SessionID]map[string]*Schedule
	owners   map[string]protocol.SessionID // of the triggers, by name
}

// note changes one record; a nil schedule is one that was removed or cannot be read.
func (x *index) note(name string, s *Schedule, revision uint64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if owner, known := x.owners[name]; known {
		delete(x.owners, name)
		if delete(x.sessions[owner], name); len(x.sessions[owner]) == 0 {
			delete(x.sessions, owner)
		}
	}
	if s != nil && s.By != "" {
		owner, own := s.Call.SessionID, *s // the runner changes its own copy
		if x.owners == nil {
			x.owners, x.sessions = map[string]protocol.SessionID{}, map[protocol.SessionID]map[string]*Schedule{}
		}
		if x.owners[name] = owner; x.sessions[owner] == nil {
			x.sessions[owner] = map[string]*Schedule{}
		}
		x.sessions[owner][name] = &own
	}
	x.see(revision)
}

// see notes that the index is complete up to a sequence; the lock is held.
func (x *index) see(revision uint64) {
	if x.seen = max(x.seen, revision); x.changed != nil {
		close(x.changed)
		x.changed = nil
	}
}

// open says that all records up to a sequence are noted, and that a runner notes the others.
func (x *index) open(seen uint64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.kept = true
	x.see(seen)
}

// close empties the index: its runner has ended, or begins again.
func (x *index) close() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.kept, x.seen, x.owners, x.sessions = false, 0, nil, nil
	x.see(0)
}

// indexWait is how long the index may take to have what is stored.
const indexWait = time.Second

// of returns copies of the triggers of a session once the index has all up to a sequence; it
// reports false when it does not have them in time.
func (x *index) of(ctx context.Context, session protocol.SessionID, last uint64) (all []*Schedule, current bool) {
	late := time.NewTimer(indexWait)
	defer late.Stop()
	for {
		x.mu.Lock()
		if !x.kept {
			x.mu.Unlock()
			return nil, false
		}
		if x.seen >= last {
			for _, s := range x.sessions[session] {
				own := *s
				all = append(all, &own)
			}
			x.mu.Unlock()
			return all, true
		}
		if x.changed == nil {
			x.changed = make(chan struct{})
		}
		changed := x.changed
		x.mu.Unlock()
		select {
		case <-changed:
		case <-late.C:
			return nil, false
		case <-ctx.Done():
			return nil, false
		}
	}
}
