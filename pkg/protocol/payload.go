package protocol

import (
	"encoding/json"
)

// Kind names a payload and the typed value that answers it; both use one name.
type Kind string

// Payload is what a worker executes: a payload type of this package, as a value, or an
// [UnknownPayload]. Tools and sessions also send payloads that only toolfleet itself makes. Paths
// in payloads are slash-separated and relative to the workspace; "" is the workspace itself.
type Payload any

// InstructionFile is a file with instructions for agents, such as AGENTS.md.
type InstructionFile struct {
	Name string `json:"name"`
	Text string `json:"text"`
}

// UnknownPayload is a payload of a kind that this version does not know. It is
// answered with status "rejected" and keeps the bytes that it came with.
type UnknownPayload struct {
	Name Kind
	Raw  json.RawMessage
}

// Author is who commits with git in the commands of a session; what is "" is not said.
type Author struct {
	Name  string `json:"name,omitempty"`
	Email string `json:"email,omitempty"`
}
