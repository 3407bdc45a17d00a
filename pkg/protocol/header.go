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
)
