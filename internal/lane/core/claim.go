package core

import "github.com/toolfleet/toolfleet/pkg/protocol"

// Claiming is a claim on its way. It is stored on the condition that the lane's record has the
// sequence Expect; 0 is none. Whoever is refused, or hears no answer, reads the record and asks
// [Claiming.Found]. So each claim is stored once at most.
type Claiming struct {
	*protocol.Claim

	Expect uint64
}

// Step is what follows from the claim that was found where another one was to be stored.
type Step uint8

// Every step.
const (
	// StepPut stores the claim on its new condition.
	StepPut Step = iota
	// StepHold holds the lane: the claim is stored by an earlier try, whose answer was lost.
	StepHold
	// StepLeave leaves the ready message to the holder, who knows it.
	StepLeave
	// StepWait tries again in a moment: the holder is letting go of the lane.
	StepWait
)

// Found decides about the claim that is stored with a sequence; the zero claim is none. isExpired
// tells whether the heartbeat of a life is set to expired, which is final.
//
// A holder claims by one ready message and removes that before its claim. So a newer one comes from
// after that removal, and the claim goes in a moment.
func (c *Claiming) Found(other *protocol.Claim, seq uint64, isExpired func(protocol.LifeID) bool) Step {
	if seq > 0 && other.Token == c.Token {
		c.Interrupted = other.Interrupted // as it was when it was stored
		return StepHold
	}
	free := other.Life == "" || other.Life == c.Life // this life holds no lane that it claims, and has started nothing
	expired := !free && isExpired(other.Life)
	switch {
	case free || expired:
		c.Interrupted, c.Expect = other.Interrupted || expired, seq
		return StepPut
	case c.Ready > other.Ready:
		return StepWait
	}
	return StepLeave
}
