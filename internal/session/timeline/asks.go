package timeline

import "github.com/toolfleet/toolfleet/pkg/loop"

// Asks are the approvals of the calls of one step, for readers that add one event after the other.
// These calls are sent when all of them were judged, so each waits for the approvals of the others,
// too. The zero value has none. Times are in milliseconds.
type Asks struct {
	Step  int64 // turn and step
	MS    int64 // how long the answers took
	Since int64 // when the question was asked that has no answer yet; 0 without one
}

func stepOf(e *loop.Event) int64 { return int64(e.Turn)<<32 | int64(e.Step) }

// Asked adds an event that asks for an approval.
func (a *Asks) Asked(e *loop.Event) {
	if step := stepOf(e); step != a.Step {
		*a = Asks{Step: step}
	}
	if a.Since == 0 {
		a.Since = e.Time.UnixMilli()
	}
}

// Answered adds an event that has the answer.
func (a *Asks) Answered(e *loop.Event) {
	if a.Since > 0 && stepOf(e) == a.Step {
		a.MS, a.Since = a.Waited(e), 0
	}
}

// Waited is how long a call has waited for approvals when it is sent.
func (a *Asks) Waited(sent *loop.Event) int64 {
	switch {
	case stepOf(sent) != a.Step:
		return 0
	case a.Since > 0:
		return a.MS + max(sent.Time.UnixMilli()-a.Since, 0)
	default:
		return a.MS
	}
}
