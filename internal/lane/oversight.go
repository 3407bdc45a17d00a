package lane

import (
	"slices"
	"sync/atomic"
	"time"

	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// oversight is what operators do to a held lane and see of it.
//
// A paused lane has a pause mark in its mailbox. Whoever holds it starts nothing and
// keeps it as long as calls wait there, without a slot: so what ran before goes on,
// cancelled and expired calls are still answered, and the ready message stays where it is. A lane
// in which nothing waits is let go; the mark alone does not make it ready.
type oversight struct {
	epoch  atomic.Uint64 // of the claim; 0 while there is none
	paused atomic.Bool   // as the mark was read last; serve writes it
	asked  atomic.Bool   // somebody has asked about the lane since then

	// Owned by serve.
	read     time.Time // when the marks beyond the window were read last
	refusing bool      // a call was cancelled since cancelled calls were answered last
	// early are calls that were cancelled before they were read: the marks stand behind them, maybe
	// beyond the window.
	early map[protocol.CallID]struct{}

	runs []ongoing // what is being executed; guarded by the lane's mu
}

// ongoing is a call while it is executed here.
type ongoing struct {
	call    *protocol.Call
	attempt int
	since   time.Time
}

// began books a call as being executed; the lane's mu is held.
func (l *held) began(run *Run, since time.Time) {
	l.oversight.runs = append(l.oversight.runs, ongoing{call: run.Call, attempt: run.Attempt, since: since})
}

// ended books the end of an execution.
func (l *held) ended(run *Run) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.oversight.runs = slices.DeleteFunc(l.oversight.runs, func(o ongoing) bool { return o.call == run.Call })
}
