package core

// Leaver is a lane that is let go. Each of its methods tries until it succeeds, and reports false
// when the lane is lost before.
type Leaver interface {
	// RemoveReady removes the ready message, and waits for the answer. It may not arrive late, so
	// the lease is fresh.
	RemoveReady() bool
	// Look reports whether anything is in the mailbox.
	Look() (found, ok bool)
	MakeReady() bool
	RemoveClaim()
}

// Release lets a lane go in which nothing runs, so that no wake-up is lost: the package comment of
// the engine says why. Should the worker be lost in between, the claim is left, and whoever expires
// its life makes the lane ready.
func Release(l Leaver) {
	if !l.RemoveReady() {
		return
	}
	if found, ok := l.Look(); ok && (!found || l.MakeReady()) {
		l.RemoveClaim()
	}
}

// Pinned reports whether the ready message has to stay, because its own call is not settled.
func (s *Schedule) Pinned() bool {
	return s.any(func(e *Entry) bool { return e.Inline })
}

// Unresolved reports whether calls wait that a holder before this one, which was lost, may have
// started: only the claim, which is interrupted, says so to the next holder. allRead says that all
// calls are here that were there at the claim.
func (s *Schedule) Unresolved(interrupted, allRead bool) bool {
	return interrupted && (!allRead || s.any(func(e *Entry) bool { return e.MayHaveStarted }))
}
