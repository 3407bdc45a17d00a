package protocol

// Approval is a person's answer to the question whether a call may be made. The
// coordinator that waits for it confirms it.
type Approval struct {
	Granted bool `json:"granted"`
	// By says who answers, and Note is told to the model; both may be empty.
	By   string `json:"by,omitempty"`
	Note string `json:"note,omitempty"`
}
