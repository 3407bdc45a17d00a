package wire

import (
	"encoding/json"
	"strconv"
	"strings"

	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Header names. Trace context travels beside them under its own lower-case
// W3C names (traceparent, tracestate).
const (
	// HeaderType is the "type" of the body, for readers that route before they decode.
	HeaderType = "Tf-Type"
	// HeaderLane is the readable lane; subjects carry its hash.
	HeaderLane = "Tf-Lane"
	// HeaderCall is the call id, also when the subject does not name it.
	HeaderCall = "Tf-Call"
	// HeaderSigned is the signature of the call, in five parts separated by spaces: the id of the
	// key (16 hexadecimal digits), the time in milliseconds since 1970, how many calls were signed
	// together and which of them this is (from 0), and, in base64 (URL, without padding), the root
	// of their Merkle tree (RFC 6962, SHA-256), its Ed25519 signature, and the call's audit path. A
	// leaf is "toolfleet call 1", the fleet and that time, a line each, and the body. The signature
	// covers the line "toolfleet calls 1" and the root.
	HeaderSigned = "Tf-Signed"
	// HeaderFlow is the [Flow.Header] of the call; calls of the default flow have none.
	HeaderFlow = "Tf-Flow"
	// HeaderInFlight is set on a call that has a mark at its [InFlightSubject].
	HeaderInFlight = "Tf-In-Flight"
	// HeaderSession is the session id of the call.
	HeaderSession = "Tf-Session"
	// HeaderCancelled is set on a call that was cancelled before its time came.
	HeaderCancelled = "Tf-Cancelled"
	// HeaderLate is how many milliseconds after its time a call with not_before entered its lane.
	HeaderLate = "Tf-Late"
	// HeaderSeen is the [Seen] of a call that its caller sends for the first time.
	HeaderSeen = "Tf-Seen"
	// HeaderLife names the only life that a question about a lane is for.
	HeaderLife = "Tf-Life"
)

// Seen is the last result of a lane that a caller knew before it sent a call for the first time:
// the epoch of its holder, and the sequence of its call. So every copy of the new call is stored
// after that one, and in the same hold or a later one. The zero value is none.
type Seen struct{ Epoch, Sequence uint64 }

// Header is what [HeaderSeen] has.
func (s Seen) Header() string {
	return strconv.FormatUint(s.Epoch, 10) + " " + strconv.FormatUint(s.Sequence, 10)
}

// SeenOfHeader is the Seen with a header; zero for any other text.
func SeenOfHeader(text string) (s Seen) {
	epoch, sequence, _ := strings.Cut(text, " ")
	var err, other error
	s.Epoch, err = strconv.ParseUint(epoch, 10, 64)
	s.Sequence, other = strconv.ParseUint(sequence, 10, 64)
	if err != nil || other != nil {
		return Seen{}
	}
	return s
}

// LaneHeader is the lane as [HeaderLane] has it: what a header cannot carry is escaped as in a JSON
// string, and so is a space at its beginning or end, which NATS would take away.
func LaneHeader(l protocol.Lane) string {
	quoted, err := json.Marshal(string(l))
	if err != nil {
		return ""
	}
	text := string(quoted[1 : len(quoted)-1])
	if rest, found := strings.CutPrefix(text, " "); found {
		text = escapedSpace + rest
	}
	if rest, found := strings.CutSuffix(text, " "); found {
		text = rest + escapedSpace
	}
	return text
}

const escapedSpace = `\u0020`

// LaneOfHeader is the lane with a [LaneHeader]; "" when there is none.
func LaneOfHeader(text string) (lane protocol.Lane) {
	if json.Unmarshal([]byte(`"`+text+`"`), &lane) != nil {
		return ""
	}
	return lane
}
