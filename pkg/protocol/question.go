package protocol

import (
	"encoding/json"
	"time"
)

// Question is a form that a running call asks a person to fill in. Programs that follow the call
// may show it.
type Question struct {
	// ID is that of this question among those of its call.
	ID string `json:"id"`
	// Message is what is asked, by the tool, not by the fleet.
	Message string `json:"message"`
	// Schema is the JSON Schema of the answer's content, an object with plain properties; nil when
	// only yes or no is asked.
	Schema json.RawMessage `json:"schema,omitempty"`
}

// Action is what a person did about a question.
type Action string

// The actions. What a running call asks is declined without an answer within 2 s.
const (
	ActionWait    Action = "wait"    // the answer will come within half of the time that the call has left
	ActionAccept  Action = "accept"  // it is answered
	ActionDecline Action = "decline" // it is not
	ActionCancel  Action = "cancel"  // no decision
)

// Answer answers a [Question]. The worker confirms it; it refuses one that does not
// fit the question's schema, and the question stays.
type Answer struct {
	// Question is its ID; "" is the one that is put.
	Question string `json:"question,omitempty"`
	Action   Action `json:"action"`
	// Content is, of accept, a JSON object; what it lacks is the default of the schema.
	Content json.RawMessage `json:"content,omitempty"`
	// By says who answers; it may be empty.
	By string `json:"by,omitempty"`
}

// Approval is a person's answer to the question whether a call may be made. The
// coordinator that waits for it confirms it.
type Approval struct {
	Granted bool `json:"granted"`
	// Session approves in addition, for the rest of the session, what the scope of the question
	// says. It counts only with Granted.
	Session bool `json:"session,omitempty"`
	// By is the person, and Note a text for the model; both may be empty. A session records a By
	// that came over NATS as claimed: nobody has checked it.
	By   string `json:"by,omitempty"`
	Note string `json:"note,omitempty"`
	// Giver is whose client has given an approval for the session: it counts as long as the client
	// has its token. nil is a person at the terminal of the session, or the operator of its fleet.
	// [Sessions.Approve] of package fleet sets it.
	Giver *Giver `json:"giver,omitempty"`
	// Via is the way by which the answer came: terminal, fleet, mcp or acp. Who receives the answer
	// sets it, so it never comes from the answer itself.
	Via string `json:"-"`
}

// Giver is the token of a client that has given an approval for a session.
type Giver struct {
	// Token is the servers' name of the token, which is not the token itself: stored:ID for one of
	// the fleet.
	Token string `json:"token,omitempty"`
	// Until is when the token expires; zero is never.
	Until time.Time `json:"until,omitzero"`
}
