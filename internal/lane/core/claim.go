package core

// Owner is what is known of whoever a claim names.
type Owner uint8

// Every owner.
const (
	OwnerAlive   Owner = iota // its heartbeat is renewed, or has not stood still for long enough
	OwnerExpired              // its heartbeat is set to expired, which is final
	OwnerNone                 // the claim waits for its next holder
	OwnerSelf                 // this life, which does not hold the lane
)

// Refusal is a claim that was found when another one was refused.
type Refusal struct {
	Owner Owner
	// Ready is the sequence of the ready message by which the lane was claimed.
	Ready uint64
}

// Step is what to do about a claim that was refused.
type Step uint8

// Every step.
const (
	// StepReplace replaces the claim on the condition that it is still the one that was found.
	StepReplace Step = iota
	// StepLeave leaves the ready message to the holder, who knows it.
	StepLeave
	// StepWait tries again in a moment: the holder is letting go of the lane.
	StepWait
)

// Refused decides what whoever was given the ready message with sequence ready does about the claim
// that it found. A holder claims by one ready message and removes that before its claim. So one
// that is newer than the claim's comes from after that removal, and the claim goes in a moment.
func Refused(found Refusal, ready uint64) Step {
	switch {
	case found.Owner != OwnerAlive:
		return StepReplace
	case ready > found.Ready:
		return StepWait
	}
	return StepLeave
}

// Interrupts reports whether calls of the lane may have been started, and not settled, by the owner
// of a claim that is replaced. A life that does not hold the lane has started nothing by its claim,
// and a claim without an owner says so itself.
func (r Refusal) Interrupts() bool { return r.Owner == OwnerExpired }
