package core

import (
	"fmt"
	"slices"
	"time"

	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Awaits is what a call still waits for, see [protocol.Call.After]. It occupies no slot meanwhile.
// Calls that conflict with it and come after it in its lane wait too; all others go past it.
type Awaits struct {
	Missing []protocol.CallRef // calls that have no result yet, as far as is known
	// Unmet is a call that ended otherwise than ok: the call is not run.
	Unmet       *protocol.CallRef
	UnmetStatus protocol.Status
}

// Ended notes how a call ended that entries may wait for. It returns the entries that are not run
// because of that.
func (s *Schedule) Ended(ref protocol.CallRef, status protocol.Status) (unmet []*Entry) {
	for _, e := range s.entries {
		if !slices.Contains(e.Missing, ref) {
			continue
		}
		if e.Missing = slices.DeleteFunc(e.Missing, func(m protocol.CallRef) bool { return m == ref }); status != protocol.StatusOK {
			e.Missing, e.Unmet, e.UnmetStatus = nil, &ref, status
			unmet = append(unmet, e)
		}
		if len(e.Missing) == 0 {
			s.awaiting--
		}
	}
	return unmet
}

// Awaiting returns the entries that wait for other calls and for no earlier one of their lane.
func (s *Schedule) Awaiting() (all []*Entry) {
	if s.awaiting == 0 {
		return nil
	}
	for _, e := range s.entries {
		if len(e.Missing) > 0 && e.blockers == 0 {
			all = append(all, e)
		}
	}
	return all
}

// Stuck reports whether nothing runs, and nothing can start before a call of another lane, or one
// that was not read yet, ends. More of the mailbox is read then, because it may have that call.
func (s *Schedule) Stuck() bool {
	return s.awaiting > 0 && !s.any(func(e *Entry) bool { return e.Running || e.startable() })
}

func (e *Entry) startable() bool { return !e.Running && e.blockers == 0 && len(e.Missing) == 0 }

// unmetError is why a call that waits for others is not run at an age; nil if it may still be. A
// call that ended otherwise than ok will never end ok, so no holder has started a call that waits
// for it.
func (e *Entry) unmetError(age time.Duration) *protocol.Error {
	message := ""
	switch {
	case e.Unmet != nil:
		message = fmt.Sprintf("call %s, which the call waits for, ended as %s", e.Unmet, e.UnmetStatus)
	case len(e.Missing) > 0 && !e.MayHaveRun() && (e.Call.Expired(age) || age >= e.Call.MaxQueue()):
		message = fmt.Sprintf("call %s, which the call waits for, had no result after %s", e.Missing[0], age.Round(time.Millisecond))
	default:
		return nil
	}
	return protocol.Errorf(protocol.CodeAfterUnmet, "%s; the call was not run", message)
}
