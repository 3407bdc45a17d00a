package protocol

// Header names. Trace context travels beside them under its own lower-case
// W3C names (traceparent, tracestate).
const (
	// HeaderType is the "type" of the body, for readers that route before they decode.
	HeaderType = "Tf-Type"
	// HeaderLane is the readable lane; subjects carry its hash.
	HeaderLane = "Tf-Lane"
	// HeaderCall is the call id, also when the subject does not name it.
	HeaderCall = "Tf-Call"
	// HeaderSession is the session id of the call.
	HeaderSession = "Tf-Session"
	// HeaderSent is when a call was sent, in milliseconds since 1970 by the servers' clock as its publisher knows it.
	HeaderSent = "Tf-Sent"
	// HeaderStarted says, with any value, that a call may have been started before, by somebody who is not known: its next
	// start is its second attempt, and one that must not start twice is not started.
	HeaderStarted = "Tf-Started"
	// HeaderReady is, on the mark of a claim, the stream sequence of the ready message by which the lane is held.
	HeaderReady = "Tf-Ready"
)
