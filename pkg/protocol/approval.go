package protocol

import "errors"

// Approval is a person's answer to the question whether a call may be made. It is a
// request on [Fleet.ApprovalSubject], which the coordinator that waits for it confirms.
type Approval struct {
	Granted bool `json:"granted"`
	// By says who answers, and Note is told to the model; both may be empty.
	By   string `json:"by,omitempty"`
	Note string `json:"note,omitempty"`
}

// ErrInvalidApproval is wrapped by every error of [DecodeApproval].
var ErrInvalidApproval = errors.New("invalid approval")

const typeApproval = "approval"

// EncodeApproval returns the JSON body of an approval.
func EncodeApproval(a Approval) ([]byte, error) {
	return encode(typeApproval, a)
}

// DecodeApproval reads what [EncodeApproval] wrote. Errors wrap [ErrInvalidApproval].
func DecodeApproval(body []byte) (Approval, error) {
	return decode[Approval](body, typeApproval, ErrInvalidApproval)
}
