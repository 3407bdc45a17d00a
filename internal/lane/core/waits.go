package core

import "time"

// Wait is what a held lane waits for before it starts a call that no earlier call holds up.
type Wait uint8

// Every wait.
const (
	WaitsForNothing Wait = iota
	WaitsForSlot
	WaitsForLimit // of calls at once
	WaitsForRate
	WaitsForResume // the lane is paused
	waits
)

// Waited is for how long something waited, by what for.
type Waited [waits]time.Duration

// WaitClock measures for how long the calls of a held lane wait, and what for. The lane waits as a
// whole, so a call costs two readings of the clock. The zero value waits for nothing. It is not
// safe for concurrent use.
type WaitClock struct {
	total Waited
	wait  Wait
	since time.Time
}

// Set notes what the lane waits for from now on.
func (c *WaitClock) Set(wait Wait, now time.Time) {
	if wait != c.wait {
		c.total = c.read(now)
		c.wait, c.since = wait, now
	}
}

func (c *WaitClock) read(now time.Time) Waited {
	total := c.total
	if c.wait != WaitsForNothing {
		total[c.wait] += now.Sub(c.since)
	}
	return total
}

// Await notes that a call waits only for calls of its After, if that was not noted before.
func (c *WaitClock) Await(e *Entry, now time.Time) {
	if e.AwaitsSince.IsZero() {
		e.AwaitsSince = now
	}
}

// Free notes that no earlier call holds a call up any more, if that was not noted before.
func (c *WaitClock) Free(e *Entry, now time.Time) {
	if e.FreeSince.IsZero() {
		e.FreeSince, e.waited = now, c.read(now)
	}
}

// Start notes that a call starts, and for how long it waited since it was free.
func (c *WaitClock) Start(e *Entry, now time.Time) {
	c.Free(e, now)
	e.Waited = c.read(now)
	for i := range e.Waited {
		e.Waited[i] -= e.waited[i]
	}
}
